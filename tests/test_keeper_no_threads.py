"""A process that may start no more threads: each call works all the same, or raises an error that says what to do."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from filewheel import AsyncWheel, DiskError, Keeper, Scheduler, TooFewCopies, Wheel
from filewheel.disk.checkpoint import Position
from filewheel.disk.disk import SYSTEM
from filewheel.journal.copies import RETRY_US
from filewheel.laps.tidy import Tidier
from filewheel.sets.promote import promote
from filewheel.sets.standby import Standby
from tests.conftest import assert_whole
from tests.journal.support_mirror import WheelSet
from tests.sets.support_sets import Place, place, role_of
from tests.support import FaultyDisk

__all__ = ["place"]


@contextmanager
def no_threads(*names: str, times: int = 1 << 30) -> Iterator[None]:
    """Refuse threads of the library meanwhile, as Python does at the limit: those of these names, or all."""
    start = threading.Thread.start
    left = [times]

    def refuse(self: threading.Thread) -> None:
        if left[0] > 0 and self.name.startswith(names or "filewheel"):
            left[0] -= 1
            raise RuntimeError("can't start new thread")
        start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_an_enqueue_that_was_to_be_flushed_later_is_flushed_at_once_and_the_next_one_later(wheel_dir: Path) -> None:
    flushed: list[str] = []
    disk = FaultyDisk(str(wheel_dir), lambda kind, name: flushed.append(name) if kind == "fdatasync" else None)
    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: disk)) as wheel:
        for _ in range(2):
            flushed.clear()
            with no_threads():
                wheel.enqueue(b"x", delay=60, sync=1000)
            assert any(name.startswith("journal/") for name in flushed)
        flushed.clear()
        wheel.enqueue(b"y", delay=60, sync=1000)
        assert not flushed


def test_a_mirror_without_a_thread_is_stale_in_every_roster_before_anything_is_confirmed(tmp_path: Path) -> None:
    wheels = WheelSet(tmp_path, on_failure="stale")
    with Wheel(wheels.paths[0], env=SYSTEM.using(disk=wheels.disk), clock=wheels.clock) as wheel, no_threads():
        assert wheel.enqueue(b"x", delay=60, sync="always").copies == 1
    assert [wheels.roster(n).members[0].state for n in (0, 1)] == ["stale", "stale"]
    for path in wheels.paths:
        assert_whole(path)


def test_a_mirror_without_a_thread_that_must_not_be_missing_is_tried_again(tmp_path: Path) -> None:
    wheels = WheelSet(tmp_path, on_failure="refuse")
    with Wheel(wheels.paths[0], env=SYSTEM.using(disk=wheels.disk), clock=wheels.clock) as wheel:
        with no_threads(), pytest.raises(TooFewCopies, match="no thread can be started"):
            wheel.enqueue(b"x", delay=60)
        wheels.clock.run_us += RETRY_US
        assert wheel.enqueue(b"y", delay=60).copies == 2
    for path in wheels.paths:
        assert_whole(path)


def test_a_keeper_without_its_thread_is_an_error_and_lets_the_next_one_in(wheel_dir: Path) -> None:
    with no_threads(), pytest.raises(DiskError, match="ulimit -u") as raised:
        Keeper(wheel_dir)
    assert raised.value.errno == errno.EAGAIN
    Keeper(wheel_dir, wait=False).close()


def test_a_wheel_for_asyncio_without_its_thread_is_an_error_and_can_be_opened_later(wheel_dir: Path) -> None:
    async def main() -> None:
        wheel = AsyncWheel(wheel_dir)
        with no_threads(), pytest.raises(DiskError, match="no thread can be started"):
            await wheel.open()
        async with wheel:
            await wheel.enqueue(b"x", delay=60)

    asyncio.run(main())


def test_a_segment_that_ends_without_a_thread_to_tidy_is_no_error_and_the_next_tidies(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        tidier = Tidier(wheel._dir)
        with no_threads():
            tidier.segment_ended("w", Position(1, 0, 0), False)
        assert tidier._thread is None
        tidier.segment_ended("w", Position(2, 0, 0), False)
        tidier.join()
        assert not tidier._again


def test_a_promotion_without_threads_is_an_error_and_promotes_later(place: Place) -> None:
    place.make_set(place.b)
    with no_threads(), pytest.raises(DiskError, match="no thread can be started"):
        promote(place.b, env=SYSTEM.using(clock=place.clock))
    assert role_of(place.b) == "backup"
    done = promote(place.b, env=SYSTEM.using(clock=place.clock))
    assert done.caught_up
    assert not done.unreachable


def test_a_standby_without_threads_does_not_take_the_primary_for_lost(place: Place) -> None:
    place.make_set(place.b)
    standby = Standby(place.b)
    with no_threads():
        assert standby._look(standby._roster()) == ""


def test_a_scheduler_without_its_thread_is_an_error_and_can_be_started_later(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    with no_threads(), pytest.raises(DiskError, match="no thread can be started"):
        scheduler.start()
    scheduler.start()
    assert scheduler.wait_until_keeper(120)
    scheduler.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_for_which_there_is_no_thread_is_fired_when_there_is_one(wheel_dir: Path, is_async: bool) -> None:
    scheduler = Scheduler(wheel_dir, threads=1)
    done = threading.Event()
    if is_async:

        @scheduler.on("x")
        async def later() -> None:
            done.set()
    else:

        @scheduler.on("x")
        def now() -> None:
            done.set()

    with no_threads("filewheel-1", "filewheel-loop", times=1):
        scheduler.start()
        scheduler.enqueue("x")
        assert done.wait(120)
        scheduler.stop()


def test_calls_go_on_in_the_threads_that_there_are(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=3)
    done = threading.Semaphore(0)
    scheduler.on("x")(lambda: done.release())
    with no_threads("filewheel-2", "filewheel-3"):
        for _ in range(5):
            scheduler.enqueue("x")
        scheduler.start()
        for _ in range(5):
            assert done.acquire(timeout=120)
        scheduler.stop()
