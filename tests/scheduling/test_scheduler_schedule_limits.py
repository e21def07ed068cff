"""Schedules with jitter, a start, an end and a count: which occurrences are called, and that nothing counts twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, BadArgument, Every, KeyHeld, Retry, Scheduler, Wheel, schedule_of
from filewheel.message import SCHEDULE, US_PER_S, Message, to_datetime
from filewheel.schedules.definition import ScheduleTerms
from filewheel.testing import FakeClock, advance
from tests.conftest import assert_whole
from tests.support import START_US

START_S = START_US // US_PER_S
"""2027-01-15 08:00:00 UTC, a full hour."""
Make = Callable[..., Scheduler]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(to_datetime(START_US + US_PER_S // 2))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "jobs.wheel"
    assert_whole(tmp_path / "jobs.wheel")


@pytest.fixture
def make(path: Path, clock: FakeClock) -> Iterator[Make]:
    """Make schedulers of one wheel, as one program after the other would."""
    made: list[Scheduler] = []

    def one(**options: Any) -> Scheduler:
        scheduler = Scheduler(path, clock=clock, sync="never", **options)
        made.append(scheduler)
        return scheduler

    yield one
    for scheduler in made:
        scheduler.stop()


def living(path: Path) -> list[Message]:
    with Wheel(path) as wheel:
        return [m for m in wheel.list() if SCHEDULE in m.headers]


def noting(scheduler: Scheduler, clock: FakeClock, **handler: Any) -> list[float]:
    """Register the handler "tick", which notes when it is called, in seconds from the start."""
    calls: list[float] = []

    @scheduler.on("tick", **handler)
    def tick() -> None:
        calls.append((clock.now_us() - START_US) / US_PER_S)

    return calls


# -- start and end ----------------------------------------------------------------------------------------------------


def test_no_occurrence_is_due_before_the_start_or_after_the_end(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", "*/10 * * * *", "tick", start=START_S + 900, end=START_S + 3600)
    advance(scheduler, clock, 2 * 3600)
    assert calls == [1200, 1800, 2400, 3000, 3600]
    assert living(path) == []


def test_an_interval_counts_from_its_start(make: Make, clock: FakeClock) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", 600, "tick", start=to_datetime(START_US + 77 * US_PER_S))
    advance(scheduler, clock, 1300)
    assert calls == [77, 677, 1277]


def test_an_interval_with_a_grid_of_its_own_keeps_it(make: Make, clock: FakeClock) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", Every(600, start_us=5 * US_PER_S), "tick", start=START_S + 700)
    advance(scheduler, clock, 1900)
    assert calls == [1205, 1805]


def test_an_occurrence_that_is_late_beyond_the_end_is_the_last(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", 600, "tick", end=START_S + 1800)
    clock.advance(7200)
    scheduler.drain()
    assert calls == [7200.5]
    assert living(path) == []


def test_a_declared_schedule_that_is_over_is_not_started_and_fires_nothing(make: Make, clock: FakeClock) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.every(600, end=START_S + 1200)(scheduler.handlers[0])
    advance(scheduler, clock, 3600)
    assert calls == [600, 1200]
    scheduler.stop()
    again = make()
    calls = noting(again, clock)
    again.every(600, end=START_S + 1200)(again.handlers[0])
    advance(again, clock, 3600)
    assert calls == []


# -- count ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_count_is_the_number_of_calls_and_a_new_start_of_the_same_does_not_count_again(
    make: Make, clock: FakeClock, path: Path, missed: Any
) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    for _ in range(3):
        first = scheduler.schedule("n", 60, "tick", count=3, missed=missed)
    assert first.kept
    advance(scheduler, clock, 60)
    assert scheduler.schedule("n", 60, "tick", count=3, missed=missed).kept
    (left,) = living(path)
    stored = schedule_of(left)
    assert stored is not None
    assert (stored.count, stored.left) == (3, 2)
    advance(scheduler, clock, 600)
    assert calls == [60, 120, 180]
    assert living(path) == []


@pytest.mark.parametrize(
    ("missed", "calls"),
    [("once", [600.5, 660.0, 720.0]), ("all", [600.5, 600.5, 600.5]), ("skip", [600.5, 660.0, 720.0])],
)
def test_a_time_that_is_missed_and_not_called_does_not_count(
    make: Make, clock: FakeClock, missed: Any, calls: list[float]
) -> None:
    scheduler = make()
    found = noting(scheduler, clock)
    scheduler.schedule("n", 60, "tick", count=3, missed=missed, grace_s=30 if missed != "skip" else 10_000)
    clock.advance(600)
    scheduler.drain()
    advance(scheduler, clock, 600)
    assert found == calls


def test_an_occurrence_that_is_skipped_is_no_call(make: Make, clock: FakeClock) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", 60, "tick", count=2, missed="skip", grace_s=1)
    clock.advance(90)
    scheduler.drain()
    advance(scheduler, clock, 600)
    assert calls == [120, 180]


def test_a_retry_is_no_further_call_and_a_dead_letter_is_one(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    tried: list[float] = []

    @scheduler.on("fails", retry=Retry(limit=2, delay_s=5, factor=1, jitter=0))
    def fails() -> None:
        tried.append((clock.now_us() - START_US) / US_PER_S)
        raise ValueError("broken")

    scheduler.schedule("n", 60, "fails", count=2)
    advance(scheduler, clock, 600)
    assert tried == [60, 65, 70, 120, 125, 130]
    with Wheel(path) as wheel:
        assert [m.headers.get(SCHEDULE) for m in wheel.list(dead=True)] == [None, None]
    assert living(path) == []


def test_a_declared_count_goes_on_over_restarts_and_is_over_after_it(make: Make, clock: FakeClock) -> None:
    calls: list[float] = []
    for _ in range(8):
        scheduler = make()
        noted = noting(scheduler, clock)
        scheduler.every(600, start=START_S, count=3)(scheduler.handlers[0])
        advance(scheduler, clock, 300)
        calls += noted
        scheduler.stop()
    assert calls == [600, 1200]  # the first of the three was due at the start, before the program began


def test_a_declared_count_without_a_start_is_refused(make: Make) -> None:
    scheduler = make()
    assert list(scheduler.wheel.list()) == []
    with pytest.raises(BadArgument, match="count needs a start") as caught:
        scheduler.every(60, count=3)
    assert "scheduler.schedule" in str(caught.value)


# -- jitter -----------------------------------------------------------------------------------------------------------


def test_a_jitter_makes_each_occurrence_later_by_less_than_its_bound_and_leaves_none_out(
    make: Make, clock: FakeClock
) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", 60, "tick", jitter_s=30)
    advance(scheduler, clock, 60 * 50)
    late = [at - 60 * (n + 1) for n, at in enumerate(calls)]
    assert len(calls) in (49, 50)
    assert all(0 <= one <= 30 for one in late)
    assert len(set(late)) > 25


def test_a_jitter_does_not_lead_past_the_end() -> None:
    definition = ScheduleTerms(jitter_s=50, end=100).defined("n", 60, is_declared=True)
    assert max(definition.due_us(60 * US_PER_S, bytes([n])) for n in range(100)) == 100 * US_PER_S


def test_the_time_without_jitter_counts_for_what_is_missed(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", 60, "tick", jitter_s=50, missed="all")
    clock.advance(240)
    scheduler.drain()
    (message,) = living(path)
    stored = schedule_of(message)
    assert stored is not None
    assert stored.time_us % (60 * US_PER_S) == START_US % (60 * US_PER_S)
    assert stored.time_us <= message.due_us <= stored.time_us + 50 * US_PER_S
    assert len(calls) in (3, 4)


# -- what is refused, and who has the name -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "options", "said"),
    [
        (60, {"jitter_s": 60}, "the jitter is shorter than the interval"),
        (60, {"jitter_s": -1}, "jitter_s is a number from 0"),
        (60, {"count": 0}, "count is a count from 1"),
        (60, {"count": 2_000_000}, "count is at most 1,000,000"),
        (60, {"start": datetime(2027, 1, 1)}, "no time zone"),
        ("0 9 * * *", {"start": START_S, "end": START_S + 60}, "has no time before its end"),
        (60, {"end": START_S - 60}, "has no time before its end"),
        (datetime(2027, 1, 15, 7, tzinfo=UTC), {}, "has passed"),
        (datetime(2027, 1, 16, tzinfo=UTC), {"count": 2}, "a single time has no start"),
    ],
)
def test_a_schedule_without_a_time_is_refused_and_changes_nothing(
    make: Make, path: Path, when: Any, options: dict[str, Any], said: str
) -> None:
    scheduler = make()
    with pytest.raises(BadArgument, match=said):
        scheduler.schedule("n", when, "tick", **options)
    assert scheduler.schedules() == []


def test_a_single_time_is_called_once_and_its_schedule_is_over(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noting(scheduler, clock)
    scheduler.schedule("n", to_datetime(START_US + 90 * US_PER_S), "tick")
    assert [s.name for s in scheduler.schedules()] == ["n"]
    advance(scheduler, clock, 86_400)
    assert calls == [90]
    assert scheduler.schedules() == []


def test_a_program_does_not_take_the_name_of_a_schedule_of_plain_messages(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()
    scheduler.wheel.schedule("n", 60, b"body", topic="other")
    scheduler.every(60, name="n")(scheduler.on("tick")(print))
    scheduler.drain()
    assert "the schedule 'n' of this program is not started" in caplog.text
    assert [m.topic for m in living(path)] == ["other"]
    with pytest.raises(KeyHeld, match="a schedule of plain messages"):
        scheduler.schedule("n", 60, "tick")


def test_a_schedule_at_run_time_does_not_take_the_name_of_a_declared_one(make: Make, path: Path) -> None:
    scheduler = make()
    scheduler.every(60, name="n")(scheduler.on("tick")(print))
    scheduler.drain()
    with pytest.raises(KeyHeld, match="a schedule that a program declares"):
        scheduler.schedule("n", 90, "tick")
    with pytest.raises(KeyHeld, match="a schedule of calls"):
        scheduler.wheel.schedule("n", 90)


def test_an_async_scheduler_has_the_same_options(path: Path, clock: FakeClock) -> None:
    asyncio.run(play_async(path, clock))


async def play_async(path: Path, clock: FakeClock) -> None:
    scheduler = AsyncScheduler(path, clock=clock, sync="never")
    calls: list[float] = []

    @scheduler.every("* * * * *", jitter_s=0, start=START_S, end=START_S + 120)
    async def tick() -> None:
        calls.append((clock.now_us() - START_US) / US_PER_S)

    await scheduler.schedule("more", 60, "tick", count=1)
    await advance(scheduler, clock, 600)
    assert calls == [60, 60, 120]
    assert await scheduler.schedules() == []
    await scheduler.stop()
