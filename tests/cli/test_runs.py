"""What runs, how it ended, and a kill, on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pytest

from cli.commands.history import _since_us
from cli.failure import LOCKED
from cli.show.text import width
from filewheel import Keeper, Killed, Wheel
from filewheel.timespec import at_us
from tests.cli.support import invoke, on_terminal
from tests.support import REPO, eventually

HANG = "echo working >&2; trap '' HUP; sleep 600 & wait"


@pytest.fixture
def run(wheel_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A `run` with two jobs, whose commands hang; ended at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "-C", str(wheel_dir), "run", "--jobs", "2", "--", "sh", "-c", HANG],
        cwd=REPO, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    for _ in range(2):  # the second one aborts
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)
    process.kill()
    process.communicate()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def listed(wheel: Path, *more: str) -> list[dict[str, Any]]:
    return lines(invoke("-C", wheel, "inspect", "list", "--json", *more).out)


def living(group: int) -> list[str]:
    """The processes of a group that have not ended; one that is a zombie has."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(entry)
    return found


def runs(wheel: Path, count: int) -> bool:
    return len([one for one in listed(wheel, "--state", "running") if "running_since" in one]) == count


def test_what_runs_is_shown_with_its_state_and_is_killed(wheel_dir: Path, run: subprocess.Popen[str]) -> None:
    with Wheel(wheel_dir) as wheel:
        ids = [str(wheel.enqueue(b"x", topic="mail", key=f"k{n}")) for n in range(3)]
        later = str(wheel.enqueue(b"x", delay=3600))
    assert eventually(lambda: runs(wheel_dir, 2))
    found = {one["id"]: one for one in listed(wheel_dir)}
    assert [found[i]["state"] for i in (*ids, later)] == ["running", "running", "waiting", "waiting"]
    assert found[ids[0]]["where"] == "command"
    assert found[ids[0]]["pid"] > 0
    table = on_terminal("-C", wheel_dir, "inspect", "list", columns=80).out
    assert "STATE" in table
    assert "runs " in table
    assert all(width(click.unstyle(line).rstrip()) <= 80 for line in table.splitlines()), table
    assert "runs for" in on_terminal("-C", wheel_dir, "inspect", ids[0]).out
    assert "running      2, the first for" in on_terminal("-C", wheel_dir, "inspect").out
    assert lines(invoke("-C", wheel_dir, "inspect", "--json").out)[0]["running"] == {"claimed": 2, "begun": 2}

    waits = invoke("-C", wheel_dir, "kill", ids[2])
    assert waits.code == 4
    assert "cancel" in waits.err
    killed = invoke("-C", wheel_dir, "kill", ids[0])
    assert (killed.code, killed.out.strip()) == (0, ids[0])
    assert eventually(lambda: not living(found[ids[0]]["pid"])), "its child process has gone too"
    buried = invoke("-C", wheel_dir, "kill", "--key", "k1", "--bury", "--json")
    assert lines(buried.out) == [{"id": ids[1], "key": "k1", "outcome": "killed", "then": "bury"}]
    (dead,) = listed(wheel_dir, "--dead")
    assert "filewheel kill" in dead["headers"]["filewheel.reason"]
    assert "state" not in dead

    assert eventually(lambda: runs(wheel_dir, 1))
    late = invoke("-C", wheel_dir, "cancel", "--key", "k2", "--json")
    assert late.code == 7
    assert lines(late.out)[0]["outcome"] == "begun"
    assert "running_since" in lines(late.out)[0]
    assert "too late" in late.err
    assert f"filewheel kill {ids[2]}" in late.err
    dropped = invoke("-C", wheel_dir, "kill", ids[2], "--retry", "--json")
    assert (dropped.code, lines(dropped.out)[0]["outcome"]) == (0, "cancelled")
    assert "was killed; it had been cancelled, so it is dropped" in dropped.err
    again = invoke("-C", wheel_dir, "kill", ids[2])
    assert again.code == 4
    assert eventually(lambda: len(lines(invoke("-C", wheel_dir, "history", "--json").out)) == 3)
    ended = lines(invoke("-C", wheel_dir, "history", "--json").out)
    assert [(one["id"], one["outcome"], one["where"]) for one in ended] == [
        (ids[2], "cancelled", "command"), (ids[1], "dead", "command"), (ids[0], "killed", "command"),
    ]  # fmt: skip
    assert "killed" in invoke("-C", wheel_dir, "kill", ids[0]).err


