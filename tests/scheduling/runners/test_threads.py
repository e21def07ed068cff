"""Handlers in threads: side by side, each failure its own, and a call that never ends costs no thread of the pool."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from filewheel import Event, Retry, Scheduler, current_job
from filewheel.env import SYSTEM_CLOCK
from filewheel.message import REASON
from filewheel.scheduling.arguments import PLAIN
from filewheel.scheduling.handler import Handler, Terms
from filewheel.scheduling.options import CallOptions
from filewheel.scheduling.runners.runner import Call
from filewheel.scheduling.runners.threads import Threads
from tests.scheduling.stage import Stage, counted, dead_letters, make, stage, waiting
from tests.support import FakeClock, eventually
from tests.support_wheel import an_id

ONCE = Retry(limit=0)


@pytest.fixture
def live(wheel_dir: Path) -> Iterator[Scheduler]:
    """A scheduler with three threads; stopped at the end."""
    made = Scheduler(wheel_dir, threads=3)
    yield made
    made.stop(5)


def until(scheduler: Scheduler, kind: str, count: int = 1) -> Callable[[], list[Event]]:
    """Return a function that waits until so many events of a kind came."""
    told: list[Event] = []
    enough = threading.Semaphore(0)

    def tell(event: Event) -> None:
        told.append(event)
        enough.release()

    scheduler.on_event(tell, [kind])

    def wait() -> list[Event]:
        for _ in range(count):
            assert enough.acquire(timeout=120), told
        return told

    return wait


def test_as_many_calls_run_at_once_as_there_are_threads_and_each_knows_its_own_job(live: Scheduler) -> None:
    together = threading.Barrier(3)
    seen: list[bool] = []

    @live.on("x")
    def x(n: int) -> None:
        together.wait(120)
        seen.append(current_job().args == [n])

    done = until(live, "acknowledged", 9)
    for n in range(9):
        x.enqueue(n)
    live.start()
    done()
    assert seen == [True] * 9


def test_no_more_than_its_concurrency_run_in_threads(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=8)
    lock, running, most = threading.Lock(), [0], [0]

    @scheduler.on("x", concurrency=2)
    def x() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1

    done = until(scheduler, "acknowledged", 60)
    for _ in range(60):
        scheduler.enqueue("x", sync="never")
    with scheduler:
        done()
    assert most[0] <= 2
    assert running[0] == 0


ODD: dict[str, Callable[[], object]] = {
    "sys.exit": lambda: sys.exit(1),
    "KeyboardInterrupt": lambda: exec("raise KeyboardInterrupt"),
    "MemoryError": lambda: exec("raise MemoryError"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_would_end_a_program_ends_only_the_call(live: Scheduler, odd: str) -> None:
    live.on("odd", retry=ONCE)(lambda: ODD[odd]())
    live.on("fine")(lambda: None)
    dead, fine = until(live, "dead", 5), until(live, "acknowledged", 5)
    for _ in range(5):  # more than there are threads
        live.enqueue("odd")
    live.start()
    assert odd.removeprefix("sys.").split(".")[0][:4].lower() in dead()[0].error.lower()
    for _ in range(5):
        live.enqueue("fine")
    fine()
    assert waiting(live.wheel) == []


def test_a_call_that_takes_too_long_is_given_up_and_retried_and_what_it_returns_later_counts_for_nothing(
    live: Scheduler,
) -> None:
    go_on, ended, tries = threading.Event(), threading.Event(), []

    @live.on("slow", timeout_s=0.05, retry=Retry(limit=1, delay_s=0, jitter=0))
    def slow() -> None:
        job = current_job()
        tries.append(job.attempt)
        if job.attempt == 0:
            with job.transaction():
                live.enqueue("never")
            go_on.wait(120)
            ended.set()

    timed_out, done = until(live, "timed_out"), until(live, "acknowledged")
    live.enqueue("slow")
    live.start()
    assert timed_out()[0].error == "TimeoutError: took longer than 0.05 s"
    done()
    go_on.set()
    assert ended.wait(120)
    live.stop()
    assert tries == [0, 1]
    assert waiting(live.wheel) == dead_letters(live) == []
    assert counted(live) == {
        "enqueued": 1, "fired": 2, "timed_out": 1, "retried": 1, "acknowledged": 1, "took_over": 1,
    }  # fmt: skip


def test_a_time_out_that_is_up_while_the_handler_runs_is_seen_by_the_clock(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)
    x = scheduler.on("x", timeout_s=5, retry=ONCE)(lambda: None)
    for _ in range(2):
        x.enqueue()
    clock.advance(1)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        clock.advance(4)
        on_stage.finish(1)
        clock.advance(1.5)
        on_stage.step()
        assert len(on_stage.runner.given_up) == 1
        assert len(dead_letters(scheduler)) == 1
        on_stage.finish()  # it returns after all
        assert on_stage.dispatcher.claimed == 0
    assert "TimeoutError" in dead_letters(scheduler)[0].headers[REASON]
    assert counted(scheduler)["acknowledged"] == 1
    scheduler.stop()


def alive(threads: Threads) -> int:
    return sum(t.is_alive() for t in threads._threads)


def test_a_pool_keeps_its_size_whatever_is_given_up_and_whatever_ends_later() -> None:
    """Stuck threads are replaced one for one; when they end, none is left over."""
    ended: list[Call] = []
    came = threading.Semaphore(0)
    began = threading.Semaphore(0)
    stuck = threading.Event()

    def finish(call: Call) -> None:
        ended.append(call)
        came.release()

    threads = Threads(2, lambda call: True, finish, SYSTEM_CLOCK, "")

    def call(function: Callable[[], object]) -> Call:
        from filewheel import Message

        handler = Handler("h", lambda raw: function(), Terms(), SimpleNamespace(codec=PLAIN), CallOptions())  # type: ignore[arg-type]
        return Call(handler, [Message(an_id(5), b"")], 0)

    def hang() -> None:
        began.release()
        stuck.wait(120)

    for _ in range(4):
        hanging = [call(hang), call(hang)]
        for one in hanging:
            threads.start(one)
        for _ in hanging:
            assert began.acquire(timeout=120)
        left = list(threads._running.values())
        assert len(left) == 2
        for one in hanging:
            assert one.end()
            threads.give_up(one)
        assert len(threads._threads) == alive(threads) == 2
        assert threads.busy() == 0
        stuck.set()
        for thread in left:
            thread.join(120)
        assert ended == []
        stuck.clear()
    together = threading.Barrier(2)
    for _ in range(4):
        threads.start(call(lambda: together.wait(120)))
    for _ in range(4):
        assert came.acquire(timeout=120)
    assert len(ended) == 4
    assert alive(threads) == 2
    left = list(threads._threads)
    threads.stop()
    for thread in left:
        thread.join(120)
    assert threads.given_up == 8


def test_a_handler_that_enqueues_and_cancels_does_not_get_in_its_own_way(live: Scheduler) -> None:
    ids = []

    @live.on("x")
    def x() -> None:
        ids.append(live.enqueue("y", delay=3600))
        live.cancel(ids[-1])

    done = until(live, "acknowledged")
    live.enqueue("x")
    live.start()
    done()
    eventually(lambda: waiting(live.wheel) == [])


def test_a_stage_gives_up_each_message_of_a_batch_that_takes_too_long(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)
    scheduler.on("many", batch=3, timeout_s=1, retry=ONCE)(lambda jobs: None)
    for n in range(3):
        scheduler.enqueue("many", [n])
    clock.advance(1)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        assert isinstance(on_stage, Stage)
        on_stage.step()
        clock.advance(2)
        on_stage.step()
    assert len(dead_letters(scheduler)) == 3
    scheduler.stop()
