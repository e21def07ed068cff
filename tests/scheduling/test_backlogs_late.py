"""What is late: skipped and kept, called once for many, or let through at a rate after a long stop."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from filewheel import Scheduler, current_job
from filewheel.message import REASON, to_datetime
from tests.scheduling.stage import counted, dead_letters, make, stage, waiting
from tests.support import START_US, FakeClock

NOW = to_datetime(START_US)


def test_what_is_too_late_is_not_called_but_kept_counted_and_logged(
    scheduler: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    called = []
    x = scheduler.on("x")(lambda n: called.append(n))
    x.options(skip_late_s=5).enqueue("late")
    x.options(deadline=NOW + timedelta(seconds=5)).enqueue("past its deadline")
    x.options(skip_late_s=6, deadline=NOW + timedelta(seconds=7)).enqueue("in time")
    clock.advance(6)
    events = []
    scheduler.on_event(lambda e: events.append((e.kind, e.handler, e.error)), ["skipped"])
    with caplog.at_level(logging.WARNING):
        scheduler.drain()
    assert called == ["in time"]
    assert len(dead_letters(scheduler)) == 2
    assert counted(scheduler) == {"enqueued": 3, "skipped": 2, "fired": 1, "acknowledged": 1}
    assert events == [("skipped", "x", m.headers[REASON]) for m in dead_letters(scheduler)]
    assert len([r for r in caplog.records if "was not called" in r.getMessage()]) == 2


def test_a_retry_that_comes_after_the_deadline_is_not_made(scheduler: Scheduler, clock: FakeClock) -> None:
    tries = []

    @scheduler.on("x")
    def broken() -> None:
        tries.append(1)
        raise ValueError("no")

    broken.options(deadline=NOW + timedelta(seconds=1)).enqueue()
    scheduler.drain()
    clock.advance(60)
    scheduler.drain()
    assert tries == [1]
    (dead,) = dead_letters(scheduler)
    assert "after its deadline" in dead.headers[REASON]


@pytest.mark.parametrize("option", [{"deadline": NOW + timedelta(seconds=5)}, {"skip_late_s": 5}])
def test_what_became_too_late_while_it_waited_for_its_turn_is_not_begun(
    wheel_dir: Path, clock: FakeClock, option: dict[str, object]
) -> None:
    called = []
    scheduler = make(wheel_dir, clock)
    slow = scheduler.on("slow", concurrency=1)(lambda n: called.append(n))
    for n in range(3):
        slow.options(**option).enqueue(n)  # type: ignore[arg-type]
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert on_stage.running == ["slow"]
        clock.advance(3)
        on_stage.finish()
        clock.advance(3)
        on_stage.finish()
        on_stage.finish()
    # 0 was begun and 1 too late; as was 2
    assert called == [0]
    assert len(dead_letters(scheduler)) == 2
    assert counted(scheduler)["skipped"] == 2
    scheduler.stop()


@pytest.mark.parametrize("limit", ["of the handler", "of the backlog"])
def test_what_a_limit_held_up_is_late_by_its_first_due(wheel_dir: Path, clock: FakeClock, limit: str) -> None:
    called = []
    rates = (1, None) if limit == "of the handler" else (None, 1)
    scheduler = make(wheel_dir, clock, in_flight=8, catch_up_per_s=rates[1])
    rare = scheduler.on("rare", rate_per_s=rates[0])(lambda n: called.append((n, (clock.now_us() - START_US) / 1e6)))
    for n in range(30):
        rare.options(skip_late_s=40).at(START_US / 1e6 - 30, n)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.run(60, 0.5)
    assert len(called) in (10, 11)
    assert max(at for _, at in called) <= 10.5
    assert len(dead_letters(scheduler)) == 30 - len(called)
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


# -- coalescing -------------------------------------------------------------------------------------------------------


def test_of_those_that_are_overdue_together_the_first_is_called_and_the_others_are_done(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    called = []
    x = scheduler.on("x", coalesce="c")(lambda n: called.append(n))
    for n in range(5):
        x.after(n, n)
    x.options(coalesce="other").after(2, "other")
    x.options(coalesce=False).after(2, "alone")
    clock.advance(10)
    scheduler.drain()
    assert called == [0, "other", "alone"]
    assert waiting(scheduler.wheel) == dead_letters(scheduler) == []
    assert counted(scheduler) == {"enqueued": 7, "fired": 3, "acknowledged": 3, "coalesced": 4}


def test_one_that_comes_due_after_the_call_began_gets_a_call_of_its_own(wheel_dir: Path, clock: FakeClock) -> None:
    called = []
    scheduler = make(wheel_dir, clock)
    x = scheduler.on("x", coalesce="c")(lambda n: called.append(n))
    x.after(1, "a")
    x.after(2, "b")
    x.after(3, "c")
    with stage(wheel_dir, clock, scheduler) as on_stage:
        clock.advance(2)
        on_stage.step()
        assert len(on_stage.runner.calls) == 1
        clock.advance(5)
        on_stage.step()  # the first still runs
        assert len(on_stage.runner.calls) == 2
        on_stage.finish()
    assert called == ["a", "c"]
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_retry_of_the_call_that_stood_for_others_is_made(scheduler: Scheduler, clock: FakeClock) -> None:
    tries = []

    @scheduler.on("x", coalesce="c")
    def flaky(n: int) -> None:
        tries.append((n, current_job().attempt))
        if len(tries) == 1:
            raise ValueError("once")

    for n in range(3):
        flaky.enqueue(n)
    scheduler.drain()
    clock.advance(10)
    scheduler.drain()
    assert tries == [(0, 0), (0, 1)]


def test_an_unknown_handler_stands_for_nobody(scheduler: Scheduler, clock: FakeClock) -> None:
    for n in range(3):
        scheduler.enqueue("later", [n], coalesce="c")
    scheduler.drain()
    assert len(waiting(scheduler.wheel)) == 3
    called = []
    scheduler.on("later")(lambda n: called.append(n))
    clock.advance(300)
    scheduler.drain()
    assert called == [0]


# -- a backlog --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 100, 400])
def test_a_backlog_is_let_through_at_its_rate_in_due_order_with_bounded_memory(
    wheel_dir: Path, clock: FakeClock, in_flight: int
) -> None:
    called: list[tuple[float, int]] = []
    scheduler = make(wheel_dir, clock, in_flight=in_flight, catch_up_per_s=20)
    scheduler.on("x")(lambda n: called.append((clock.now_us() / 1e6, n)))
    for n in range(500):
        scheduler.enqueue("x", [n], at=NOW + timedelta(milliseconds=n))
    clock.advance(3600)
    start_s = clock.now_us() / 1e6
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.finish()
        most = 0
        for _ in range(400):
            on_stage.run(0.1)
            most = max(most, len(on_stage.keeper._head.claims))
    assert [n for _, n in called] == list(range(500))
    assert most <= in_flight
    for at, _ in called:
        assert sum(at <= t <= at + 1 for t, _ in called) <= 2 * 20 + 1
    for seconds in (5, 10, 20):
        assert sum(t <= start_s + seconds for t, _ in called) <= 20 * (seconds + 1)
    # the rate is made use of, too
    if in_flight > 1:
        assert called[-1][0] - start_s <= 500 / 20 + 3
    scheduler.stop()


def test_what_comes_due_meanwhile_is_not_held_up_by_the_backlog(wheel_dir: Path, clock: FakeClock) -> None:
    called: list[object] = []
    scheduler = make(wheel_dir, clock, in_flight=40, catch_up_per_s=1)
    x = scheduler.on("x")(called.append)
    for n in range(200):
        x.enqueue(n)
    clock.advance(3600)
    x.after(1, "fresh")
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.finish()
        on_stage.run(2)
        assert "fresh" in called
        assert len(called) <= 5
    scheduler.stop()
