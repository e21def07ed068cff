"""Limits of a handler and of the scheduler: never exceeded, in nobody else's way, and what exceeds them comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from filewheel import Event, Job, Retry, Scheduler, current_job
from filewheel.message import REASON
from tests.scheduling.stage import Stage, counted, dead_letters, make, stage, waiting
from tests.support import START_US, FakeClock


def begun(on_stage: Stage, topic: str) -> list[int]:
    """The arguments of the calls of a handler, in the order in which they began."""
    import msgpack

    return [msgpack.unpackb(m.payload)[0][0] for _, m in on_stage.runner.begun if m.topic == topic]


def test_no_more_calls_of_a_handler_run_than_its_concurrency_and_others_are_not_held_up(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock)
    two = scheduler.on("two", concurrency=2)(lambda n: None)
    free = scheduler.on("free")(lambda n: None)
    for n in range(20):
        two.enqueue(n)
        free.enqueue(n)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert sorted(on_stage.running) == ["free"] * 20 + ["two"] * 2
        most = 0
        while on_stage.runner.calls:
            most = max(most, on_stage.running.count("two"))
            clock.advance(0.1)
            on_stage.finish(1)
        assert most == 2
        assert begun(on_stage, "two") == list(range(20))
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


@pytest.mark.parametrize("rate", [0.5, 3.0, 20.0])
def test_calls_begin_at_the_rate_and_in_order_and_what_is_too_much_stays_in_the_wheel(
    wheel_dir: Path, clock: FakeClock, rate: float
) -> None:
    scheduler = make(wheel_dir, clock, in_flight=16)
    rated = scheduler.on("rated", rate_per_s=rate)(lambda n: None)
    free = scheduler.on("free")(lambda n: None)
    count = round(rate * 20)
    for n in range(count):
        rated.enqueue(n)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.finish()
        free.enqueue(0)
        on_stage.step()
        assert "free" in on_stage.running
        on_stage.run(30, 0.05)
        times = [at for at, m in on_stage.runner.begun if m.topic == "rated"]
        assert begun(on_stage, "rated") == list(range(count))
        for i, start in enumerate(times):
            for seconds in (1, 5, 10):
                inside = sum(start <= at < start + seconds * 1_000_000 for at in times[i:])
                assert inside <= max(1.0, rate) + rate * seconds + 1e-6
        assert times[-1] - START_US <= 25_000_000
    assert "deferred" not in counted(scheduler)
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_many_limited_handlers_with_backlogs_leave_room_for_one_without(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, in_flight=40)
    for name in "abcdefgh":
        slow = scheduler.on(name, concurrency=1)(lambda n: None)
        for n in range(20):
            slow.enqueue(n)
    free = scheduler.on("free")(lambda n: None)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        for n in range(5):
            free.enqueue(n)
        on_stage.step()
        assert on_stage.running.count("free") == 5
        assert len(on_stage.keeper._head.claims) <= 40
        for _ in range(600):
            on_stage.run(0.2)
        for name in "abcdefgh":
            assert sorted(begun(on_stage, name)) == list(range(20))
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_no_more_messages_are_claimed_than_in_flight(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, in_flight=10)
    x = scheduler.on("x")(lambda n: None)
    for n in range(100):
        x.enqueue(n)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        for _ in range(300):
            on_stage.step()
            assert len(on_stage.keeper._head.claims) == len(on_stage.runner.calls) <= 10
            on_stage.finish(3)
        assert begun(on_stage, "x") == list(range(100))
    scheduler.stop()


def test_a_process_takes_twice_as_many_calls_as_there_are_processes_and_no_more(
    wheel_dir: Path, clock: FakeClock
) -> None:
    from tests.scheduling.process_targets import scheduler as targets

    scheduler = make(wheel_dir, clock, processes=2)
    function = next(h for h in targets._handlers if h.terms.where == "process").function
    scheduler.on("x", where="process")(function)
    for _ in range(20):
        scheduler.enqueue("x", ["path", "text"])
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert len(on_stage.runner.calls) == 4
    scheduler.stop()


def test_in_drain_a_rate_lets_one_burst_through_and_the_rest_waits(scheduler: Scheduler, clock: FakeClock) -> None:
    called: list[int] = []
    rated = scheduler.on("rated", rate_per_s=2)(called.append)
    for n in range(5):
        rated.enqueue(n)
    scheduler.drain()
    assert called == [0, 1]
    assert len(waiting(scheduler.wheel)) == 3


# -- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_handler_gets_the_jobs_in_order_and_at_most_so_many(scheduler: Scheduler) -> None:
    got: list[list[object]] = []

    @scheduler.on(batch=4)
    def many(jobs: Sequence[Job]) -> None:
        got.append([job.args[0] for job in jobs])

    for n in range(10):
        scheduler.enqueue("many", [n])
    assert scheduler.drain() == 10
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert waiting(scheduler.wheel) == []
    assert counted(scheduler) == {"enqueued": 10, "fired": 10, "acknowledged": 10}


def test_when_a_batch_handler_raises_every_message_is_retried_for_itself(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    sizes = []

    @scheduler.on(batch=3, retry=Retry(limit=1, delay_s=5, jitter=0))
    def many(jobs: Sequence[Job]) -> None:
        sizes.append([job.attempt for job in jobs])
        raise ValueError("all")

    for n in range(3):
        scheduler.enqueue("many", [n])
    scheduler.drain()
    assert len(waiting(scheduler.wheel)) == 3
    clock.advance(5)
    scheduler.drain()
    assert sizes == [[0, 0, 0], [1, 1, 1]]
    assert [m.headers[REASON] for m in dead_letters(scheduler)] == ["ValueError: all (after 2 attempts)"] * 3


def test_a_job_of_a_batch_that_is_said_to_have_failed_is_retried_and_the_others_are_done(
    scheduler: Scheduler,
) -> None:
    @scheduler.on(batch=3, retry=Retry(limit=0))
    def many(jobs: Sequence[Job]) -> None:
        jobs[1].fail("not \udcff this one")

    for n in range(3):
        scheduler.enqueue("many", [n])
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON] == r"not \udcff this one"
    assert counted(scheduler) == {"enqueued": 3, "fired": 3, "acknowledged": 2, "dead": 1}


def test_a_job_that_cannot_be_read_does_not_spoil_its_batch(scheduler: Scheduler) -> None:
    got = []

    @scheduler.on(batch=10)
    def many(jobs: Sequence[Job]) -> None:
        got.append([job.args[0] for job in jobs])

    scheduler.enqueue("many", [1])
    scheduler.wheel.enqueue(b"\xc1", topic="many", headers={"filewheel.args": "msgpack"})
    scheduler.enqueue("many", [2])
    scheduler.drain()
    assert got == [[1, 2]]
    assert len(dead_letters(scheduler)) == 1


def test_a_coroutine_takes_batches_too_and_each_job_has_its_own_transaction(scheduler: Scheduler) -> None:
    steps: list[object] = []

    @scheduler.on(batch=10, retry=Retry(limit=0))
    async def many(jobs: Sequence[Job]) -> None:
        for job in jobs:
            with job.transaction():
                scheduler.enqueue("step", job.args)
        jobs[0].fail("no")

    scheduler.on("step")(steps.append)
    for n in range(3):
        scheduler.enqueue("many", [n])
    scheduler.drain()
    assert steps == [1, 2]


# -- what is told -----------------------------------------------------------------------------------------------------


def test_events_and_counters_agree_with_what_happened_of_each_kind(scheduler: Scheduler, clock: FakeClock) -> None:
    told: list[Event] = []
    scheduler.on_event(told.append)

    @scheduler.on(retry=Retry(limit=1, delay_s=1, jitter=0))
    def flaky(n: int) -> None:
        job = current_job()
        with job.transaction():
            scheduler.enqueue("fine", [n])
        if n:
            raise ValueError(f"n={n}")

    scheduler.on("fine")(lambda n: None)
    scheduler.on("rated", rate_per_s=1)(lambda: None)
    flaky.enqueue(0)
    flaky.enqueue(1)
    scheduler.enqueue("fine", [1], skip_late_s=1, at=START_US / 1e6 - 60)
    scheduler.enqueue("fine", [2], coalesce="c")
    scheduler.enqueue("fine", [3], coalesce="c")
    scheduler.enqueue("nobody")
    scheduler.cancel(scheduler.enqueue("fine", [4]))
    for _ in range(3):
        scheduler.drain()
        clock.advance(2)
    kinds: dict[str, int] = {}
    for event in told:
        kinds[event.kind] = kinds.get(event.kind, 0) + 1
    assert kinds == counted(scheduler) == {
        "enqueued": 8, "fired": 5, "acknowledged": 3, "retried": 1, "dead": 1, "skipped": 1, "coalesced": 1,
        "unknown": 1, "cancelled": 1,
    }  # fmt: skip
    dead = next(e for e in told if e.kind == "dead")
    assert (dead.handler, dead.attempt, dead.error) == ("flaky", 1, "ValueError: n=1")
    assert dead.seconds is not None


def test_a_subscriber_that_raises_changes_nothing(scheduler: Scheduler) -> None:
    called = []

    def bad(event: Event) -> None:
        raise SystemExit(1)

    scheduler.on_event(bad)
    scheduler.on("x")(lambda: called.append(1))
    scheduler.enqueue("x")
    scheduler.enqueue("x")
    assert scheduler.drain() == 2
    assert called == [1, 1]
    assert waiting(scheduler.wheel) == []


@pytest.mark.parametrize("ends", ["returns", "fails", "dies"])
def test_a_message_that_is_cancelled_while_it_runs_is_counted_as_cancelled_and_not_as_retried(
    wheel_dir: Path, clock: FakeClock, ends: str
) -> None:
    scheduler = make(wheel_dir, clock)

    @scheduler.on("x", retry=Retry(limit=0 if ends == "dies" else 5))
    def x() -> None:
        if ends != "returns":
            raise ValueError

    id_ = x.enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        scheduler.cancel(id_)
        on_stage.finish()
    assert waiting(scheduler.wheel) == dead_letters(scheduler) == []
    expected = {"enqueued": 1, "fired": 1, "cancelled": 1} | ({"acknowledged": 1} if ends == "returns" else {})
    assert counted(scheduler) == expected
    scheduler.stop()
