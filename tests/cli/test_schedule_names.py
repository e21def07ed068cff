"""An occurrence is shown by the name of its schedule, wherever messages are shown; also when it has died."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.show.calls import shown_payload
from filewheel import Keeper, Message, MessageId, Wheel
from filewheel.message import OF_SCHEDULE, RETRY, TIMEOUT
from tests.cli.support import Fw, on_terminal, stopped
from tests.support import eventually

SH = ("--", "sh")
CRONTAB = """
PATH=/usr/bin:/bin
MAIL_FROM='a b'
CRON_TZ=UTC
# name: newsletter
0 3 1 1 * echo no route >&2; exit 75
"""


def loaded(fw: Fw) -> None:
    """Load a crontab with one job that fails, and make it due."""
    fw.process("schedule", "load", "-", "--source", "jobs", stdin=CRONTAB)
    fw("reschedule", "--key", "filewheel.every:newsletter", "--in", "0")


def died(fw: Fw, *args: str) -> tuple[str, str]:
    """Let the job fail for good; return its last id before, and the dead letter's."""
    loaded(fw)
    result = fw.process("run", "--once", "--retries", "0", *args, *SH, code=3)
    line = next(line for line in result.err.splitlines() if "dead letter now" in line)
    first, letter = line.partition("(")[2][:26], line.partition("now, ")[2][:26]
    assert f"newsletter ({first}) is a dead letter now, {letter}: exit code 75" in line
    return first, letter


def test_run_names_the_schedule_of_what_failed(fw: Fw) -> None:
    loaded(fw)
    fw.enqueue("--in", "0", "exit 9")
    err = fw.process("run", "--once", "--backoff", "1h", *SH, code=3).err
    assert "newsletter (0" in err
    assert ") failed: exit code 75; try 1 of 6" in err
    other = next(line for line in err.splitlines() if "exit code 9" in line)
    assert other.split()[0].isalnum()


def test_lists_show_the_schedule_and_the_command_and_not_the_variables_of_its_crontab(fw: Fw) -> None:
    loaded(fw)
    for columns in (80, 120):
        text = on_terminal("-C", fw.wheel, "inspect", "list", columns=columns).out
        head, row = text.splitlines()[:2]
        assert "SCHEDULE" in head
        assert "TOPIC" not in head
        assert "newsletter" in row
        assert "echo no" in row
        assert "export" not in row
    fw.enqueue("--in", "1h", "--topic", "mail", "--key", "k", "hi")
    head, row, other = fw("inspect", "list", "--no-json").lines
    assert head.split() == ["ID", "DUE", "STATE", "SCHEDULE", "TOPIC", "KEY", "BODY"]
    assert row.split()[-5:] == ["no", "route", ">&2;", "exit", "75"]
    assert other.split()[-3:] == ["mail", "k", "hi"]


def test_a_dead_letter_and_the_history_keep_the_name_and_so_does_a_revived_one(fw: Fw) -> None:
    _, letter = died(fw)
    assert "newsletter" in fw("dead", "list", "--no-json").lines[1]
    assert "newsletter" in fw("history", "--no-json").lines[1]
    assert [line["schedule"] for line in fw("history").json] == ["newsletter"]
    assert fw("inspect", letter).json[0]["schedule"] == {"name": "newsletter"}
    whole = fw("inspect", letter, "--no-json").out
    assert ["schedule", "newsletter"] in [line.split() for line in whole.splitlines()]
    assert OF_SCHEDULE not in whole
    assert ", try 1: exit code 75" in whole
    fw("dead", "revive", letter)
    err = fw.process("run", "--once", "--retries", "0", *SH, code=3).err
    assert "newsletter (" in err
    assert [line["schedule"] for line in fw("history").json] == ["newsletter"] * 2
    assert len(fw("schedule", "list").json) == 1, "a revived one has no successor"


def test_an_id_that_died_leads_to_its_dead_letter(fw: Fw) -> None:
    loaded(fw)
    # A second try has another id.
    err = fw.process("run", "--until-empty", "--retries", "1", "--backoff", "1ms", *SH, code=3).err
    line = next(line for line in err.splitlines() if "dead letter now" in line)
    tried, letter = line.partition("(")[2][:26], line.partition("now, ")[2][:26]
    for args in (("inspect", tried), ("dead", "revive", tried), ("dead", "drop", tried), ("cancel", tried)):
        result = fw(*args, code=4)
        assert f"{tried} is a dead letter now, {letter}" in result.err, args
        assert f"filewheel dead revive {letter}" in result.err
    fw("dead", "drop", letter)
    assert "is not pending: dead" in fw("inspect", tried, code=4).err


def test_a_pending_id_is_no_dead_letter_and_the_others_are_revived(fw: Fw) -> None:
    _, letter = died(fw)
    (pending,) = fw.enqueue("--in", "1h", "hi")
    result = fw("dead", "drop", pending, code=4)
    assert f"{pending} is pending, and no dead letter" in result.err
    result = fw("dead", "revive", pending, letter, code=3)
    assert len(result.lines) == 1
    assert "1 of 2 dead letters were not revived" in result.err
    assert pending in [line["id"] for line in fw("inspect", "list").json]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"export A=1\nexport B='x y'\ncmd\nA=2", b"cmd\nA=2"), (b"A=1\ncmd", b"cmd"),
        (b"A=1 cmd\nmore", b"A=1 cmd\nmore"),
        (b"export A='it'\"'\"'s'\ncmd", b"cmd"), (b"export A=1\n", b"export A=1\n"), (b"A=$(cmd)\nB", b"A=$(cmd)\nB"),
        (b"", b""),
    ],
)  # fmt: skip
def test_only_lines_that_set_variables_are_left_out(wheel: Wheel, body: bytes, shown: bytes) -> None:
    wheel.schedule("n", "0 0 1 1 *", body)
    (stored,) = wheel.schedules()
    assert shown_payload(stored.occurrence) == shown
    assert shown_payload(Message(MessageId(bytes(16)), body)) == body


