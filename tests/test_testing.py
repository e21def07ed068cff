"""filewheel.testing: time that passes without waiting, and everything that becomes due in its order."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Cron,
    GiveUp,
    Keeper,
    Locked,
    NoWheel,
    Retry,
    RetryLater,
    Scheduler,
    Wheel,
    current_job,
)
from filewheel.testing import FakeClock, TooManySteps, advance, redirected, run_until
from tests.aio.support import our_threads
from tests.conftest import assert_whole
from tests.support import eventually

Log = list[tuple[str, float]]


@pytest.fixture(autouse=True)
def begun_without_threads() -> None:
    """Let the threads end that earlier tests of this process left to a collection."""
    gc.collect()
    eventually(lambda: not our_threads())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.wheel"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def note(clock: FakeClock, log: Log) -> Callable[[str], None]:
    """Writes down what was called, and at which second."""
    start = clock.now
    return lambda what: log.append((what, (clock.now - start).total_seconds()))


# -- the clock -------------------------------------------------------------------------------------------------


def test_a_fake_clock_starts_where_it_is_told_and_moves_when_it_is_told() -> None:
    clock = FakeClock(datetime(2027, 3, 28, 0, 30, tzinfo=UTC))
    assert clock.now_us() == 1_806_193_800_000_000
    steady = clock.steady_us()
    clock.advance(1.5)
    clock.advance(timedelta(hours=1))
    assert clock.now == datetime(2027, 3, 28, 1, 30, 1, 500_000, tzinfo=UTC)
    assert clock.steady_us() - steady == 3_601_500_000
    assert repr(clock) == "<FakeClock 2027-03-28T01:30:01.500000+00:00>"
    assert FakeClock().now.strftime("%a %d %b %Y %H:%M") == "Mon 01 Jan 2029 00:00"


def test_a_clock_that_is_put_back_shows_the_past_though_no_time_passed() -> None:
    clock = FakeClock()
    clock.set(datetime(2029, 1, 2, tzinfo=UTC))
    steady = clock.steady_us()
    clock.set(datetime(2029, 1, 1, tzinfo=UTC))
    assert clock.now == datetime(2029, 1, 1, tzinfo=UTC)
    assert clock.steady_us() == steady
    with pytest.raises(BadArgument, match="backwards"):
        clock.advance(-1)
    with pytest.raises(BadArgument, match="time zone"):
        clock.set(datetime(2029, 1, 1))
    with pytest.raises(BadArgument, match="time zone"):
        FakeClock(datetime(2029, 1, 1))


def test_a_wheel_and_a_keeper_go_by_it(path: Path, clock: FakeClock) -> None:
    with Wheel.create(path, clock=clock) as wheel, Keeper(path, clock=clock) as keeper:
        wheel.enqueue(b"in an hour", delay=3600)
        clock.advance(3599)
        assert not keeper.claim()
        clock.advance(1)
        batch = keeper.claim()
        assert [m.payload for m in batch] == [b"in an hour"]
        keeper.ack(batch)


# -- time that passes ------------------------------------------------------------------------------------------


def test_chains_retries_and_recurring_work_happen_in_their_order(
    path: Path, clock: FakeClock, log: Log, note: Callable[[str], None]
) -> None:
    scheduler = Scheduler(path, clock=clock)

    @scheduler.on()
    def first(then_s: float) -> None:
        note("first")
        second.after(then_s)

    @scheduler.on(retry=Retry(limit=2, delay_s=10, factor=2, jitter=0))
    def second() -> None:
        note(f"second {current_job().attempt}")
        if current_job().attempt < 2:
            raise ValueError

    @scheduler.every(25)
    def tick() -> None:
        note("tick")

    first.after(20, 15)
    assert advance(scheduler, clock, 20) == 1
    assert log == [("first", 20)]
    settled = advance(scheduler, clock, 60)
    assert log == [
        ("first", 20), ("tick", 25), ("second 0", 35), ("second 1", 45), ("tick", 50), ("second 2", 65), ("tick", 75),
    ]  # fmt: skip
    assert settled == 6
    assert clock.now == datetime(2029, 1, 1, 0, 1, 20, tzinfo=UTC)
    scheduler.stop()
    assert our_threads() == []
    assert_whole(path)


def test_a_year_of_a_nightly_report_is_called_by_the_wall_of_its_zone(path: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(path, clock=clock)
    called: list[datetime] = []

    @scheduler.every("30 2 * * *", tz="Europe/Berlin")
    def report() -> None:
        called.append(clock.now)

    run_until(scheduler, clock, datetime(2029, 12, 31, 12, tzinfo=UTC))
    due = Cron("30 2 * * *", "Europe/Berlin").after(FakeClock().now_us())
    assert called[0] == datetime(2029, 1, 1, 1, 30, tzinfo=UTC)
    assert called[0].timestamp() * 1e6 == due
    assert len(called) == 365
    scheduler.stop()


def test_what_is_due_exactly_at_the_end_is_called_and_what_is_due_later_is_not(path: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(path, clock=clock)
    called: list[int] = []

    @scheduler.on()
    def work(number: int) -> None:
        called.append(number)

    for number in (59, 60, 61):
        work.after(number, number)
    work.enqueue(0)
    until = clock.now + timedelta(seconds=60)
    assert run_until(scheduler, clock, until) == 3
    assert called == [0, 59, 60]
    assert clock.now == until
    assert run_until(scheduler, clock, until) == 0
    with pytest.raises(BadArgument, match="past"):
        run_until(scheduler, clock, until - timedelta(seconds=1))
    with pytest.raises(BadArgument, match="backwards"):
        advance(scheduler, clock, -1)
    scheduler.stop()


def test_handlers_that_put_off_give_up_or_are_unknown_count_as_settled(path: Path, clock: FakeClock, log: Log) -> None:
    scheduler = Scheduler(path, clock=clock, unknown="bury")

    @scheduler.on()
    def later() -> None:
        if current_job().attempt == 0:
            raise RetryLater(timedelta(days=3))

    @scheduler.on()
    def never() -> None:
        raise GiveUp("no such user")

    later.enqueue()
    never.enqueue()
    scheduler.enqueue("unheard of")
    assert advance(scheduler, clock, 60) == 3
    assert advance(scheduler, clock, timedelta(days=3)) == 1
    with Wheel(path) as wheel:
        assert sorted(m.topic for m in wheel.list(dead=True)) == ["never", "unheard of"]
    scheduler.stop()


def test_a_rate_is_kept_to_by_the_fake_clock(
    path: Path, clock: FakeClock, log: Log, note: Callable[[str], None]
) -> None:
    scheduler = Scheduler(path, clock=clock)

    @scheduler.on(rate_per_s=0.5)
    def slow() -> None:
        note("slow")

    for _ in range(4):
        slow.enqueue()
    assert advance(scheduler, clock, 4) == 3
    assert log == [("slow", 0), ("slow", 2), ("slow", 4)]
    assert advance(scheduler, clock, 2) == 1
    scheduler.stop()


def test_a_handler_that_enqueues_itself_for_ever_is_told_of(path: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(path, clock=clock)

    @scheduler.on()
    def again(delay: float) -> None:
        again.after(delay, delay)

    again.enqueue(0)
    with pytest.raises(TooManySteps, match="50 steps.*enqueues itself"):
        advance(scheduler, clock, 60, steps_max=50)
    assert scheduler.cancel(next(iter(scheduler.wheel.list())).id)
    again.enqueue(1)
    with pytest.raises(TooManySteps, match="50 steps led to 2029-01-01 00:00:25"):
        advance(scheduler, clock, 60, steps_max=50)
    assert advance(scheduler, clock, 60, steps_max=200) > 30
    scheduler.stop()
    assert_whole(path)


def test_the_clock_must_be_the_schedulers_own_and_the_scheduler_at_rest(path: Path, clock: FakeClock) -> None:
    with pytest.raises(BadArgument, match="another clock"):
        advance(Scheduler(path), clock, 1)
    scheduler = Scheduler(path, clock=clock)
    with scheduler:
        assert scheduler.wait_until_keeper(120)
        with pytest.raises(BadArgument, match="was started"):
            advance(scheduler, clock, 1)
        with pytest.raises(Locked):
            advance(Scheduler(path, clock=clock), clock, 1)


def test_a_handler_that_moves_the_clock_itself_is_followed(path: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(path, clock=clock)

    @scheduler.on()
    def long() -> None:
        clock.advance(100)

    long.enqueue()
    assert advance(scheduler, clock, 10) == 1
    assert clock.now == FakeClock().now + timedelta(seconds=100)
    scheduler.stop()


def test_an_async_scheduler_is_awaited_and_calls_coroutines_in_that_loop(
    path: Path, clock: FakeClock, log: Log, note: Callable[[str], None]
) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path, clock=clock)
        here = asyncio.get_running_loop()

        @scheduler.on()
        async def first() -> None:
            assert asyncio.get_running_loop() is here
            note("first")
            with current_job().transaction():
                await second.after(3600)

        @scheduler.on()
        def second() -> None:
            note("second")

        await first.after(60)
        assert await advance(scheduler, clock, 60) == 1
        assert await run_until(scheduler, clock, clock.now + timedelta(days=1)) == 1
        with pytest.raises(BadArgument, match="another clock"):
            await advance(AsyncScheduler(path), clock, 1)
        async with scheduler:
            with pytest.raises(BadArgument, match="was started"):
                await advance(scheduler, clock, 1)

    asyncio.run(main())
    assert log == [("first", 60), ("second", 3660)]
    assert our_threads() == []


# -- redirected -----------------------------------------------------------------------------------------------


def test_a_scheduler_of_a_module_is_redirected_for_a_block_and_is_then_as_it_was(tmp_path: Path) -> None:
    program = Scheduler(tmp_path / "nowhere" / "jobs.wheel", create=False)
    called: list[str] = []

    @program.on()
    def remind(name: str) -> None:
        called.append(name)

    @program.every("0 9 * * *")
    def report() -> None:
        called.append("report")

    before = vars(program).copy()
    clock = FakeClock()
    with redirected(program, tmp_path / "test.wheel", clock) as scheduler:
        assert scheduler is program
        remind.after(3600, "ann")
        advance(program, clock, 10 * 3600)
        assert called == ["ann", "report"]
        assert program.path == str(tmp_path / "test.wheel")
    assert vars(program) == before
    with pytest.raises(NoWheel):
        remind.after(0, "bob")
    assert_whole(tmp_path / "test.wheel")


def test_a_scheduler_that_was_started_is_not_redirected(wheel_dir: Path, tmp_path: Path) -> None:
    with Scheduler(wheel_dir) as scheduler, pytest.raises(BadArgument, match="was started"):
        with redirected(scheduler, tmp_path / "other", FakeClock()):
            pass
    assert not (tmp_path / "other").exists()


def test_an_error_in_the_block_gives_the_scheduler_back(wheel_dir: Path, tmp_path: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    with pytest.raises(ZeroDivisionError), redirected(scheduler, tmp_path / "other", FakeClock()):
        raise ZeroDivisionError
    assert scheduler.path == str(wheel_dir)


def test_an_async_scheduler_is_redirected_and_its_coroutines_run_in_the_loop_of_the_test(tmp_path: Path) -> None:
    program = AsyncScheduler(tmp_path / "nowhere" / "jobs.wheel", create=False)
    called: list[str] = []

    @program.on()
    async def remind(name: str) -> None:
        called.append(name)

    before = vars(program).copy()
    clock = FakeClock()

    async def test() -> None:
        await remind.after(60, "ann")
        await advance(program, clock, 60)
        await program.stop()

    with redirected(program, tmp_path / "test.wheel", clock):
        asyncio.run(test())
    assert called == ["ann"]
    assert vars(program) == before
    assert_whole(tmp_path / "test.wheel")
