"""A scheduler whose wheel is a backup, or becomes one: it ends with the error, and begins nothing more."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from filewheel import AsyncScheduler, Fenced, Keeper, Retry, Scheduler, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.keeper_lock import KeeperLock
from tests.scheduling.stage import make, stage
from tests.support import FakeClock, eventually
from tests.support_set import make_set, promote


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other.wheel"


def running(scheduler: Scheduler) -> tuple[threading.Thread, list[BaseException]]:
    """Run a scheduler in a thread; return that, and what `run` raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            scheduler.run()
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def assert_fenced(thread: threading.Thread, raised: list[BaseException]) -> None:
    thread.join(60)
    assert [type(exc) for exc in raised] == [Fenced]


def assert_lock_is_free(path: Path) -> None:
    owner = KeeperLock(open_directory(path, write=True))
    owner.take("keeper", wait=False)
    owner.release()


def pending(path: Path) -> list[str]:
    with Wheel(path) as wheel:
        return sorted(m.topic for m in wheel.list())


def test_on_a_backup_it_neither_runs_nor_drains(wheel_dir: Path, other: Path) -> None:
    make_set(other, wheel_dir)
    scheduler = Scheduler(wheel_dir, processes=1)
    for call in (scheduler.run, scheduler.drain):
        with pytest.raises(Fenced):
            call()
    scheduler.stop()
    assert_lock_is_free(wheel_dir)


def test_who_waits_for_its_turn_to_fire_is_told_that_it_never_comes(wheel_dir: Path, other: Path) -> None:
    make_set(other, wheel_dir)
    with Scheduler(wheel_dir, processes=1) as scheduler, pytest.raises(Fenced):
        scheduler.wait_until_keeper()

    async def main() -> None:
        async with AsyncScheduler(wheel_dir, processes=1) as scheduler:
            with pytest.raises(Fenced):
                await scheduler.wait_until_keeper()

    asyncio.run(main())


def test_in_an_event_loop_neither(wheel_dir: Path, other: Path) -> None:
    make_set(other, wheel_dir)
    scheduler = AsyncScheduler(wheel_dir, processes=1)

    async def main() -> None:
        for call in (scheduler.run, scheduler.drain):
            with pytest.raises(Fenced):
                await call()
        await scheduler.stop()

    asyncio.run(main())
    assert_lock_is_free(wheel_dir)


def test_a_promotion_ends_it_when_what_runs_has_ended_and_was_acknowledged(
    wheel_dir: Path, other: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "filewheel.scheduling")
    make_set(wheel_dir, other)
    scheduler = Scheduler(wheel_dir, threads=1, processes=1, in_flight=2)
    begun, end = threading.Event(), threading.Event()
    calls: list[str] = []

    @scheduler.on()
    def slow() -> None:
        calls.append("slow")
        begun.set()
        assert end.wait(60)

    @scheduler.on()
    def behind() -> None:
        calls.append("behind")

    slow.enqueue()
    behind.after(0.001)
    thread, raised = running(scheduler)
    assert begun.wait(60)
    promote(other)
    eventually(lambda: "calls have" in caplog.text)  # seen, though there is no room to claim
    end.set()
    assert_fenced(thread, raised)
    assert calls == ["slow"]
    assert pending(wheel_dir) == ["behind"]
    assert_lock_is_free(wheel_dir)


def test_a_standby_ends_as_well_though_the_lock_is_held(wheel_dir: Path, other: Path) -> None:
    make_set(wheel_dir, other)
    with Keeper(wheel_dir):
        standby = Scheduler(wheel_dir, threads=1, processes=1)
        thread, raised = running(standby)
        promote(other)
        assert_fenced(thread, raised)


def test_an_async_schedulers_run_ends_with_the_error(wheel_dir: Path, other: Path) -> None:
    make_set(wheel_dir, other)
    scheduler = AsyncScheduler(wheel_dir, threads=1, processes=1)

    async def main() -> None:
        task = asyncio.create_task(scheduler.run())
        while not scheduler._is_firing:
            await asyncio.sleep(0.01)
        assert await scheduler.wait_until_keeper(60)
        promote(other)
        with pytest.raises(Fenced):
            await task

    asyncio.run(main())
    assert_lock_is_free(wheel_dir)


@pytest.mark.parametrize("who", ["the dispatcher", "the thread that ended the call before"])
def test_what_waits_for_its_turn_is_not_begun_after_a_promotion(
    wheel_dir: Path, other: Path, clock: FakeClock, who: str
) -> None:
    make_set(wheel_dir, other)
    scheduler = make(wheel_dir, clock)

    @scheduler.on(concurrency=1)
    def one() -> None: ...

    for _ in range(3):
        one.enqueue()
    with stage(wheel_dir, clock, scheduler) as play:
        play.step()
        assert play.running == ["one"]
        promote(other)
        play.runner.starts_anywhere = who != "the dispatcher"
        play.runner.end()
        assert len(play.runner.begun) == 1
        with pytest.raises(Fenced):
            play.dispatcher.step()
        assert len(play.runner.begun) == 1
        play.dispatcher.settle_all()
    scheduler.stop()
    assert pending(wheel_dir) == ["one", "one"]


def test_with_no_room_to_claim_it_looks_all_the_same(wheel_dir: Path, other: Path, clock: FakeClock) -> None:
    make_set(wheel_dir, other)
    scheduler = make(wheel_dir, clock, in_flight=1)

    @scheduler.on()
    def one() -> None: ...

    for _ in range(2):
        one.enqueue()
    with stage(wheel_dir, clock, scheduler) as play:
        play.dispatcher.step()
        promote(other)
        play.dispatcher.step()
        clock.advance(0.51)
        with pytest.raises(Fenced):
            play.dispatcher.step()
    scheduler.stop()


def test_a_call_that_failed_is_left_to_the_new_primary(wheel_dir: Path, other: Path, clock: FakeClock) -> None:
    make_set(wheel_dir, other)
    scheduler = make(wheel_dir, clock)

    @scheduler.on(retry=Retry(limit=3, delay_s=1))
    def fails() -> None:
        raise ZeroDivisionError

    @scheduler.on()
    def works() -> None: ...

    waits = {fails.enqueue(), works.enqueue()}
    with stage(wheel_dir, clock, scheduler) as play:
        play.step()
        promote(other)
        play.runner.end()
        with pytest.raises(Fenced):
            play.keeper.check_may_fire()
        assert play.dispatcher.step(fire=False)
        assert play.dispatcher.claimed == 1
    scheduler.stop()
    with Wheel(wheel_dir) as wheel:
        (left,) = wheel.list()
    assert left.topic == "fails"
    assert left.id in waits
