"""Coroutine handlers: many at once, cancelled when they take too long, and never a claim that nobody ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from filewheel import Retry, Scheduler, current_job
from filewheel.message import REASON
from filewheel.scheduling.runners import loop as loops
from tests.scheduling.runners.test_threads import until
from tests.scheduling.stage import counted, dead_letters, waiting
from tests.support import eventually

ONCE = Retry(limit=0)


@pytest.fixture
def live(wheel_dir: Path):  # type: ignore[no-untyped-def]
    """A scheduler; stopped at the end."""
    made = Scheduler(wheel_dir)
    yield made
    made.stop(5)


def test_many_coroutines_run_at_once_and_each_knows_its_own_job(live: Scheduler) -> None:
    count = 200
    here: list[int] = []
    right: list[bool] = []
    all_here: list[asyncio.Event] = []

    @live.on("x")
    async def x(n: int) -> None:
        if not all_here:
            all_here.append(asyncio.Event())
        here.append(n)
        if len(here) == count:
            all_here[0].set()
        await all_here[0].wait()
        right.append(current_job().args == [n])

    done = until(live, "acknowledged", count)
    for n in range(count):
        live.enqueue("x", [n], sync="never")
    live.start()
    done()
    assert right == [True] * count


def test_a_coroutine_that_takes_too_long_is_cancelled_and_retried(live: Scheduler) -> None:
    cancelled = []

    @live.on("slow", timeout_s=0.05, retry=Retry(limit=1, delay_s=0, jitter=0))
    async def slow() -> None:
        if current_job().attempt == 0:
            with current_job().transaction():
                live.enqueue("never")
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(1)
                    raise

    timed_out, done = until(live, "timed_out"), until(live, "acknowledged")
    live.enqueue("slow")
    live.start()
    assert timed_out()[0].error == "TimeoutError: took longer than 0.05 s"
    done()
    live.stop()
    assert cancelled == [1]
    assert waiting(live.wheel) == []
    assert counted(live)["timed_out"] == 1


@pytest.mark.parametrize("how", ["raise", "task"])
@pytest.mark.parametrize("drained", [True, False], ids=["drained", "in the loop"])
def test_a_coroutine_that_cancels_itself_has_failed_and_is_not_claimed_for_ever(
    live: Scheduler, how: str, drained: bool
) -> None:
    @live.on("odd", retry=ONCE, concurrency=1)
    async def odd() -> None:
        if how == "raise":
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    live.enqueue("odd")
    live.enqueue("odd")
    if drained:
        assert live.drain() == 2
    else:
        dead = until(live, "dead", 2)
        live.start()
        dead()
        live.stop()
    assert [m.headers[REASON] for m in dead_letters(live)] == ["CancelledError: the handler cancelled itself"] * 2


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_would_end_a_program_ends_only_the_call(live: Scheduler, what: type[BaseException]) -> None:
    @live.on("odd", retry=ONCE)
    async def odd() -> None:
        raise what

    @live.on("fine")
    async def fine() -> None: ...

    dead, done = until(live, "dead"), until(live, "acknowledged")
    live.enqueue("odd")
    live.start()
    assert dead()[0].error == what.__name__
    live.enqueue("fine")
    done()


def test_an_inner_time_out_of_the_handler_is_its_own_error_and_no_time_out_of_the_call(live: Scheduler) -> None:
    @live.on("x", timeout_s=60, retry=ONCE)
    async def x() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)

    live.enqueue("x")
    live.drain()
    assert dead_letters(live)[0].headers[REASON] == "TimeoutError"
    assert "timed_out" not in counted(live)


def test_a_coroutine_that_runs_when_the_scheduler_stops_is_cancelled_and_offered_again(live: Scheduler) -> None:
    began, cancelled = threading.Event(), threading.Event()

    @live.on("x")
    async def x() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    id_ = live.enqueue("x")
    live.start()
    assert began.wait(120)
    live.stop(0)
    assert cancelled.is_set()
    assert [m.id for m in waiting(live.wheel)] == [id_]
    assert counted(live).get("retried", 0) == 0


def test_a_coroutine_that_will_not_be_cancelled_does_not_keep_the_scheduler_from_stopping(
    live: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_END_S", 0.05)
    began, go_on, gone = threading.Event(), threading.Event(), threading.Event()

    @live.on("x")
    async def x() -> None:
        began.set()
        go_on.wait(120)  # blocks its loop
        gone.set()

    live.enqueue("x")
    live.start()
    assert began.wait(120)
    live.stop(0)
    assert len(waiting(live.wheel)) == 1
    go_on.set()
    assert gone.wait(120)
    eventually(lambda: not any(t.name == "filewheel-loop" for t in threading.enumerate()))


def test_threads_and_coroutines_are_drained_in_due_order_in_the_calling_thread(live: Scheduler) -> None:
    order: list[tuple[str, bool]] = []
    me = threading.get_ident()

    @live.on("plain")
    def plain(n: int) -> None:
        order.append((f"plain {n}", threading.get_ident() == me))

    @live.on("coroutine")
    async def coroutine(n: int) -> None:
        await asyncio.sleep(0)
        order.append((f"coroutine {n}", threading.get_ident() == me))

    for n in range(2):
        plain.enqueue(n)
        coroutine.enqueue(n)
    assert live.drain() == 4
    assert order == [(f"{kind} {n}", True) for n in range(2) for kind in ("plain", "coroutine")]


def test_a_handler_that_stops_its_loop_ends_no_other_call_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(tmp_path / "w")
    ended: list[str] = []

    @scheduler.on()
    async def sleeper() -> None:
        await asyncio.sleep(0.2)
        ended.append("sleeper")

    @scheduler.on(timeout_s=0.2, retry=Retry(limit=0))
    async def late() -> None:
        await asyncio.sleep(600)

    @scheduler.on()
    async def stopper() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        ended.append("stopper")

    for name in ("sleeper", "late", "stopper", "sleeper"):
        scheduler.enqueue(name)
    with scheduler:
        eventually(lambda: not list(scheduler.list()))
        assert sorted(ended) == ["sleeper", "sleeper", "stopper"]
        assert [job.topic for job in scheduler.list(dead=True)] == ["late"]
        scheduler.enqueue("sleeper")
        eventually(lambda: len(ended) == 4)
    assert caplog.text.count("a handler has stopped the event loop of all calls, which goes on") == 1


def test_an_exit_in_a_task_that_a_handler_made_ends_no_other_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(tmp_path / "w")
    ended: list[str] = []

    async def leave() -> None:
        raise SystemExit(3)

    @scheduler.on()
    async def leaver() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(0.01)
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        assert isinstance(task.exception(), SystemExit)
        ended.append("leaver")

    @scheduler.on()
    async def sleeper() -> None:
        await asyncio.sleep(0.2)
        ended.append("sleeper")

    scheduler.enqueue("sleeper")
    scheduler.enqueue("leaver")
    with scheduler:
        eventually(lambda: sorted(ended) == ["leaver", "sleeper"])
    assert caplog.text.count("a handler has stopped the event loop of all calls, which goes on") == 2


def test_a_handler_that_stops_its_loop_in_a_drain_has_failed(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w")
    ended: list[str] = []

    @scheduler.on(retry=Retry(limit=0))
    async def stopper() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        ended.append("stopper")

    @scheduler.on()
    async def other() -> None:
        await asyncio.sleep(0.05)
        ended.append("other")

    stopper.enqueue()
    other.enqueue()
    assert scheduler.drain() == 2
    assert ended == ["other"]
    (dead,) = scheduler.list(dead=True)
    assert "Event loop stopped" in (dead.reason or "")
    scheduler.stop()
