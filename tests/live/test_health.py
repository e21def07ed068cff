"""Whether a message that comes due now would fire in time: each kind of trouble, and what is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.failure import MEANING
from filewheel import BadArgument, Keeper, NoWheel, Replicator, Scheduler, Wheel, add_backup, promote
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import holder
from filewheel.env import SYSTEM_CLOCK
from filewheel.live.health import Health, check_health
from tests.cli.support import Fw, finish, stopped
from tests.conftest import assert_whole
from tests.support import REPO, FakeClock, eventually


@dataclass
class Ahead:
    """The machine's clock, ahead by some seconds."""

    by_s: float

    def now_us(self) -> int:
        return SYSTEM_CLOCK.now_us() + int(self.by_s * 1e6)

    def steady_us(self) -> int:
        return SYSTEM_CLOCK.steady_us()


def health_at(path: Path, clock: Any, **options: Any) -> Health:
    return check_health(path, env=SYSTEM.using(clock=clock), **options)


def kinds(found: Health) -> list[str]:
    return [check.kind for check in found.failed]


def texts(found: Health) -> dict[str, str]:
    return {check.name: check.text for check in found.checks}


@pytest.fixture
def keeper(wheel_dir: Path, clock: FakeClock) -> Iterator[Keeper]:
    with Keeper(wheel_dir, clock=clock) as opened:
        yield opened


def enqueue(path: Path, clock: FakeClock, payload: bytes = b"x", delay: float = 0) -> None:
    with Wheel(path, clock=clock) as wheel:
        wheel.enqueue(payload, delay=delay)


def beaten(path: Path, clock: FakeClock) -> None:
    """Wait until the keeper has come around since the clock moved."""
    directory = open_directory(path, write=False)

    def is_new() -> bool:
        found = holder(directory)
        return found is not None and found.beat_us == clock.now_us()

    eventually(is_new)
    directory.disk.release()


# -- the keeper -----------------------------------------------------------------------------------------------


def test_a_keeper_that_comes_around_and_has_nothing_late_is_healthy(keeper: Keeper, clock: FakeClock) -> None:
    found = health_at(Path(keeper.directory.path), clock)
    assert found.is_healthy
    assert [check.name for check in found.checks] == ["role", "files", "paused", "keeper", "alive", "lag", "room"]
    assert texts(found)["alive"] == "it came around 0.0 s ago"
    assert texts(found)["keeper"] == f"this very process ({os.getpid()})"


def test_without_a_keeper_nothing_fires_unless_a_timer_does(wheel_dir: Path, clock: FakeClock) -> None:
    assert kinds(health_at(wheel_dir, clock)) == ["no-keeper"]
    assert health_at(wheel_dir, clock, needs_keeper=False).is_healthy
    enqueue(wheel_dir, clock)
    clock.advance(61)
    assert kinds(health_at(wheel_dir, clock, needs_keeper=False)) == ["late"]


def test_a_keeper_whose_thread_does_not_come_around_is_stuck(keeper: Keeper, clock: FakeClock) -> None:
    path = Path(keeper.directory.path)
    ahead = FakeClock(clock.now_us())
    ahead.advance(60)
    assert health_at(path, ahead).is_healthy
    ahead.advance(1)
    assert kinds(health_at(path, ahead)) == ["stuck"]
    assert "has not come around for 61 s" in texts(health_at(path, ahead))["alive"]
    assert health_at(path, ahead, max_lag_s=120).is_healthy
    ahead.step(-122)  # the clock of the keeper is ahead
    assert kinds(health_at(path, ahead)) == ["stuck"]


def test_a_small_limit_of_lag_does_not_make_a_keeper_stuck_that_came_around(keeper: Keeper, clock: FakeClock) -> None:
    ahead = FakeClock(clock.now_us())
    ahead.advance(14)
    assert health_at(Path(keeper.directory.path), ahead, max_lag_s=0).is_healthy


def test_a_consumer_that_does_not_ask_for_messages_is_stuck_and_one_that_works_on_some_is_not(
    keeper: Keeper, clock: FakeClock
) -> None:
    path = Path(keeper.directory.path)
    clock.advance(61)
    beaten(path, clock)
    found = health_at(path, clock)
    assert kinds(found) == ["stuck"]
    assert "has nothing in hand and has not asked for messages for 61 s" in texts(found)["alive"]
    enqueue(path, clock)
    batch = keeper.claim()
    clock.advance(3600)
    beaten(path, clock)
    assert health_at(path, clock).is_healthy, "a handler may take long"
    keeper.ack(batch)
    assert kinds(health_at(path, clock)) == ["stuck"]


