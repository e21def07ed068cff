"""Unique keys inside of a transaction: taken, kept or replaced in the frame that acknowledges the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import KeyHeld, Scheduler, current_job
from filewheel.message import KEY, US_PER_S
from tests.support_wheel import NOW_US, StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def scheduler(tmp_path: Path, clock: StillClock) -> Scheduler:
    return Scheduler(tmp_path / "jobs.wheel", clock=clock)


def living(scheduler: Scheduler) -> list[tuple[int, str | None]]:
    """What waits: (seconds from the start, key)."""
    return [((m.due_us - NOW_US) // US_PER_S, m.headers.get(KEY)) for m in scheduler.wheel.list()]


def run_with(scheduler: Scheduler, body: Callable[[], None], *, key: str | None = None) -> None:
    """Run a body inside of the transaction of a job that is due now."""

    @scheduler.on("first")
    def first() -> None:
        with current_job().transaction():
            body()

    first.options(key=key).enqueue()
    scheduler.drain()


@pytest.mark.parametrize("how", ["reject", "keep", "replace"])
def test_a_job_that_enqueues_itself_again_under_its_own_key_may(scheduler: Scheduler, how: str) -> None:
    run_with(scheduler, lambda: scheduler.enqueue("x", delay=10, key="k", on_conflict=how), key="k")  # type: ignore[arg-type, func-returns-value]
    assert living(scheduler) == [(10, "k")]


def test_a_key_that_another_message_holds_is_kept_by_it(scheduler: Scheduler) -> None:
    scheduler.enqueue("x", delay=5, key="k")
    run_with(scheduler, lambda: scheduler.enqueue("x", delay=10, key="k", on_conflict="keep"))  # type: ignore[arg-type, func-returns-value]
    assert living(scheduler) == [(5, "k")]


def test_a_key_that_another_message_holds_is_taken_from_it(scheduler: Scheduler) -> None:
    scheduler.enqueue("x", delay=5, key="k")
    run_with(scheduler, lambda: scheduler.enqueue("x", delay=10, key="k", on_conflict="replace"))  # type: ignore[arg-type, func-returns-value]
    assert living(scheduler) == [(10, "k")]


def test_a_key_is_taken_from_a_message_that_is_due_too_and_that_one_is_not_called(
    scheduler: Scheduler, clock: StillClock
) -> None:
    called = []
    scheduler.on("late")(lambda: called.append("late"))
    scheduler.enqueue("late", delay=3600, key="k")
    run_with(scheduler, lambda: scheduler.enqueue("x", delay=7200, key="k", on_conflict="replace"))  # type: ignore[arg-type, func-returns-value]
    clock.wall_us += 3601 * US_PER_S
    scheduler.drain()
    assert called == []
    assert living(scheduler) == [(7200, "k")]


def test_a_key_that_another_message_holds_is_refused_inside_of_the_handler(scheduler: Scheduler) -> None:
    scheduler.enqueue("x", delay=5, key="k")
    refused = []

    def body() -> None:
        try:
            scheduler.enqueue("x", delay=10, key="k")
        except KeyHeld as exc:
            refused.append(exc.key)

    run_with(scheduler, body)
    assert refused == ["k"]
    assert living(scheduler) == [(5, "k")]


@pytest.mark.parametrize(("how", "left"), [("keep", 10), ("replace", 20)])
def test_of_two_with_one_key_in_one_transaction_one_lives(scheduler: Scheduler, how: str, left: int) -> None:
    def body() -> None:
        scheduler.enqueue("x", delay=10, key="k", on_conflict=how)  # type: ignore[arg-type]
        scheduler.enqueue("x", delay=20, key="k", on_conflict=how)  # type: ignore[arg-type]

    run_with(scheduler, body)
    assert living(scheduler) == [(left, "k")]


def test_a_job_whose_handler_fails_leaves_the_key_to_who_has_it(scheduler: Scheduler) -> None:
    scheduler.enqueue("x", delay=5, key="k")

    def body() -> None:
        scheduler.enqueue("x", delay=10, key="k", on_conflict="replace")
        raise ValueError("no")

    run_with(scheduler, body)
    assert (5, "k") in living(scheduler)
    assert [key for _, key in living(scheduler)].count("k") == 1
