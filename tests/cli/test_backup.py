"""`backup`, `replicate`, `promote`, `rejoin`: what they print, how they end, and what they ask."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from cli.failure import failure_of
from cli.main import cli
from cli.show.following import Teller, status_line
from cli.show.members import CopyProgress, lag_text, member_fields, set_line, trouble_of, work_text
from cli.show.output import Output
from cli.show.progress import ProgressLine
from filewheel import TooFewCopies, verify_backups
from filewheel.disk.directory import opened
from filewheel.roster.roster import Member, Roster, change_roster, roster_at
from filewheel.sets.link import LinkReport
from filewheel.sets.status import MemberStatus, SetStatus
from tests.cli.support import Fw, Terminal, finish, invoke, on_terminal, start, stopped
from tests.conftest import assert_whole
from tests.support import eventually, lose


class Set:
    """A primary with two backups, each in a directory of its own."""

    def __init__(self, where: Path) -> None:
        self.a, self.b, self.c = (Fw(where / name) for name in "abc")
        self.a("init")

    def add(self) -> None:
        """Add both, with their first copies."""
        self.a("backup", "add", self.b.wheel, "--mirror")
        self.a("backup", "add", self.c.wheel, "--ship")

    def same(self, *others: Fw) -> bool:
        """Tell whether these hold what the primary holds."""
        return all(invoke("diff", self.a.wheel, other.wheel).code == 0 for other in others)

    def list(self, code: int) -> dict[str, dict[str, object]]:
        """List the backups by the names of their directories, and expect an exit code."""
        return {Path(line["path"]).name: line for line in self.a("backup", "list", code=code).json}


@pytest.fixture
def wheels(tmp_path: Path) -> Iterator[Set]:
    found = Set(tmp_path)
    yield found
    for fw in (found.a, found.b, found.c):
        if fw.wheel.exists():
            assert_whole(fw.wheel)
            roster = roster_at(fw.wheel)
            if roster is not None and roster.role == "primary" and roster.members:
                assert [one.mismatches for one in verify_backups(fw.wheel) if one.mismatches] == []


# -- backup ---------------------------------------------------------------------------------------------------


def test_a_wheel_without_backups_lists_none_and_is_in_order(wheels: Set) -> None:
    result = wheels.a("backup", "list")
    assert result.out == ""
    assert "stands alone" in result.err


def test_a_backup_that_is_added_has_what_was_pending_and_is_listed(wheels: Set) -> None:
    wheels.a.enqueue("--in", "1h", "--lines", stdin="one\ntwo\nthree\n")
    (added,) = wheels.a("backup", "add", wheels.b.wheel, "--mirror").json
    assert (added["path"], added["mode"]) == (str(wheels.b.wheel), "mirror")
    assert added["copied"]["copied_bytes"] > 0
    assert wheels.same(wheels.b)
    listed = wheels.list(3)["b"]  # 3, because no replicator runs
    assert (listed["mode"], listed["state"], listed["following"]) == ("mirror", "current", False)
    assert (listed["lag_messages"], listed["lag_bytes"]) == (0, 0)
    assert listed["wheel"] == added["wheel"]


def test_the_first_copy_can_be_left_to_the_replicator(wheels: Set) -> None:
    wheels.a.enqueue("--in", "1h", "x")
    (added,) = wheels.a("backup", "add", wheels.b.wheel, "--no-copy").json
    assert (added["mode"], added["copied"]) == ("ship", None)
    assert not wheels.same(wheels.b)
    result = wheels.a("backup", "list", code=3)
    assert result.json[0]["state"] == "joining"
    assert "b: joining" in result.err
    (report,) = wheels.a("replicate", "--once").json
    assert (report["path"], report["state"]) == (str(wheels.b.wheel), "following")
    assert wheels.same(wheels.b)
    assert wheels.list(3)["b"]["state"] == "current"


def test_the_policy_of_the_set_is_what_the_options_say_and_stays_when_they_do_not(wheels: Set) -> None:
    wheels.a(
        "backup", "add", wheels.b.wheel, "--mirror", "--on-failure", "stale", "--copies", "2",
        "--timeout", "1.5s",
    )  # fmt: skip
    wheels.a("backup", "add", wheels.b.wheel)  # nor does its mode change
    wheels.a("backup", "add", wheels.c.wheel)
    roster = json.loads((wheels.a.wheel / "roster.json").read_bytes())
    assert (roster["on_failure"], roster["copies"], roster["timeout_s"]) == ("stale", 2, 1.5)
    assert [member["mode"] for member in roster["members"]] == ["mirror", "ship"]
    told = wheels.a("backup", "list", code=3).err
    assert "2 wheels hold a message before its enqueue returns" in told
    assert "A mirror that fails is marked stale" in told
    assert "Enqueues are refused while fewer than 2 wheels can hold them" in told


@pytest.mark.parametrize(
    "args", [["--copies", "17"], ["--timeout", "soon"], ["--retain", "much"], ["--on-failure", "panic"]]
)
def test_options_of_a_backup_that_make_no_sense_add_nothing(wheels: Set, args: list[str]) -> None:
    wheels.a("backup", "add", wheels.b.wheel, *args, code=2)
    assert not wheels.b.wheel.exists()
    assert not (wheels.a.wheel / "roster.json").exists()


def test_a_backup_on_the_primarys_file_system_is_warned_of(wheels: Set) -> None:
    assert "the loss of that disk takes both" in wheels.a("backup", "add", wheels.b.wheel).err


def test_a_backup_that_is_gone_is_unreachable_with_exit_code_three(wheels: Set) -> None:
    wheels.add()
    lose(wheels.c.wheel)
    assert wheels.list(3)["c"]["state"] == "unreachable"
    result = wheels.a("replicate", "--once", code=3)
    states = {Path(report["path"]).name: report["state"] for report in result.json}
    assert states == {"b": "following", "c": "unreachable"}
    assert "1 backup of 2 not in step" in result.err


def commands_in(hint: str) -> list[list[str]]:
    """Return the commands that a hint names, as they would be typed."""
    return [shlex.split(text)[1:] for text in hint.split("`")[1::2]]


def test_a_backup_that_is_added_again_says_what_changed(wheels: Set) -> None:
    add = ("backup", "add", wheels.b.wheel)
    told = wheels.a(*add, "--mirror", "--no-json").out
    assert told.startswith(f"{wheels.b.wheel} is a mirror of this wheel now")
    again = wheels.a(*add, "--mirror", "--no-json")
    assert again.out == f"{wheels.b.wheel} is a mirror of this wheel already; nothing changed\n"
    assert wheels.a(*add).json[0]["changed"] is False
    told = wheels.a(*add, "--on-failure", "stale", "--no-json").out
    assert told == f"{wheels.b.wheel} is a mirror of this wheel already; the rules of the set have changed\n"
    assert wheels.list(3)["b"]["state"] == "current"


@pytest.mark.parametrize("copies", ["0", "2"])
def test_while_the_disk_of_a_mirror_is_gone_each_command_of_the_hint_lets_enqueues_go_on(
    wheels: Set, copies: str, tmp_path: Path
) -> None:
    wheels.add()
    wheels.a("backup", "add", wheels.b.wheel, "--copies", copies)
    wheels.b.wheel.rename(tmp_path / "away")
    refused = wheels.a("enqueue", "--in", "1h", "x", "--json", code=6).error
    assert f"the mirror {wheels.b.wheel} cannot be written (no such directory)" in refused["message"]
    commands = commands_in(refused["hint"])
    assert len(commands) == (2 if copies == "0" else 1)
    kept = (wheels.a.wheel / "roster.json").read_bytes()
    for command in commands:
        assert invoke(*command).code == 0
        wheels.a.enqueue("--in", "1h", "goes on")
        assert not wheels.b.wheel.exists()
        (wheels.a.wheel / "roster.json").write_bytes(kept)
    (tmp_path / "away").rename(wheels.b.wheel)


def test_a_backup_that_is_gone_is_mounted_or_removed_and_none_is_made_in_its_place(wheels: Set) -> None:
    wheels.add()
    lose(wheels.c.wheel)
    result = invoke("-C", wheels.a.wheel, "backup", "add", wheels.c.wheel)
    assert result.code == 10
    assert "a backup is registered under this path" in result.err
    assert not wheels.c.wheel.exists()
    told = wheels.a("backup", "list", code=3).err
    assert f"mount the disk of {wheels.c.wheel}; if it is lost, " in told
    (remove, _) = commands_in(told)
    assert invoke(*remove).code == 0
    assert set(wheels.list(3)) == {"b"}


def test_without_its_primary_a_set_names_the_current_backups_and_the_command_that_promotes_one(wheels: Set) -> None:
    wheels.add()
    lose(wheels.a.wheel)
    for fw in (wheels.b, wheels.c):
        failed = fw("backup", "list", "--json", code=3).error
        assert failed["message"] == (
            f"the primary {wheels.a.wheel} cannot be asked: no such directory; "
            f"current: {wheels.b.wheel} (mirror), {wheels.c.wheel} (shipped)"
        )
        assert "mount its disk" in failed["hint"]
        assert commands_in(failed["hint"]) == [["-C", str(wheels.b.wheel), "promote"]]
        assert commands_in(fw("replicate", "--once", "--json", code=10).error["hint"]) == commands_in(failed["hint"])
    assert "the primary cannot be asked (no such directory)" in wheels.c("stats", "--no-json").out
    hint = wheels.a("backup", "list", "--json", code=10).error["hint"]
    assert "mount its disk" in hint
    assert "init" not in hint
    wheels.b("promote", "--yes", "--wait", "0")
    hint = wheels.b("backup", "list", "--json", code=3).error["hint"]
    assert f"mount the disk of {wheels.a.wheel}, then `filewheel -C {wheels.a.wheel} rejoin`" in hint
    assert ["-C", str(wheels.b.wheel), "backup", "remove", str(wheels.a.wheel)] in commands_in(hint)


def test_a_backup_that_was_not_told_of_a_promotion_points_to_the_wheel_that_was_promoted(
    wheels: Set, tmp_path: Path
) -> None:
    wheels.add()
    wheels.c.wheel.rename(tmp_path / "away")
    wheels.b("promote", "--yes", "--wait", "0")
    (tmp_path / "away").rename(wheels.c.wheel)
    failed = wheels.c("backup", "list", "--json", code=3).error
    assert failed["message"].endswith(f"{wheels.b.wheel} was promoted in its place")
    b = str(wheels.b.wheel)
    assert commands_in(failed["hint"]) == [["-C", b, "backup", "list"], ["-C", b, "replicate"]]
    assert f"The primary is {wheels.a.wheel}" not in wheels.c("backup", "list", code=3).err


@pytest.mark.parametrize(
    ("copies", "name", "said"),
    [("0", "b", "it has all that was confirmed, unless "), ("1", "b", "not known"), ("0", "c", "not known")],
)
def test_without_the_old_primary_a_current_mirror_says_that_it_has_what_was_confirmed(
    wheels: Set, copies: str, name: str, said: str
) -> None:
    wheels.add()
    wheels.a("backup", "add", wheels.b.wheel, "--copies", copies)
    lose(wheels.a.wheel)
    told = getattr(wheels, name)("promote", "--yes", "--wait", "0", "--no-json").out
    assert f"up to date   {said}" in told


def test_a_set_whose_promotion_was_cut_short_says_so_and_how_to_go_on(wheels: Set) -> None:
    wheels.add()
    for fw, role in ((wheels.a, "fenced"), (wheels.b, "promoting")):
        with opened(fw.wheel) as directory:
            change_roster(directory, lambda r, role=role: r and r.announced(2, role))  # type: ignore[misc]
    for fw in (wheels.b, wheels.a):
        failed = fw("backup", "list", "--json", code=3).error
        assert "a promotion to epoch 2 has started and not ended" in failed["message"]
        assert commands_in(failed["hint"]) == [["-C", str(fw.wheel), "promote"]]
    wheels.b("promote", "--yes", "--wait", "0")


def test_backups_that_are_copies_verify_with_exit_code_zero(wheels: Set) -> None:
    assert "stands alone" in wheels.a("backup", "verify").err
    wheels.add()
    wheels.a("enqueue", "--in", "1h", "x")
    found = wheels.a("backup", "verify")
    assert [line["state"] for line in found.json] == ["in step", "behind"]
    assert "2 backups compared" in found.err
    wheels.a("replicate", "--once")
    assert [line["state"] for line in wheels.c("backup", "verify").json] == ["in step", "in step"]


def test_a_backup_that_differs_is_named_with_the_file_the_place_and_the_command(wheels: Set) -> None:
    wheels.add()
    wheels.a("enqueue", "--in", "1h", "x")
    wheels.a("replicate", "--once")
    (segment,) = [p for p in (wheels.b.wheel / "journal").glob("*.log") if b"x" in p.read_bytes()]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    (wheels.b.wheel / "ticks").unlink()  # a replicator would write it again from there
    found = wheels.a("backup", "verify", code=12)
    assert [line["state"] for line in found.json] == ["differs", "in step"]
    (mismatch,) = found.json[0]["mismatches"]
    assert (mismatch["name"], mismatch["damaged"]) == (f"journal/{segment.name}", "backup")
    assert f"backup remove {wheels.b.wheel}" in found.err
    shown = on_terminal("-C", wheels.a.wheel, "backup", "verify").out
    assert segment.name in shown
    segment.write_bytes(whole)


def test_a_backup_that_cannot_be_compared_is_no_success(wheels: Set) -> None:
    wheels.add()
    lose(wheels.c.wheel)
    found = wheels.a("backup", "verify", code=3)
    assert [line["state"] for line in found.json] == ["in step", "unknown"]
    assert "no such directory" in found.json[1]["why"]
    assert "mount the disk" in found.err


def test_a_backup_is_removed_by_its_directory_or_its_id_and_stands_alone_then(wheels: Set) -> None:
    wheels.add()
    id_ = str(wheels.list(3)["c"]["wheel"])
    (removed,) = wheels.a("backup", "remove", wheels.b.wheel).json
    assert removed["path"] == str(wheels.b.wheel)
    assert set(wheels.list(3)) == {"c"}
    wheels.a("backup", "remove", id_[:8])
    assert wheels.list(0) == {}
    wheels.b.enqueue("--in", "1h", "its own")


def test_a_backup_that_is_not_one_cannot_be_removed(wheels: Set) -> None:
    wheels.add()
    result = invoke("-C", wheels.a.wheel, "backup", "remove", "nothing")
    assert result.code in (2, 4)
    assert "nothing" in result.err
    assert set(wheels.list(3)) == {"b", "c"}


def test_the_shell_completes_the_backups_of_the_wheel(wheels: Set) -> None:
    wheels.add()
    complete = ShellComplete(cli, {}, "filewheel", "_FILEWHEEL_COMPLETE")
    found = complete.get_completions(["-C", str(wheels.a.wheel), "backup", "remove"], str(wheels.b.wheel)[:-1])
    assert {item.value for item in found} == {str(wheels.b.wheel), str(wheels.c.wheel)}
    assert [item.value for item in complete.get_completions(["backup"], "r")] == ["remove"]
    assert {item.value for item in complete.get_completions([], "re")} >= {"replicate", "rejoin", "repair"}


def test_on_a_terminal_a_backup_is_its_path_and_how_it_is(wheels: Set) -> None:
    wheels.add()
    shown = on_terminal("-C", wheels.a.wheel, "backup", "list", env={"NO_COLOR": "1"})
    assert shown.code == 3
    at = shown.lines.index(str(wheels.b.wheel))
    assert shown.lines[at + 1].startswith("  current, mirror; ")
    assert "no replicator follows it" in shown.out
    assert f"{wheels.b.wheel}: no replicator follows it" in shown.out
    assert "{" not in shown.out


def test_a_backup_gets_no_advice_to_fire_it(wheels: Set) -> None:
    wheels.a.enqueue("--in", "0", "due")
    wheels.add()
    for verb in ("stats", "inspect"):
        shown = wheels.b(verb, "--no-json").out
        assert "fires nothing" in shown
        assert "filewheel run" not in shown
        assert "filewheel run" in wheels.a(verb, "--no-json").out


def test_a_backup_that_cannot_be_written_needs_no_second_replicator(
    wheels: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add()
    monkeypatch.setattr("filewheel.live.backups.os.access", lambda path, mode: path != str(wheels.b.wheel))
    listed = wheels.a("backup", "list", "--no-json", code=3)
    assert f"{wheels.b.wheel}: it cannot be written" in listed.err
    assert f"make {wheels.b.wheel} writable" in listed.err


def test_a_backup_that_is_added_beside_a_replicator_asks_for_no_other(wheels: Set, tmp_path: Path) -> None:
    wheels.add()
    with stopped(wheels.a.start("replicate", "-q")):
        eventually(lambda: all(one["following"] for one in listed(wheels)))
        added = wheels.a("backup", "add", tmp_path / "d")
        assert "A replicator is running" in added.err
        assert "Start it" not in added.err


def listed(wheels: Set) -> list[dict[str, object]]:
    return invoke("-C", wheels.a.wheel, "backup", "list", "--json").json


def test_a_refused_enqueue_says_once_that_a_mirror_failed(wheels: Set) -> None:
    wheels.add()
    wheels.a("replicate", "--once")
    lose(wheels.b.wheel)
    refused = wheels.a.process("enqueue", "--in", "1h", "x", code=6)
    assert "warning" not in refused.err
    assert refused.err.count("Error:") == 1


# -- replicate ------------------------------------------------------------------------------------------------


def test_a_wheel_without_backups_is_not_replicated(wheels: Set) -> None:
    assert "backup add" in wheels.a("replicate", code=2).err


def test_a_replicator_keeps_backups_in_step_until_it_is_told_to_stop(wheels: Set) -> None:
    wheels.add()
    with stopped(wheels.a.start("replicate", "--summary", "100ms", "-q")) as process:
        assert process.stdout is not None
        kinds: list[str] = []
        while kinds.count("state") < 2:  # a machine that is busy may sum up between the two
            kinds.append(json.loads(process.stdout.readline())["kind"])
        assert set(kinds) <= {"state", "summary"}
        eventually(lambda: all(one["following"] for one in listed(wheels)))
        wheels.a.enqueue("--in", "1h", "--lines", stdin="one\ntwo\n")
        eventually(lambda: wheels.same(wheels.b, wheels.c))
        eventually(lambda: json.loads(process.stdout.readline())["kind"] == "summary")
        process.send_signal(signal.SIGTERM)
        result = finish(process)
    assert result.code == 0, result
    assert len(wheels.b.pending()) == 2


def test_a_second_replicator_is_told_of_the_first(wheels: Set) -> None:
    wheels.add()
    with stopped(wheels.a.start("replicate")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        eventually(lambda: all(one["following"] for one in listed(wheels)))
        again = invoke("-C", wheels.a.wheel, "replicate", "--once")
        assert again.code in (3, 11), again
        assert str(process.pid) in again.err or "another process" in again.err


def test_on_a_terminal_a_replicator_shows_how_the_backups_are(wheels: Set) -> None:
    wheels.add()
    terminal = Terminal("-C", wheels.a.wheel, "replicate", columns=120)
    terminal.wait_for("is in step, and followed")
    terminal.wait_for("2 of 2 backups in step")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish().code == 0


def test_a_replicator_whose_reader_has_gone_ends(wheels: Set) -> None:
    wheels.add()
    with stopped(wheels.a.start("replicate", "--summary", "50ms")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        eventually(lambda: process.poll() is not None)
        assert process.returncode == 1
        process.stdout = None


# -- promote, rejoin ------------------------------------------------------------------------------------------


def test_promoting_is_refused_where_nobody_can_answer(wheels: Set) -> None:
    wheels.add()
    assert "--yes" in wheels.b("promote", code=2).err
    wheels.a.enqueue("--in", "1h", "the primary takes it still")


def test_on_a_terminal_it_is_asked_first(wheels: Set) -> None:
    wheels.add()
    for answer, code in (("n", 1), ("y", 0)):
        terminal = Terminal("-C", wheels.b.wheel, "promote", columns=200, env={"NO_COLOR": "1"})
        terminal.wait_for("[y/N]")
        assert f"fence {wheels.a.wheel} (epoch 1)?" in terminal.text
        terminal.type(f"{answer}\n")
        result = terminal.finish()
        assert result.code == code, result
    assert "epoch        2" in result.out
    assert f"fenced       {wheels.a.wheel}" in result.out
    assert "unreachable  none" in result.out
    assert "yes, it has everything" in result.out


def test_for_the_primary_nothing_is_asked_and_nothing_fenced(wheels: Set) -> None:
    wheels.add()
    result = wheels.a("promote", code=0)
    assert result.json[0]["fenced"] == []
    assert "it was the primary already" in result.err
    wheels.a.enqueue("--in", "1h", "it is still")


def test_for_a_wheel_that_was_fenced_the_list_advises_to_rejoin_and_for_the_others_to_replicate(wheels: Set) -> None:
    wheels.add()
    wheels.a("replicate", "--once")
    wheels.b("promote", "--yes")
    said = wheels.b("backup", "list", code=3).err
    assert f"Try: `filewheel -C {wheels.a.wheel} rejoin`; `filewheel -C {wheels.b.wheel} replicate`" in said
    wheels.b("backup", "remove", str(wheels.c.wheel))
    said = wheels.b("backup", "list", code=3).err
    assert "rejoin`" in said
    assert "replicate" not in said


def test_a_backup_that_is_promoted_fires_and_the_old_primary_is_fenced(wheels: Set) -> None:
    wheels.add()
    ids = wheels.a.enqueue("--in", "0", "--lines", stdin="one\ntwo\n")
    wheels.a("replicate", "--once")
    (promoted,) = wheels.b("promote", "--yes").json
    assert (promoted["epoch"], promoted["old_primary"]) == (2, str(wheels.a.wheel))
    assert str(wheels.a.wheel) in promoted["fenced"]
    assert (promoted["unreachable"], promoted["caught_up"]) == ([], True)
    assert wheels.a("enqueue", "--in", "0", "x", "--json", code=14).error["error"] == "fenced"
    assert "was promoted" in wheels.a("run", "--once", code=14).err
    assert {line["id"] for line in wheels.b("run", "--once").json} == set(ids)
    assert "fenced" in wheels.a("stats", "--no-json").out


def test_a_primary_that_is_gone_is_named_and_the_backup_fires(wheels: Set) -> None:
    wheels.add()
    ids = wheels.a.enqueue("--in", "0", "x")
    lose(wheels.a.wheel)
    result = wheels.b("promote", "--yes", "--wait", "0")
    assert result.json[0]["unreachable"] == [str(wheels.a.wheel)]
    told = result.err.splitlines()
    assert (
        f"warning: {wheels.a.wheel} cannot be reached: no such directory; make sure that nothing fires from it" in told
    )
    assert len([line for line in told if "no such directory" in line]) == 1
    assert f"when {wheels.a.wheel} is back, `filewheel -C {wheels.a.wheel} rejoin` brings them" in result.err
    assert [line["id"] for line in wheels.b("run", "--once").json] == ids


def test_a_standby_promotes_when_the_primary_is_gone_and_what_comes_after_it_runs(wheels: Set) -> None:
    wheels.add()
    ids = wheels.a.enqueue("--in", "0", "x")
    with stopped(wheels.b.start("promote", "--auto", "--after", "300ms", "--json")) as process:
        assert process.stderr is not None
        process.stderr.readline()
        lose(wheels.a.wheel)
        result = finish(process)
    assert result.code == 0, result
    assert result.json[0]["epoch"] == 2
    assert [line["id"] for line in wheels.b("run", "--once").json] == ids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_standby_that_is_told_to_stop_has_promoted_nothing(wheels: Set, number: int) -> None:
    wheels.add()
    with stopped(wheels.b.start("promote", "--auto")) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(number)
        result = finish(process)
    assert (result.code, result.out) == (130, "")
    wheels.a.enqueue("--in", "1h", "the primary takes it still")


@pytest.mark.parametrize("args", [["--auto", "--force"], ["--after", "1s", "--yes"]])
def test_options_of_a_promotion_that_exclude_each_other_are_usage_errors(wheels: Set, args: list[str]) -> None:
    wheels.add()
    wheels.b("promote", *args, code=2)


def test_what_can_only_be_refused_is_refused_before_the_question(wheels: Set) -> None:
    for verb in ("promote", "rejoin"):
        assert "is in no set of wheels" in wheels.a(verb, code=2).err
    wheels.add()
    assert "is the primary" in wheels.a("rejoin", code=2).err
    assert "is a backup already" in wheels.b("rejoin", code=2).err
    assert "it was the primary already" in wheels.a("promote").err
    assert "--yes" in wheels.b("promote", code=2).err
    wheels.b("promote", "--yes")
    assert "was fenced" in wheels.a("promote", code=2).err


def test_an_old_primary_rejoins_and_brings_what_only_it_had(wheels: Set) -> None:
    wheels.a("backup", "add", wheels.c.wheel, "--ship")
    (late,) = wheels.a.enqueue("--in", "1h", "never shipped")
    hidden = wheels.a.wheel.with_name("unplugged")
    wheels.a.wheel.rename(hidden)
    wheels.c("promote", "--yes", "--wait", "0", "--force")
    hidden.rename(wheels.a.wheel)
    assert "--yes" in wheels.a("rejoin", code=2).err
    result = wheels.a("rejoin", "--yes")
    assert (result.json[0]["primary"], result.json[0]["kept"]) == (str(wheels.c.wheel), 1)
    assert [line["id"] for line in wheels.c.pending()] == [late]
    again = wheels.a("rejoin", "--yes", "--force", "--no-json").out
    assert again == f"{wheels.a.wheel} is a backup of {wheels.c.wheel} now\n"
    wheels.c("replicate", "--once")
    assert wheels.same(wheels.c)
    assert wheels.a("enqueue", "--in", "1h", "x", code=14).err


# -- elsewhere ------------------------------------------------------------------------------------------------


def test_stats_inspect_and_metrics_tell_of_the_set(wheels: Set) -> None:
    alone = wheels.a("stats", "--json").json[0]
    assert alone["set"] is None
    assert wheels.a("inspect", "--json").json[0]["set"] is None
    assert "filewheel_epoch" not in wheels.a("metrics").out
    wheels.add()
    for args in (["stats"], ["inspect"], ["metrics", "--json"]):
        found = wheels.a(*args).json[0]["set"]
        assert (found["role"], found["epoch"], found["primary"]) == ("primary", 1, str(wheels.a.wheel))
        assert [(Path(m["path"]).name, m["state"]) for m in found["backups"]] == [("b", "current"), ("c", "current")]
    assert "the primary, epoch 1" in wheels.a("stats", "--no-json").out
    assert "the primary, epoch 1" in wheels.a("inspect", "--no-json").out
    assert f"a backup of {wheels.a.wheel}, epoch 1" in wheels.b("stats", "--no-json").out


def test_metrics_have_the_state_and_the_lag_of_each_backup(wheels: Set) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    wheels.add()
    lose(wheels.c.wheel)
    found: dict[tuple[str, str, str], float] = {}
    for family in parser.text_string_to_metric_families(wheels.a("metrics").out):
        for sample in family.samples:
            labels = sample.labels
            found[sample.name, Path(labels.get("path", "")).name, labels.get("state", "")] = sample.value
    assert found["filewheel_epoch", "", ""] == found["filewheel_primary", "", ""] == 1
    states = {key[1:]: value for key, value in found.items() if key[0] == "filewheel_backup_state" and value}
    assert states == {("b", "current"): 1, ("c", "unreachable"): 1}
    assert found["filewheel_backup_lag_messages", "b", ""] == 0
    assert found["filewheel_backup_following", "b", ""] == 0
    assert wheels.a("stats", "--prometheus").out == wheels.a("metrics").out


@pytest.mark.damages
def test_a_roster_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    wheels = Set(tmp_path)
    wheels.add()
    (wheels.a.wheel / "roster.json").write_text("{}")
    for args in (["stats"], ["inspect"], ["metrics"]):
        result = invoke("-C", wheels.a.wheel, *args)
        assert "roster" in result.err
        assert result.code in (0, 12)


def test_too_few_copies_have_an_exit_code() -> None:
    failure = failure_of(TooFewCopies("1 of 2 wheels holds it", copies=1))
    assert (failure.code, failure.kind) == (6, "too-few-copies")


# -- words ----------------------------------------------------------------------------------------------------


def _member(**more: object) -> MemberStatus:
    fields = {"reachable": True, "lag_bytes": 0, "lag_messages": 0, "lag_s": 0.0, "following": True, "why": ""}
    state = str(more.pop("state", "current"))
    member = Member("/mnt/b", "b" * 8, "ship", state, 0, "the disk is full" if state == "stale" else "")  # type: ignore[arg-type]
    return MemberStatus(member=member, **{**fields, **more})  # type: ignore[arg-type]


def _status(*members: MemberStatus, role: str = "primary") -> SetStatus:
    roster = Roster("s", 3, role, "/mnt/a", "a" * 8, tuple(m.member for m in members))  # type: ignore[arg-type]
    return SetStatus(roster=roster, primary="/mnt/a", members=list(members))


@pytest.mark.parametrize(
    ("one", "trouble", "lag"),
    [
        (_member(), "", "in step"),
        (_member(lag_messages=1, lag_bytes=90, lag_s=1.25), "", "1 message behind, 1.2s"),
        (_member(lag_messages=0, lag_bytes=90, lag_s=None), "", "0 messages behind"),
        (_member(state="stale", lag_messages=None), "stale (the disk is full)", "lag unknown"),
        (_member(reachable=False, lag_messages=None, why="no such directory"), "unreachable (no such directory)",
         "lag unknown"),
        (_member(following=False), "no replicator follows it", "in step"),
        (_member(state="joining", following=False), "joining", "in step"),
        (_member(lag_messages=None, lag_bytes=None), "not compared yet", "lag unknown"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_backup(one: MemberStatus, trouble: str, lag: str) -> None:
    assert (trouble_of(one), lag_text(one)) == (trouble, lag)
    assert json.loads(json.dumps(member_fields(one)))["path"] == "/mnt/b"


def test_a_set_is_told_in_a_line() -> None:
    assert set_line(_status(_member())) == "the primary, epoch 3; /mnt/b (ship) in step"
    assert set_line(_status()) == "the primary, epoch 3; no backups"
    assert set_line(_status(role="backup")) == "a backup of /mnt/a, epoch 3"
    assert set_line(_status(role="fenced")) == "fenced: /mnt/a is the primary since epoch 3"
    behind = _member(lag_messages=2, lag_bytes=9, lag_s=0.5)
    stale = _member(state="stale")
    assert status_line(_status(_member(), behind)) == "1 of 2 backups in step; /mnt/b 2 messages behind, 500ms"
    assert status_line(_status(_member(), stale)) == "1 of 2 backups in step; /mnt/b stale (the disk is full)"
    assert "backup add" in status_line(_status())


def _report(state: str, **more: object) -> LinkReport:
    fields = {"copied_bytes": 0, "healed": 0, "returned": 0, "error": "", **more}
    return LinkReport(path="/mnt/b", wheel="b" * 8, mode="ship", state=state, **fields)  # type: ignore[arg-type]


def test_a_change_of_state_is_told_once(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO, "filewheel.replicate")
    out = Output()
    out.json = True
    teller = Teller(out)
    gone = _report("unreachable", error="no such directory")
    for report in (
        _report("copying"),
        _report("copying", copied_bytes=5),
        gone,
        gone,
        _report("following", returned=3),
    ):
        teller.tell(report)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "/mnt/b is brought up to date"),
        ("INFO", "/mnt/b is in step, and followed (3 messages given back to the primary)"),
    ]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["state"] for line in lines] == ["copying", "unreachable", "following"]


def test_the_work_of_a_replicator_in_words() -> None:
    report = _report("following", copied_bytes=12 << 10, healed=1, returned=3)
    assert work_text(report) == "12 KiB copied, 1 damaged frame written again, 3 messages given back to the primary"


def test_copies_that_are_made_side_by_side_are_one_progress() -> None:
    progress = ProgressLine("copying", None, None)
    copying = CopyProgress(progress)
    copying("/mnt/b", 10, 100)
    copying("/mnt/c", 0, 50)
    copying("/mnt/b", 30, 100)
    assert (progress.done, progress.total) == (30, 150)
    copying("/mnt/c", 60, 50)  # more came meanwhile
    assert (progress.done, progress.total) == (90, 160)


def test_a_wheel_that_stands_alone_does_not_load_what_sets_need(wheels: Set) -> None:
    code = (
        "import sys\nfrom cli.main import cli\ntry: cli.main(['-C', sys.argv[1], 'stats'])\n"
        "except SystemExit: pass\nprint(any(m.startswith('filewheel.sets') for m in sys.modules))"
    )
    result = finish(start(command=[sys.executable, "-c", code, str(wheels.a.wheel)]))
    assert result.lines[-1] == "False", result
