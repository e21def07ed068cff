"""A crontab becomes schedules: what each line means, what is refused with its reason, and what a second load does."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cli.input.crontab import Crontab, is_system_crontab
from filewheel import Scheduler, Wheel
from filewheel.keys.index import Keys
from filewheel.schedules.cron import Cron
from tests.cli.support import Fw

VERBS = frozenset({"list", "edit", "load"})


def read(text: str, tz: str = "UTC") -> Crontab:
    return Crontab(verbs=VERBS).read(enumerate((line.encode() for line in text.splitlines()), 1), tz)


def write(folder: Path, text: str) -> Path:
    path = folder / "jobs.cron"
    path.write_text(text)
    return path


def names(fw: Fw) -> dict[str, str]:
    return {s["name"]: s["when"] for s in fw("schedule", "list").json}


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "when", "body"),
    [
        ("30 3 * * * backup.sh --full", "30 3 * * *", "backup.sh --full"),
        ("  0\t9  * * mon-fri \t report  x ", "0 9 * * mon-fri", "report  x"),
        ("@daily clean", "@daily", "clean"),
        ("@Hourly\tclean", "@Hourly", "clean"),
        ("*/5 8-18/2 1,15 jan-mar 0,7 x=1 y", "*/5 8-18/2 1,15 jan-mar 0,7", "x=1 y"),
    ],
)
def test_a_line_is_its_times_and_its_command(line: str, when: str, body: str) -> None:
    (job,) = read(line).jobs
    assert (job.when, job.body.decode()) == (when, body)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot x", "a wheel does not know when the machine starts"),
        ("61 * * * * x", "minute '61'"),
        ("0 9 * * nonday x", "day-of-week 'nonday'"),
        ("0 0 30 feb * x", "never comes"),
        ("* * * *", "has 4 fields"),
        ("0 9 * * *", "there is no command"),
        ("@daily", "there is no command"),
        ("@fortnightly x", "not a name for a schedule"),
        ("0~30 * * * * x", "a random time"),
        ("17 * * * * root cd / && run-parts /etc/cron.hourly", "'root' is a user"),
        ("17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly", "'root' is a user"),
        ("25 6 * * * root  test -x /usr/sbin/anacron || ( cd / && run )", "'root' is a user"),
        ("5 4 * * * root  run-parts /etc/cron.daily", "'root' is a user"),
        ("5 4 * * * root (cd / && run)", "'root' is a user"),
        ("5 4 * * * root FOO=bar run", "'root' is a user"),
        ("0 0 * * * root php /var/www/cron.php", "'root' is a user"),
        ("0 0 * * * root backup.sh", "'root' is a user"),
        ("0 0 * * *\troot\tnot-here x", "'root' is a user"),
        ('0 0 * * * root "x y"', "'root' is a user"),
        ("TZ=Mars/Phobos", "Mars/Phobos"),
        ("# name: list\n@daily x", "is a verb of"),
        ("# name: a\n@daily x\n# name: a\n@daily y", "two jobs of this file are named 'a'"),
        ("0 9 * * * a\0b", "a zero byte"),
    ],
)
def test_a_line_that_cannot_be_taken_is_named_with_the_reason(line: str, why: str) -> None:
    (problem,) = read(f"# first\n{line}").problems
    assert why in str(problem)
    assert str(problem).startswith(f"line {len(line.splitlines()) + 1}: ")


@pytest.mark.parametrize("rest", ["", " --full", " >/dev/null", " 2>&1", " && x", "| x", " # x"])
def test_a_program_that_has_the_name_of_a_user_and_no_command_behind_it_is_taken(rest: str) -> None:
    assert [job.body.decode() for job in read(f"@daily root{rest}").jobs] == [f"root{rest}"]


def test_variables_hold_for_the_lines_below_them() -> None:
    found = read(
        "@daily a\nPATH=/opt/bin:/bin\nCRON_TZ = \"Asia/Tokyo\"\nX='a b'\n@daily b\nTZ=Europe/Berlin\n@daily c"
    )
    assert [(job.tz, job.body.decode()) for job in found.jobs] == [
        ("UTC", "a"),
        ("Asia/Tokyo", "export PATH=/opt/bin:/bin\nexport X='a b'\nb"),
        ("Europe/Berlin", "export PATH=/opt/bin:/bin\nexport X='a b'\nexport TZ=Europe/Berlin\nc"),
    ]
    assert found.problems == found.notes == []


def test_what_means_something_else_here_is_said() -> None:
    found = read('SHELL=/bin/bash\nMAILTO=ann\nHOME=/home/ann\nMAILTO=""\n@daily x')
    assert [note.split("=")[0].split(":")[0] for note in found.notes] == ["SHELL", "MAILTO", "HOME"]
    assert found.jobs[0].body == b"export HOME=/home/ann\nx"


@pytest.mark.parametrize(
    ("command", "out"),
    [
        (r"date +\%Y | tr -d 0-9", "\n"),
        (r"cat%one%two \% three", "one\ntwo % three\n"),
        ("cat; echo after%END%x", "END\nx\nafter\n"),
        ("false || cat%1", "1\n"),
    ],
)
def test_percent_signs_are_those_of_cron(command: str, out: str) -> None:
    (job,) = read(f"@daily {command}").jobs
    assert subprocess.run(["sh"], input=job.body, capture_output=True, check=True).stdout.decode() == out


def test_a_job_has_the_same_name_wherever_it_stands_and_whenever_it_is_due() -> None:
    first = read("0 9 * * * /opt/report.sh -v\n0 17 * * * /opt/report.sh -v\n@daily other")
    second = read("X=1\n@daily other\n5 9 * * * /opt/report.sh -v\n0 18 * * * /opt/report.sh -v")
    assert {job.name for job in first.jobs} == {job.name for job in second.jobs}
    assert re.fullmatch(r"report\.sh-[0-9a-f]{6}", first.jobs[0].name)
    assert first.jobs[1].name == first.jobs[0].name + "-2"


def test_a_comment_names_the_next_job_only() -> None:
    found = read("# name: nightly\n\n# a remark\nX=1\n@daily a\n@daily b")
    assert found.jobs[0].name == "nightly"
    assert found.jobs[1].name.startswith("b-")


def test_without_a_zone_a_time_of_day_is_refused(fw: Fw) -> None:
    found = read("@hourly a\n0 9 * * * b\nCRON_TZ=UTC\n0 9 * * * c", tz="")
    assert [job.body.decode() for job in found.jobs] == ["a", "c"]
    assert "a crontab is in local time" in str(found.problems[0])
    assert "--tz " in str(found.problems[0])


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_file_with_a_wrong_line_changes_nothing(fw: Fw, tmp_path: Path) -> None:
    path = write(tmp_path, "@daily a\n61 * * * * b\n@reboot c\n")
    result = fw("schedule", "load", path, "--tz", "UTC", code=2)
    assert "line 2: '61 * * * * b'" in result.err
    assert "line 3: '@reboot c'" in result.err
    assert "2 lines of" in result.err
    assert names(fw) == {}
    assert len(fw("schedule", "load", path, "--tz", "UTC", "--keep-going", code=3).json) == 1
    assert list(names(fw).values()) == ["0 0 * * *"]


def test_a_changed_file_changes_its_schedules_and_prune_ends_those_that_are_gone(fw: Fw, tmp_path: Path) -> None:
    def done(*options: str) -> dict[str, str]:
        lines = fw("schedule", "load", path, "--tz", "UTC", *options).json
        return {line["name"].split("-")[0]: line["done"] for line in lines}

    fw("schedule", "own", "@daily", "not of the file")
    path = write(tmp_path, "0 1 * * * a\n0 2 * * * b\n0 3 * * * c\n")
    assert done("--dry-run") == dict.fromkeys("abc", "started")
    assert names(fw) == {"own": "0 0 * * *"}
    assert done() == dict.fromkeys("abc", "started")
    assert done() == dict.fromkeys("abc", "unchanged")
    write(tmp_path, "0 1 * * * a\n0 5 * * * b\n")
    assert done("--prune", "--dry-run") == {"a": "unchanged", "b": "changed", "c": "ended"}
    assert len(names(fw)) == 4
    assert done("--prune") == {"a": "unchanged", "b": "changed", "c": "ended"}
    assert sorted(names(fw).values()) == ["0 0 * * *", "0 1 * * *", "0 5 * * *"]


@pytest.mark.parametrize("text", ["", "\n\n", "# every job was a comment\n", "PATH=/usr/bin\n"])
@pytest.mark.parametrize("dry", [(), ("--dry-run",), ("--keep-going",)])
def test_an_input_without_a_job_prunes_nothing(fw: Fw, text: str, dry: tuple[str, ...]) -> None:
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", stdin="@hourly a\n@daily b\n")
    result = fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", "--prune", *dry, stdin=text, code=2)
    assert "there is no job in stdin" in result.err
    assert "nothing was changed" in result.err
    assert len(fw("schedule", "list").json) == 2
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", stdin=text)  # without --prune it says nothing


def test_an_input_whose_last_line_does_not_end_prunes_nothing(fw: Fw) -> None:
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", stdin="@hourly a\n@daily b\n@daily c\n")
    cut = "@hourly a\n@daily b"
    result = fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", "--prune", stdin=cut, code=2)
    assert "the last line of stdin does not end" in result.err
    assert len(fw("schedule", "list").json) == 3
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", stdin=cut)
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", "--prune", stdin=f"{cut}\n")
    assert len(fw("schedule", "list").json) == 2


def test_a_user_that_is_a_program_on_the_path_of_the_file_is_a_command(fw: Fw, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("#!/bin/sh\n")
    (tmp_path / "root").chmod(0o755)
    text = f"PATH={tmp_path}:/usr/bin:/bin\n@daily root /tmp\n"
    (done,) = fw("schedule", "load", "-", "--tz", "UTC", stdin=text).json
    assert done["name"].startswith("root-")


def test_in_a_file_of_cron_d_each_line_names_a_user_that_need_not_be_known_here() -> None:
    found = Crontab(has_users=True).read(enumerate([b"0 3 * * * nobody-here /usr/bin/x", b"@daily a b"], 1), "UTC")
    assert ["is a user" in problem.why for problem in found.problems] == [True, True]
    assert [is_system_crontab(path) for path in ("/etc/crontab", "/etc/cron.d/x", "/etc/cron.daily/x", "crontab")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_big_file_that_has_not_changed_is_loaded_with_one_look_for_all(
    fw: Fw, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{i % 60} {i // 60} * * * job{i} --all\n" for i in range(300))
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", stdin=text)
    looks: list[int] = []
    find = Keys.find

    def counted(self: Keys, names: Iterable[str]) -> Any:
        looks.append(1)
        return find(self, names)

    monkeypatch.setattr(Keys, "find", counted)
    made: list[int] = []
    init = Cron.__init__
    monkeypatch.setattr(Cron, "__init__", lambda self, *args: made.append(1) or init(self, *args))  # type: ignore[func-returns-value]
    done = fw("schedule", "load", "-", "--tz", "UTC", "--source", "s", "--prune", stdin=text).json
    assert {line["done"] for line in done} == {"unchanged"}
    assert len(looks) == 2, "what is there, and what it is when the frame is decided"
    assert len(made) <= 300


def test_nothing_is_pruned_when_a_line_cannot_be_read(fw: Fw, tmp_path: Path) -> None:
    path = write(tmp_path, "0 1 * * * a\n0 2 * * * b\n")
    fw("schedule", "load", path, "--tz", "UTC")
    write(tmp_path, "0 1 * * * a\n0 99 * * * b\n")
    assert "nothing is pruned" in fw("schedule", "load", path, "--tz", "UTC", "--prune", "--keep-going", code=3).err
    assert len(names(fw)) == 2


def test_a_name_of_another_file_or_a_program_is_not_taken(fw: Fw, tmp_path: Path) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.every("@daily", name="mine")(scheduler.on("tick")(print))
    scheduler.drain()
    scheduler.stop()
    fw("schedule", "shell", "@daily", "x")
    path = write(tmp_path, "# name: mine\n@daily a\n# name: shell\n@daily b\n")
    error = fw("schedule", "load", path, "--tz", "UTC", code=2).err
    assert "line 2: '@daily a': there is a schedule 'mine' already, which is a program's" in error
    assert "line 4: '@daily b': there is a schedule 'shell' already, which is not of this file" in error
    assert "unschedule shell" in error


def test_a_file_that_moved_is_told_to_be_loaded_by_its_old_source(fw: Fw) -> None:
    fw("schedule", "load", "-", "--tz", "UTC", "--source", "/old/jobs", stdin="@hourly a\n")
    moved = fw("schedule", "load", "-", "--tz", "UTC", "--source", "/new/jobs", stdin="@hourly a\n", code=2)
    assert "`--source /old/jobs` if it is the file of old" in moved.err
    (again,) = fw("schedule", "load", "-", "--tz", "UTC", "--source", "/old/jobs", stdin="@hourly a\n").json
    assert again["done"] == "unchanged"


def test_stdin_is_a_crontab_too_and_its_source_is_a_name(fw: Fw) -> None:
    fw("schedule", "load", "-", "--source", "s", stdin="@hourly a\n@hourly b\n")
    assert "--source" in fw("schedule", "load", "-", "--prune", stdin="@hourly a\n", code=2).err
    fw("schedule", "load", "-", "--source", "s", "--prune", stdin="@hourly a\n")
    with Wheel(fw.wheel) as wheel:
        (found,) = wheel.schedules()
    assert (found.source, found.occurrence.payload) == ("s", b"a")


def test_a_loaded_crontab_is_run(fw: Fw, tmp_path: Path) -> None:
    path = write(tmp_path, f"MARK=it-ran\n# name: n\n@daily cat > {tmp_path}/$MARK%from cron's stdin\n")
    fw("schedule", "load", path, "--tz", "UTC")
    with Wheel(fw.wheel) as wheel:
        wheel.reschedule(key="filewheel.every:n", delay=0)
    fw.process("run", "--once", "--", "sh")
    assert (tmp_path / "it-ran").read_text() == "from cron's stdin\n"
    assert names(fw) == {"n": "0 0 * * *"}


def test_hourly_needs_a_zone_where_the_full_hours_are_not_those_of_utc(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "@hourly a\n"
    try:
        for zone, code in (("Asia/Kolkata", 2), ("Asia/Tokyo", 0)):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            loaded = fw("schedule", "load", "-", stdin=line, code=code)
            assert ("its zone is not said" in loaded.err) == (code == 2)
    finally:
        monkeypatch.undo()
        time.tzset()