@pytest.mark.parametrize("beats", [True, False])
def test_a_keeper_without_signs_of_life_is_not_called_alive_and_not_stuck(
    wheel_dir: Path, clock: FakeClock, beats: bool
) -> None:
    """Without its thread a keeper writes none, as one of an older version."""
    with Keeper(wheel_dir, clock=clock, background=beats):
        expected = "it came around" if beats else "not known"
        eventually(lambda: texts(health_at(wheel_dir, clock))["alive"].startswith(expected))
        assert health_at(wheel_dir, clock).is_healthy


def test_a_keeper_that_was_stopped_is_found_at_once_and_on_another_namespace_by_its_silence(fw: Fw) -> None:
    process = fw.start("run")
    with stopped(process):
        eventually(lambda: fw("health", code=0) if _runs(fw) else None)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: "T" in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0])
        result = fw("health", "--json", code=21)
        assert "was stopped" in result.error["message"]
        process.send_signal(signal.SIGCONT)
        eventually(lambda: check_health(fw.wheel).is_healthy)
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0


def _runs(fw: Fw) -> bool:
    with Wheel(fw.wheel) as wheel:
        return wheel.has_keeper()


def test_a_keeper_in_another_pid_namespace_is_seen_and_found_silent(fw: Fw) -> None:
    command = ["unshare", "-p", "-f", "--kill-child", "--mount-proc", sys.executable, "-m", "cli", "-C", str(fw.wheel)]
    if subprocess.run([*command[:5], "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may make no pid namespace: root may")
    process = subprocess.Popen([*command, "run"], cwd=REPO, stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: "came around" in texts(check_health(fw.wheel)).get("alive", ""))
        found = check_health(fw.wheel)
        assert found.is_healthy
        assert "of another pid namespace" in texts(found)["keeper"]
        # It was stopped, or hangs: both look the same from here.
        assert kinds(health_at(fw.wheel, Ahead(100))) == ["stuck"]
    finally:
        process.kill()  # unshare blocks SIGTERM while it waits; the kernel ends its child with it
        process.wait()


def test_a_scheduler_that_fires_or_stands_by_comes_around_and_one_whose_engine_hangs_does_not(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, standby, hung = Scheduler(wheel_dir), Scheduler(wheel_dir), Scheduler(wheel_dir.with_name("hung"))
    assert (scheduler.state, scheduler.stalled_s()) == ("stopped", 0.0)
    with scheduler:
        started_s = time.monotonic()
        eventually(lambda: scheduler.state == "firing")
        with standby:
            eventually(lambda: standby.state == "standby")
            for one in (scheduler, standby):  # it came around a while after the start
                eventually(lambda one=one: one.stalled_s() < time.monotonic() - started_s - 0.1, 20)
    assert (scheduler.state, standby.state) == ("stopped", "stopped")
    let_go = threading.Event()
    monkeypatch.setattr("filewheel.scheduling.dispatcher.Dispatcher.wait", lambda self: let_go.wait())
    with hung:
        eventually(lambda: hung.stalled_s() > 0.5)
        let_go.set()
    assert_whole(wheel_dir.with_name("hung"))


# -- what waits -----------------------------------------------------------------------------------------------


def test_a_due_message_that_waits_too_long_is_late_and_its_id_is_named(keeper: Keeper, clock: FakeClock) -> None:
    path = Path(keeper.directory.path)
    enqueue(path, clock, b"later", delay=10_000)
    enqueue(path, clock)
    clock.advance(60)
    found = health_at(path, clock, max_lag_s=60)
    assert "late" not in kinds(found)
    assert found.lag_us == 60_000_000
    clock.advance(1)
    found = health_at(path, clock, max_lag_s=60)
    assert "late" in kinds(found)
    with Wheel(path) as wheel:
        assert str(wheel.peek()[0].id) in texts(found)["lag"]


def test_a_message_that_is_worked_on_does_not_wait_and_one_that_is_only_claimed_does(
    keeper: Keeper, clock: FakeClock
) -> None:
    path = Path(keeper.directory.path)
    enqueue(path, clock, b"runs")
    batch = keeper.claim()
    clock.advance(3600)
    assert "late" not in kinds(health_at(path, clock))
    enqueue(path, clock, b"claimed")
    claimed = keeper.claim(begun=False)
    clock.advance(61)
    assert "late" in kinds(health_at(path, clock))
    keeper.begin(claimed)
    assert "late" not in kinds(health_at(path, clock))
    keeper.ack(batch)
    keeper.ack(claimed)


@pytest.mark.damages
def test_a_paused_message_is_not_late_and_a_damaged_list_of_pauses_is_damage(keeper: Keeper, clock: FakeClock) -> None:
    path = Path(keeper.directory.path)
    enqueue(path, clock)
    with Wheel(path, clock=clock) as wheel:
        wheel.pause(topic="*", why="a test")
    clock.advance(100)
    assert not keeper.claim()
    beaten(path, clock)
    found = health_at(path, clock)
    assert (kinds(found), found.lag_us) == ([], 0)
    assert texts(found)["paused"] == "paused, and not judged: topic *"
    (path / "paused.json").write_bytes(b"{}")
    assert kinds(health_at(path, clock)) == ["damaged", "late"]


def test_dead_letters_do_not_wait(keeper: Keeper, clock: FakeClock) -> None:
    enqueue(Path(keeper.directory.path), clock)
    for message in keeper.claim():
        keeper.bury(message, reason="for good")
    clock.advance(3600)
    assert health_at(Path(keeper.directory.path), clock).lag_us == 0


def test_more_dead_letters_than_allowed_are_trouble_and_only_on_request(keeper: Keeper, clock: FakeClock) -> None:
    path = Path(keeper.directory.path)
    assert health_at(path, clock, max_dead=0).is_healthy
    for payload in (b"x", b"y"):
        enqueue(path, clock, payload)
    for message in keeper.claim():
        keeper.bury(message, reason="for good")
    assert health_at(path, clock).is_healthy
    assert "dead" not in texts(health_at(path, clock))
    few = health_at(path, clock, max_dead=2)
    assert few.is_healthy
    assert texts(few)["dead"] == "2 dead letters"
    many = health_at(path, clock, max_dead=1)
    assert kinds(many) == ["dead"]
    assert texts(many)["dead"] == "more than 1 dead letter"
    assert kinds(health_at(path, clock, max_dead=0)) == ["dead"]
    with pytest.raises(BadArgument, match="max_dead"):
        health_at(path, clock, max_dead=-1)


# -- files and room -------------------------------------------------------------------------------------------


@pytest.mark.damages
def test_a_missing_file_and_a_damaged_checkpoint_are_damage(fw: Fw) -> None:
    fw.enqueue("--in", "50d", "far")
    fw.deal()
    assert fw("health", "--no-keeper").json[0]["healthy"]
    (lap,) = fw.wheel.glob("laps/*.lap")
    lap.rename(lap.with_suffix(".away"))
    result = fw("health", "--no-keeper", "--json", code=12)
    assert f"laps/{lap.name}" in result.error["message"]
    lap.with_suffix(".away").rename(lap)
    (fw.wheel / "checkpoint").write_bytes(b"nothing")
    result = fw("health", "--no-keeper", "--json", code=12)
    assert "checkpoint" in result.error["message"]


def test_a_disk_with_too_little_room_is_full(fw: Fw) -> None:
    result = fw("health", "--no-keeper", "--min-free", "9999999G", "--json", code=23)
    assert "MiB are free" in result.error["message"]
    assert fw("health", "--no-keeper", "--min-free", "0").json[0]["kind"] is None


# -- sets -----------------------------------------------------------------------------------------------------


def test_a_backup_fires_nothing_and_its_primary_does(fw: Fw, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    add_backup(fw.wheel, backup, mode="ship")
    assert fw("health", "--no-keeper").json[0]["healthy"]
    found = check_health(backup, needs_keeper=False)
    assert kinds(found) == ["fenced"]
    assert [check.name for check in found.checks] == ["role", "room"], "nothing waits where nothing fires"
    assert Fw(backup)("health", code=14).json[0]["kind"] == "fenced"
    assert_whole(backup)


def test_a_primary_that_missed_a_promotion_is_fenced_before_it_knows(fw: Fw, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    add_backup(fw.wheel, backup, mode="ship")
    with Replicator(fw.wheel) as replicator:
        replicator.once()
    away = fw.wheel.with_suffix(".away")
    fw.wheel.rename(away)
    promote(backup)
    away.rename(fw.wheel)
    found = check_health(fw.wheel, needs_keeper=False)
    assert kinds(found) == ["fenced"]
    assert f"{backup} was promoted in its place" in texts(found)["role"]
    assert check_health(backup, needs_keeper=False).is_healthy
    assert_whole(backup)


def test_backups_count_only_on_request_and_must_be_followed(fw: Fw, tmp_path: Path) -> None:
    assert kinds(check_health(fw.wheel, needs_keeper=False, backups=True)) == ["backups"], "it has none"
    backup = tmp_path / "backup"
    add_backup(fw.wheel, backup, mode="ship")
    result = fw("health", "--no-keeper", "--backups", "--json", code=24)
    assert f"{backup}: " in result.error["message"]
    with Replicator(fw.wheel) as replicator:
        thread = threading.Thread(target=replicator.run)
        thread.start()
        eventually(lambda: check_health(fw.wheel, needs_keeper=False, backups=True).is_healthy)
        replicator.stop()
        thread.join()
    assert fw("health", "--no-keeper").json[0]["healthy"]
    assert_whole(backup)


# -- the command ----------------------------------------------------------------------------------------------


def test_the_worst_trouble_makes_the_exit_code_and_all_are_in_the_json(fw: Fw) -> None:
    fw.enqueue("--at", "2001-01-01T00:00Z", "x")
    found = fw("health", "--min-free", "9999999G", code=20)
    (fields,) = found.json
    assert [check["kind"] for check in fields["checks"] if not check["ok"]] == ["no-keeper", "late", "nearly-full"]
    assert (fields["healthy"], fields["kind"]) == (False, "no-keeper")
    assert fields["lag_s"] > 7e8
    assert "Try: start `filewheel run`" in found.err
    assert fw("health", "--no-keeper", code=22).json[0]["kind"] == "late"


def test_too_many_dead_letters_have_an_exit_code_of_their_own(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    fw("run", "--once", "--retries", "0", "--", "false", code=3)
    assert "a message has died" in fw("health", "--no-keeper", "--max-dead", "0", code=25).err
    fw("health", "--no-keeper", "--max-dead", "1")
    fw("dead", "drop", "--all", "--yes")
    fw("health", "--no-keeper", "--max-dead", "0")


def test_quiet_prints_the_reason_only_and_a_healthy_wheel_nothing(fw: Fw) -> None:
    assert (fw("health", "--no-keeper", "-q").out, fw("health", "--no-keeper", "-q").err) == ("", "")
    result = fw("health", "-q", code=20)
    assert result.out == ""
    assert "no keeper runs" in result.err


def test_the_help_lists_the_exit_codes_of_health(fw: Fw) -> None:
    text = fw("health", "--help").out
    for code in (10, 12, 13, 14, 20, 21, 22, 23, 24):
        assert str(code) in text
        assert code in MEANING


def test_what_is_no_wheel_and_a_wrong_argument_are_errors(fw: Fw, tmp_path: Path) -> None:
    assert Fw(tmp_path / "none")("health", "--json", code=10).error["error"] == "no-wheel"
    with pytest.raises(NoWheel):
        check_health(tmp_path / "none")
    for wrong in ({"max_lag_s": -1}, {"min_free_bytes": 0.5}, {"needs_keeper": "no"}, {"backups": 1}):
        with pytest.raises(BadArgument, match=next(iter(wrong))):
            check_health(fw.wheel, **wrong)  # type: ignore[arg-type]
    assert fw("health", "--max-lag", "soon", code=2).out == ""


def test_a_look_at_the_health_changes_no_byte_and_needs_no_right_to_write(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    before = {p: p.stat() for p in sorted(fw.wheel.rglob("*"))}
    fw("health", code=20)
    after = {p: p.stat() for p in sorted(fw.wheel.rglob("*"))}
    assert [(p, s.st_size, s.st_mtime_ns) for p, s in before.items()] == [
        (p, s.st_size, s.st_mtime_ns) for p, s in after.items()
    ]


def test_the_fields_are_json(keeper: Keeper, clock: FakeClock) -> None:
    fields = health_at(Path(keeper.directory.path), clock).fields()
    assert json.loads(json.dumps(fields)) == fields