def test_a_kill_by_the_name_ends_what_runs_and_says_when_the_schedule_fires_next(fw: Fw, tmp_path: Path) -> None:
    with Wheel(fw.wheel) as wheel:
        wheel.schedule("night", "0 3 1 1 *", f"touch {tmp_path}/began; sleep 600".encode())
        wheel.reschedule(key="filewheel.every:night", delay=0)
    with stopped(fw.start("run", *SH)) as process:
        eventually(lambda: (tmp_path / "began").exists())
        eventually(lambda: fw("inspect", "list", "--state", "running", "--ids").lines != [])
        shown = on_terminal("-C", fw.wheel, "schedule", "list").out
        assert " runs " in shown.splitlines()[1], shown
        assert "overdue" not in on_terminal("-C", fw.wheel, "inspect").out
        with Wheel(fw.wheel) as wheel:
            assert (wheel.overdue().count, wheel.overdue().running, wheel.overdue().lag_us) == (0, 1, 0)
        metrics = {line.partition("{")[0]: line.split()[-1] for line in fw("metrics").lines}
        assert (metrics["filewheel_lag_seconds"], metrics["filewheel_overdue"]) == ("0.0", "0")
        result = fw("kill", "--schedule", "night")
        assert result.lines == ["night"]
        assert "the occurrence of 'night' was killed; it is dropped; the schedule goes on, next " in result.err
        waits = fw("kill", "--schedule", "night", code=4)
        assert "the occurrence of 'night' does not run" in waits.err
        assert "cancel" not in waits.err
        process.terminate()
        assert process.wait(60) == 0
    (ended,) = fw("history", "--schedule", "night").json
    assert ended["outcome"] == "killed"
    assert fw("history", "--schedule", "other").json == []


def test_kill_takes_one_name(fw: Fw) -> None:
    for args in ((), ("--key", "a", "--schedule", "b")):
        assert "give an id, --key or --schedule" in fw("kill", *args, code=2).err


def test_times_of_a_schedule_that_are_written_as_of_an_enqueue_lead_to_at(fw: Fw) -> None:
    assert "Try: --at 'in 2 hours'" in fw("schedule", "n", "--in", "2h", "true", code=2).err
    assert "'in 2 hours'" in fw("schedule", "n", "--at", "2 hours", "true", code=2).err
    fw("schedule", "n", "--at", "in 2 hours", "true")


def test_a_dry_run_says_what_it_would_do_and_a_load_that_nothing_fires(fw: Fw) -> None:
    text = "# name: a\n@hourly true\n"
    dry = fw("schedule", "load", "-", "--source", "s", "--tz", "UTC", "--dry-run", "--no-json", stdin=text)
    assert dry.lines[1].startswith("would start  a")
    assert "no keeper" not in dry.err
    done = fw("schedule", "load", "-", "--source", "s", "--tz", "UTC", stdin=text)
    assert "no keeper runs" in done.err
    assert [line["when"] for line in done.json] == [line["when"] for line in fw("schedule", "list").json]
    other = "# name: b\n@hourly true\n"
    dry = fw("schedule", "load", "-", "--source", "s", "--tz", "UTC", "--prune", "--dry-run", "--no-json", stdin=other)
    assert [line.split("  ")[0] for line in dry.lines[1:]] == ["would start", "would end"]


@pytest.mark.parametrize("pause", [(), ("--topic", "none"), ("--topic", "run")])
def test_a_message_that_waits_is_late_beside_one_that_runs(fw: Fw, tmp_path: Path, pause: tuple[str, ...]) -> None:
    with Wheel(fw.wheel) as wheel, Keeper(fw.wheel) as keeper:
        wheel.enqueue(b"", topic="run", delay=-50)
        keeper.claim()
        wheel.enqueue(b"", topic="wait", delay=-20)
        if pause:
            wheel.pause(topic=pause[1])
        due = wheel.overdue()
        assert (due.count, due.running, due.paused) == (1, 1, 0)
        assert 20_000_000 <= due.lag_us < 50_000_000
    with Wheel(fw.wheel) as wheel:
        due = wheel.overdue()
        assert (due.running, due.count + due.paused) == (0, 2), "without a keeper nothing runs"


def test_a_schedule_has_its_own_terms_and_so_has_each_job_of_a_crontab(fw: Fw) -> None:
    text = "# name: a\n@hourly sleep 600\n"
    fw("schedule", "load", "-", "--source", "s", "--tz", "UTC", "--timeout", "100ms", "--retries", "0", stdin=text)
    fw("schedule", "b", "@hourly", "exit 3", "--retries", "1")
    for name in "ab":
        fw("reschedule", "--key", f"filewheel.every:{name}", "--in", "0")
    err = fw.process("run", "--until-empty", "--retries", "7", "--backoff", "1ms", "--timeout", "6h", *SH, code=3).err
    assert re.search(r"a \(\w+\) is a dead letter now, \w+: took longer than 100ms", err), err
    assert re.search(r"b \(\w+\) is a dead letter now, \w+: exit code 3, after 2 tries", err), err
    with Wheel(fw.wheel) as wheel:
        kept = {one.name: one.occurrence.headers for one in wheel.schedules()}
    assert TIMEOUT in kept["a"]
    assert RETRY in kept["b"], "the next occurrence has them too"
