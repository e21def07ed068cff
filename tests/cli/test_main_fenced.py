"""The command line on a backup: what it refuses, with exit code 14, and what it does there as anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import Wheel
from tests.cli.support import Fw, finish, invoke, start
from tests.support import REPO, eventually
from tests.support_set import make_set, promote

SCHEDULER = """
from filewheel import AsyncScheduler, Scheduler
plain = Scheduler("jobs.wheel", threads=1, processes=1)
aio = AsyncScheduler("jobs.wheel", threads=1, processes=1)
"""


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other.wheel"


@pytest.fixture
def backup(wheel_dir: Path, other: Path) -> Fw:
    """A backup that holds a message."""
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"kept", topic="t")
    make_set(other, wheel_dir)
    return Fw(wheel_dir)


def test_what_would_write_or_fire_is_refused_and_says_where_to_go(backup: Fw, other: Path, tmp_path: Path) -> None:
    dumped = tmp_path / "dump.jsonl"
    backup("dump", "-o", dumped)
    for args in (
        ("enqueue", "--in", "0", "x"),
        ("load", dumped),
        ("cancel", "0" * 26),
        ("cancel", "--key", "k"),
        ("reschedule", "0" * 26, "--in", "1s"),
        ("run", "--once"),
        ("run", "--no-wait", "--until-empty"),
    ):
        error = backup("--json", *args, code=14).error
        assert (error["error"], error["code"]) == ("fenced", 14), args
        assert f"backup of {other}" in error["message"]
        assert "promote" in error["hint"]


def test_looking_dumping_verifying_and_repairing_work_there(backup: Fw) -> None:
    assert [m["payload"] for m in backup("dump").json[:-1]] == ["kept"]
    assert backup("stats", "--json").json[0]["pending"] == 1
    assert len(backup("inspect", "list", "--ids").lines) == 1
    backup("verify")
    backup("repair", "--yes")
    backup("metrics")


def test_a_run_ends_when_another_wheel_is_promoted(wheel_dir: Path, other: Path) -> None:
    fw = Fw(wheel_dir)
    make_set(wheel_dir, other)
    process = fw.start("--json", "run")
    with Wheel(wheel_dir) as wheel:
        eventually(lambda: wheel.stats().keeper_pid == process.pid)
    promote(other)
    result = finish(process)
    assert result.code == 14
    assert result.error["error"] == "fenced"


def test_what_a_command_has_in_hand_ends_and_is_acknowledged(wheel_dir: Path, other: Path, tmp_path: Path) -> None:
    fw = Fw(wheel_dir)
    make_set(wheel_dir, other)
    for name in ("one", "two"):
        fw.enqueue("--in", "0", name)
    script = 'touch "$0.begun"; while [ ! -e "$0.end" ]; do sleep 0.05; done'
    process = fw.start("run", "--", "sh", "-c", script, tmp_path / "call")
    eventually((tmp_path / "call.begun").exists)
    promote(other)
    (tmp_path / "call.end").touch()
    assert finish(process).code == 14
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"two"]


@pytest.mark.parametrize("name", ["plain", "aio"])
@pytest.mark.parametrize("options", [(), ("--once",)])
def test_a_programs_scheduler_does_not_fire_there(
    backup: Fw, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "program.py").write_text(SCHEDULER)
    command = start("work", f"program:{name}", *options, cwd=tmp_path, env={"PYTHONPATH": str(REPO)})
    assert finish(command).code == 14


@pytest.mark.damages
def test_a_damaged_roster_is_left_by_repair_which_says_what_to_do(wheel_dir: Path, other: Path) -> None:
    make_set(wheel_dir, other)
    (wheel_dir / "roster.json").write_bytes(b"{}")
    fw = Fw(wheel_dir)
    assert "roster.json" in fw("verify", code=12).out
    for confirmed in (["--yes"], []):  # it does not ask first
        error = fw("--json", "repair", *confirmed, code=12).error
        assert "copy the roster.json of a backup" in error["hint"]
    assert (wheel_dir / "roster.json").read_bytes() == b"{}"


def test_the_code_is_listed() -> None:
    assert "fenced: this wheel is a backup" in invoke("--help").out
