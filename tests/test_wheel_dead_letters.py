"""Dead letters in Python: found by topic, time and error; revived many at once; dropped for their age."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncKeeper,
    AsyncWheel,
    BadArgument,
    DiskError,
    Keeper,
    KeyHeld,
    Message,
    MessageId,
    NotFound,
    Wheel,
)
from filewheel.disk import locks
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.firing import old_dead
from filewheel.message import US_PER_S
from tests.conftest import assert_whole
from tests.support import FakeClock, FaultyDisk

HOUR = 3600.0


@pytest.fixture
def timed(wheel_dir: Path, clock: FakeClock) -> Iterator[Wheel]:
    with Wheel(wheel_dir, clock=clock) as wheel:
        yield wheel


def bury(wheel: Wheel, clock: FakeClock, *names: str, reason: str = "no", **options: Any) -> list[MessageId]:
    """Enqueue messages with these topics, and bury each an hour after the one before."""
    found = []
    for name in names:
        wheel.enqueue(name.encode(), topic=name, **options)
        with Keeper(wheel.path, clock=clock, background=False) as keeper:
            (message,) = keeper.claim()
            dead = keeper.bury(message, reason=f"{reason} {name}")
            assert dead is not None
            found.append(dead)
        clock.advance(HOUR)
    return found


def topics(messages: Iterator[Message]) -> list[str]:
    return [message.topic for message in messages]


def test_dead_letters_are_found_by_topic_time_of_death_and_text_of_the_reason(timed: Wheel, clock: FakeClock) -> None:
    start_s = clock.now_us() / US_PER_S
    bury(timed, clock, "mail", "mail.out", "sms", reason="ConnectionError: No Route")
    bury(timed, clock, "mail", reason="exit code 3")
    timed.enqueue(b"lives", topic="mail")
    assert topics(timed.dead()) == ["mail", "mail.out", "sms", "mail"]
    assert topics(timed.dead(topic="mail")) == ["mail", "mail"]
    assert topics(timed.dead(topic="mail*", limit=2)) == ["mail", "mail.out"]
    assert topics(timed.dead(error="no route")) == ["mail", "mail.out", "sms"]
    assert topics(timed.dead(error="no route", limit=1)) == ["mail"]
    assert topics(timed.dead(after=start_s + HOUR)) == ["mail.out", "sms", "mail"]
    assert topics(timed.dead(before=start_s + HOUR)) == ["mail"]
    assert topics(timed.dead(after=start_s + HOUR, before=start_s + 3 * HOUR)) == ["mail.out", "sms"]
    assert topics(timed.dead(limit=0)) == topics(timed.dead(topic="none")) == topics(timed.dead(after=9e9)) == []
    assert topics(timed.dead(before=-5.0)) == []


@pytest.mark.parametrize(
    "options", [{"limit": -1}, {"topic": 5}, {"error": b"x"}, {"after": "now"}, {"before": True}, {"after": 1e15}]
)
def test_a_wrong_choice_is_refused_at_once(timed: Wheel, options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        timed.dead(**options)


def test_many_are_revived_in_one_frame_and_begin_again(timed: Wheel, clock: FakeClock, wheel_dir: Path) -> None:
    dead = bury(timed, clock, *(f"t{n}" for n in range(5)))
    frames = []
    write = timed._writer().appender.append
    timed._writer().appender.append = lambda body, *counts: frames.append(counts[:2]) or write(body, *counts)  # type: ignore[method-assign,func-returns-value]
    moved, failed = timed.revive(reversed(dead), delay=60)
    assert frames == [(5, 5)]
    assert failed == {}
    assert list(moved) == dead[::-1]
    assert list(timed.dead()) == []
    alive = list(timed.list())
    assert {m.id for m in alive} == set(moved.values())
    assert {m.due_us for m in alive} == {clock.now_us() + 60 * US_PER_S}
    assert all((m.attempt, m.reason) == (0, None) for m in alive)
    clock.advance(60)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        assert sorted(m.topic for m in keeper.claim()) == [f"t{n}" for n in range(5)]


def test_each_that_cannot_be_revived_is_named_and_the_others_are(timed: Wheel, clock: FakeClock) -> None:
    plain, gone = bury(timed, clock, "plain", "gone")
    (keyed,) = bury(timed, clock, "keyed", key="k")
    (free,) = bury(timed, clock, "free", key="free")
    timed.cancel(gone)
    timed.enqueue(b"", key="k", delay=9999)
    moved, failed = timed.revive([keyed, plain, gone, free, plain])
    assert set(moved) == {plain, free}
    assert isinstance(failed.pop(gone), NotFound)
    held = failed.pop(keyed)
    assert isinstance(held, KeyHeld)
    assert held.key == "k"
    assert failed == {}
    assert topics(timed.dead()) == ["keyed"]
    found = timed.get(key="free")
    assert found is not None
    assert found.id == moved[free]


def test_one_is_revived_by_its_id_alone(timed: Wheel, clock: FakeClock) -> None:
    one, other, third = bury(timed, clock, "one", "other", "third")
    assert list(timed.revive(one).moved) == [one]
    assert list(timed.revive(str(other)).moved) == [other]

    async def revive() -> list[MessageId]:
        async with AsyncWheel(timed.path, clock=clock) as wheel:
            return list((await wheel.revive(third)).moved)

    assert asyncio.run(revive()) == [third]


@pytest.mark.parametrize("ids", [5, "x", [5], ["not an id"], [b"short"]])
def test_what_is_no_list_of_ids_is_refused(timed: Wheel, ids: Any) -> None:
    with pytest.raises(BadArgument):
        timed.revive(ids)


def test_a_pending_message_is_not_revived_and_nothing_is_done(timed: Wheel, clock: FakeClock) -> None:
    (dead,) = bury(timed, clock, "t")
    id_ = timed.enqueue(b"", delay=60)
    with pytest.raises(BadArgument, match="not the id of a dead letter"):
        timed.revive([dead, id_])
    assert len(list(timed.dead())) == 1
    with pytest.raises(BadArgument):
        timed.revive([dead], delay=1, at=2.0)


def test_a_revival_waits_for_a_call_that_is_moving_one_of_them(
    timed: Wheel, clock: FakeClock, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dead,) = bury(timed, clock, "t")
    monkeypatch.setattr(locks, "WAIT_S", 0.01)
    directory = open_directory(wheel_dir, write=True)
    with locks.holding_ids(directory, [dead]), pytest.raises(Exception, match="in the middle of moving"):
        timed.revive([dead])
    assert len(list(timed.dead())) == 1
    moved, _ = timed.revive([dead])
    assert list(moved) == [dead]


def test_when_revive_returned_it_is_durable(clock: FakeClock, wheel_dir: Path) -> None:
    flushed: list[str] = []

    def note(kind: str, name: str) -> None:
        if kind == "fdatasync" and name.startswith("journal/"):
            flushed.append(name)

    with Wheel(wheel_dir, clock=clock) as plain:
        dead = bury(plain, clock, "a", "b")
    with Wheel(wheel_dir, env=SYSTEM.using(clock=clock, disk=lambda path: FaultyDisk(path, note))) as wheel:
        wheel.revive(dead[:1], sync="never")
        assert not flushed
        wheel.revive(dead[1:])
        assert flushed


def test_async_wheels_have_both(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        bury(wheel, clock, "a", "b")

    async def main() -> None:
        async with AsyncWheel(wheel_dir, clock=clock) as wheel:
            found = [m async for m in wheel.dead(topic="a")]
            assert [m.topic for m in found] == ["a"]
            moved, failed = await wheel.revive([m.id for m in found])
            assert len(moved) == 1
            assert not failed
            assert [m.topic async for m in wheel.dead(error="NO B")] == ["b"]

    asyncio.run(main())


# -- age ------------------------------------------------------------------------------------------------------


def keeper_of(path: Path, clock: FakeClock, keep_dead_s: float, **options: Any) -> Keeper:
    """Open a keeper whose housekeeper a test steps."""
    return Keeper(path, clock=clock, background=False, keep_dead_s=keep_dead_s, **options)


def look(keeper: Keeper, clock: FakeClock) -> None:
    """Let a minute pass, and the housekeeper look."""
    clock.advance(61)
    keeper._housekeeper.step()


def test_dead_letters_that_are_old_are_dropped_and_the_others_stay(
    timed: Wheel, clock: FakeClock, wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bury(timed, clock, "a", "b", "c")
    timed.enqueue(b"", topic="lives", delay=1)
    told: list[Mapping[MessageId, str]] = []
    with keeper_of(wheel_dir, clock, 2.5 * HOUR, on_dead_dropped=told.append) as keeper, caplog.at_level(logging.INFO):
        look(keeper, clock)
        assert topics(timed.dead()) == ["b", "c"]
        clock.advance(HOUR)
        look(keeper, clock)
    assert topics(timed.dead()) == ["c"]
    assert [list(names.values()) for names in told] == [["a"], ["b"]]
    assert [r.getMessage() for r in caplog.records if "dropped" in r.getMessage()] == [
        f"{wheel_dir}: dropped 1 dead letters that were older than 2h 30m"
    ] * 2
    assert topics(timed.list()) == ["lives"]


def test_by_default_they_are_kept_for_ever(timed: Wheel, clock: FakeClock, wheel_dir: Path) -> None:
    bury(timed, clock, "a")
    clock.advance(50 * 366 * 24 * HOUR)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        look(keeper, clock)
    assert topics(timed.dead()) == ["a"]


def test_many_go_in_bounded_portions(
    timed: Wheel, clock: FakeClock, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_dead, "AT_ONCE", 4)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        for n in range(10):
            timed.enqueue(b"%d" % n)
        for message in keeper.claim():
            keeper.bury(message)
    clock.advance(HOUR)
    with keeper_of(wheel_dir, clock, 60) as keeper:
        left = []
        clock.advance(61)
        for _ in range(4):
            keeper._housekeeper.step()
            clock.advance(0.3)
            left.append(len(list(timed.dead())))
        assert left == [6, 2, 0, 0]


def test_a_clock_that_is_put_forward_makes_none_old(timed: Wheel, clock: FakeClock, wheel_dir: Path) -> None:
    bury(timed, clock, "a")
    with keeper_of(wheel_dir, clock, 30 * 24 * HOUR) as keeper:
        clock.step(365 * 24 * HOUR)
        look(keeper, clock)
        assert topics(timed.dead()) == ["a"]
        clock.advance(31 * 24 * HOUR)
        look(keeper, clock)
        assert topics(timed.dead()) == []


def test_one_that_is_being_revived_is_left_and_one_that_was_is_not_dropped(
    timed: Wheel, clock: FakeClock, wheel_dir: Path
) -> None:
    kept, revived = bury(timed, clock, "kept", "revived")
    while locks.bucket_of(kept) == locks.bucket_of(revived):
        (revived,) = bury(timed, clock, "revived")
        for other in timed.dead(topic="revived"):
            if other.id != revived:
                timed.cancel(other.id)
    directory = open_directory(wheel_dir, write=True)
    with keeper_of(wheel_dir, clock, 60) as keeper:
        with locks.holding_ids(directory, [kept]):
            timed.revive([revived], delay=10 * HOUR)
            look(keeper, clock)
            assert topics(timed.dead()) == ["kept"]
        assert topics(timed.list()) == ["revived"]
        look(keeper, clock)
        assert topics(timed.dead()) == []
        assert topics(timed.list()) == ["revived"]


def test_one_that_is_revived_between_the_look_and_the_lock_lives(
    timed: Wheel, clock: FakeClock, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dead,) = bury(timed, clock, "t")
    take: Callable[..., frozenset[int]] = locks.take_ids
    moved: list[MessageId] = []

    def late(held: locks.HeldLocks, ids: Any, wait_s: float) -> frozenset[int]:
        if not moved:
            moved.append(MessageId(b"\0" * 16))
            moved[0] = timed.revive([dead], delay=10 * HOUR).moved[dead]
        return take(held, ids, wait_s)

    told: list[object] = []
    with keeper_of(wheel_dir, clock, 60, on_dead_dropped=told.append) as keeper:
        monkeypatch.setattr(old_dead.locks, "take_ids", late)
        look(keeper, clock)
    assert [m.id for m in timed.list()] == moved
    assert told == []


def test_a_keeper_that_closes_before_its_first_look_drops_what_is_old(
    timed: Wheel, clock: FakeClock, wheel_dir: Path
) -> None:
    bury(timed, clock, "a", "b")
    keeper_of(wheel_dir, clock, 1.5 * HOUR).close()
    assert topics(timed.dead()) == ["b"]


def test_an_error_of_the_disk_leaves_them_and_firing_goes_on(
    timed: Wheel, clock: FakeClock, wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bury(timed, clock, "a")
    broken: list[bool] = []

    def fail(kind: str, name: str) -> None:
        if broken and name.startswith("ids/"):
            raise OSError(28, "No space left on device")

    env = SYSTEM.using(clock=clock, disk=lambda path: FaultyDisk(path, fail))
    with Keeper(wheel_dir, env=env, background=False, keep_dead_s=60) as keeper:
        broken.append(True)
        look(keeper, clock)
        assert "old dead letters stay" in caplog.text
        assert topics(timed.dead()) == ["a"]
        timed.enqueue(b"x")
        keeper.ack(keeper.claim())
        broken.clear()
        look(keeper, clock)
        assert topics(timed.dead()) == []


@pytest.mark.parametrize("keep", [0, -1, "30d", True, float("nan")])
def test_an_age_that_is_none_is_refused_everywhere(wheel_dir: Path, keep: Any) -> None:
    from filewheel import AsyncScheduler, Scheduler

    for make in (Keeper, AsyncKeeper, Scheduler, AsyncScheduler):
        with pytest.raises(BadArgument, match="keep_dead_s is a number above 0"):
            make(wheel_dir, keep_dead_s=keep)
    made = Scheduler(wheel_dir)
    with pytest.raises(BadArgument):
        made.keep_dead_s = keep
    assert made.keep_dead_s is None


def test_a_scheduler_counts_what_it_dropped(wheel_dir: Path, clock: FakeClock) -> None:
    from filewheel import Retry, Scheduler

    scheduler = Scheduler(wheel_dir, clock=clock, keep_dead_s=HOUR)
    seen = []
    scheduler.on_event(lambda event: seen.append((event.kind, event.handler)), ["dead_dropped"])

    @scheduler.on(retry=Retry(limit=0))
    def broken() -> None:
        raise ValueError

    broken.enqueue()
    scheduler.drain()
    clock.advance(2 * HOUR)
    scheduler.drain()  # a keeper that closes looks once
    assert list(scheduler.wheel.dead()) == []
    assert seen == [("dead_dropped", "broken")]
    assert 'filewheel_dead_dropped_total{handler="broken"} 1' in scheduler.metrics.text()
    scheduler.stop()


def test_a_backup_loses_them_too(tmp_path: Path) -> None:
    from filewheel import Replicator, add_backup

    clock = FakeClock()
    with Wheel.create(tmp_path / "a.wheel", clock=clock) as wheel:
        bury(wheel, clock, "old", "young")
        add_backup(tmp_path / "a.wheel", tmp_path / "b.wheel", mode="ship")
        keeper_of(tmp_path / "a.wheel", clock, 1.5 * HOUR).close()
        Replicator(tmp_path / "a.wheel").once()
        with Wheel(tmp_path / "b.wheel", clock=clock) as backup:
            assert topics(backup.dead()) == ["young"]
    assert_whole(tmp_path / "a.wheel")
    assert_whole(tmp_path / "b.wheel")


def test_a_disk_error_of_a_revival_says_what_was_done(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as plain:
        dead = bury(plain, clock, "a")
    broken: list[bool] = []

    def fail(kind: str, name: str) -> None:
        if broken and kind == "pwrite" and name.startswith("journal/"):
            raise OSError(28, "No space left on device")

    with Wheel(wheel_dir, env=SYSTEM.using(clock=clock, disk=lambda path: FaultyDisk(path, fail))) as wheel:
        broken.append(True)
        with pytest.raises(DiskError):
            wheel.revive(dead)
        broken.clear()
        assert topics(wheel.dead()) == ["a"]
        assert len(wheel.revive(dead).moved) == 1