@pytest.mark.parametrize("how", ["ids", "all"])
def test_a_cancel_that_is_too_late_says_since_when_it_runs_and_what_ends_it(
    wheel_dir: Path, run: subprocess.Popen[str], how: str
) -> None:
    with Wheel(wheel_dir) as wheel:
        ids = [str(wheel.enqueue(b"x", topic="mail")) for n in range(2)]
    assert eventually(lambda: runs(wheel_dir, 2))
    chosen = ids if how == "ids" else ["--all", "--topic", "mail", "--yes"]
    late = invoke("-C", wheel_dir, "cancel", *chosen)
    assert late.code == 7
    assert late.err.count("had begun, and runs for") == 2
    assert "`filewheel kill ID` ends one" in late.err


def test_a_kill_without_a_keeper_or_of_what_cannot_be_killed_says_so(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        id_ = str(wheel.enqueue(b"x"))
    assert invoke("-C", wheel_dir, "kill", id_).code == 20
    with Keeper(wheel_dir) as keeper:
        keeper.claim()
        program = invoke("-C", wheel_dir, "kill", id_)
        assert program.code == 15
        assert "program" in program.err
    with Keeper(wheel_dir, background=False):
        silent = invoke("-C", wheel_dir, "kill", id_, "--timeout", "100ms")
        assert silent.code == 16
    for wrong in ([], [id_, "--key", "k"], [id_, "--retry", "--bury"], ["no id"]):
        assert invoke("-C", wheel_dir, "kill", *wrong).code == 2


def test_a_second_kill_with_another_outcome_says_that_the_first_decides(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir) as wheel:
        id_ = str(wheel.enqueue(b"x"))
    monkeypatch.setattr(Wheel, "kill", lambda *_, **__: Killed.OTHER)
    other = invoke("-C", wheel_dir, "kill", id_, "--bury", "--json")
    assert (other.code, other.error["error"]) == (LOCKED, "locked")
    assert "another kill of" in other.err
    assert "that one decides" in other.err


def test_a_command_that_ends_by_itself_is_not_killed(wheel_dir: Path, tmp_path: Path) -> None:
    script = f"trap 'exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "-C", str(wheel_dir), "run", "--until-empty", "--", "sh", "-c", script],
        cwd=REPO, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        with Wheel(wheel_dir) as wheel:
            id_ = wheel.enqueue(b"x")
            assert eventually(lambda: (tmp_path / "up").exists() and bool(wheel.running()))
            result = invoke("-C", wheel_dir, "kill", str(id_))
            assert result.code == 4
            assert process.wait(30) == 0
            assert [one.outcome for one in wheel.history()] == ["acked"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("now", "text", "since"),
    [
        ("2027-06-16T10:00+02:00", "09:00", "2027-06-16T09:00+02:00"),
        ("2027-06-16T10:00+02:00", "11:00", "2027-06-15T11:00+02:00"),
        ("2027-06-16T10:00+02:00", "yesterday 11:00", "2027-06-15T11:00+02:00"),
        ("2027-06-16T10:00+02:00", "now", "2027-06-16T10:00+02:00"),
        ("2027-06-16T10:00+02:00", "2027-06-01", "2027-06-01T00:00+02:00"),
        ("2027-06-20T10:00+02:00", "mon 09:00", "2027-06-14T09:00+02:00"),  # a Sunday
        ("2027-06-21T10:00+02:00", "mon 09:00", "2027-06-21T09:00+02:00"),
        ("2027-06-21T08:00+02:00", "mon 09:00", "2027-06-14T09:00+02:00"),
        ("2027-03-27T10:00+01:00", "09:00", "2027-03-27T09:00+01:00"),  # the clocks go forward in the night
        ("2027-03-28T09:30+02:00", "09:00", "2027-03-28T09:00+02:00"),
        ("2027-03-28T08:30+02:00", "09:00", "2027-03-27T09:00+01:00"),
        ("2027-10-31T08:30+01:00", "09:00", "2027-10-30T09:00+02:00"),  # they went back
        ("2027-10-31T02:45+01:00", "02:30", "2027-10-31T02:30+01:00"),
        ("2027-10-31T02:15+01:00", "02:30", "2027-10-31T02:30+02:00"),
    ],
)
def test_the_history_since_a_time_of_day_or_a_weekday_is_since_the_last_one(
    now: str, text: str, since: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.times.now_us", lambda: at_us(datetime.fromisoformat(now)))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert _since_us(text) == at_us(datetime.fromisoformat(since))
        for later in ("tomorrow 09:00", "next mon 09:00", "in 2 hours", "2030-01-01"):
            with pytest.raises(click.UsageError):
                _since_us(later)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_history_is_a_table_or_json_and_is_searched(wheel_dir: Path) -> None:
    assert "no attempt has ended yet" in on_terminal("-C", wheel_dir, "history").out
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        for topic in ("mail", "sms"):
            wheel.enqueue(b"x", topic=topic)
        batch = keeper.claim()
        keeper.ack(batch[0])
        keeper.bury(batch[1], reason="no such host\x1b[31m")
    shown = on_terminal("-C", wheel_dir, "history", columns=80).out
    assert "dead" in shown
    assert "acked" in shown
    assert "\x1b[31m" not in shown
    assert all(width(click.unstyle(line).rstrip()) <= 80 for line in shown.splitlines()), shown
    (failed,) = lines(invoke("-C", wheel_dir, "history", "--failed", "--json").out)
    assert (failed["topic"], failed["outcome"], failed["moved_to"][:2]) == ("sms", "dead", "72")
    assert len(lines(invoke("-C", wheel_dir, "history", "--topic", "m*", "--since", "1h", "--json").out)) == 1
    assert len(lines(invoke("-C", wheel_dir, "history", failed["id"], "--json").out)) == 1
    assert lines(invoke("-C", wheel_dir, "history", "--key", "no such key", "--json").out) == []
    assert invoke("-C", wheel_dir, "history", "--limit", "1", "--json").out.count("\n") == 1
    assert "nothing that fits" in on_terminal("-C", wheel_dir, "history", "--topic", "none").out
    for wrong in (["--since", "later"], ["--since", "2999-01-01"], ["--limit", "-1"], ["no id"]):
        assert invoke("-C", wheel_dir, "history", *wrong).code == 2, wrong


def test_run_keeps_as_many_ends_as_it_is_told(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        for history in (0, 5):
            wheel.enqueue_many([b"x"] * 30)
            assert invoke("-C", wheel_dir, "run", "--until-empty", "--history", str(history)).code == 0
            assert 5 * (history > 0) <= len(wheel.history()) <= 2 * history


def test_what_runs_is_not_known_from_a_list_that_cannot_be_read(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        wheel.enqueue(b"x")
        keeper.claim()
        (wheel_dir / "running.json").write_text("{")
        found = invoke("-C", wheel_dir, "inspect", "list", "--json")
        assert found.code == 0
        assert "running.json" in found.err
        assert lines(found.out)[0]["state"] == "waiting"
        (wheel_dir / "running.json").unlink()
        assert lines(invoke("-C", wheel_dir, "inspect", "list", "--json").out)[0]["state"] == "running"
