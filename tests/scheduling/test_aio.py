"""AsyncScheduler: handlers in the caller's loop, enqueueing that is awaited, and ends that lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Closed,
    KeyHeld,
    Locked,
    MessageId,
    OtherLoop,
    Retry,
    Scheduler,
    Wheel,
    current_job,
)
from filewheel.disk.disk import SYSTEM
from filewheel.message import TRACEPARENT, US_PER_S
from tests.aio.support import LoopFactory, Watch, our_threads, run_in
from tests.conftest import assert_whole
from tests.support import FakeClock, eventually, run

Play = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a coroutine in a loop of each kind; no thread and no task may be left."""
    factory: LoopFactory | None = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop

    async def alone(main: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(30):
            result = await main
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    def playing(main: Coroutine[Any, Any, Any]) -> Any:
        result = run_in(factory, alone(main))
        assert our_threads() == []
        return result

    return playing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.wheel"


def pending(path: Path) -> list[str]:
    with Wheel(path) as wheel:
        return [m.topic for m in wheel.list()]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


# -- calls -----------------------------------------------------------------------------------------------------


def test_coroutines_run_in_the_callers_loop_and_plain_functions_in_threads(path: Path, play: Play) -> None:
    async def main() -> None:
        seen: list[tuple[str, Any]] = []
        here = asyncio.get_running_loop()
        scheduler = AsyncScheduler(path)

        @scheduler.on()
        async def mail(to: str, *, times: int = 1) -> None:
            assert asyncio.get_running_loop() is here
            seen.append((to, times))

        @scheduler.on()
        def plain(name: str) -> None:
            assert threading.current_thread() is not threading.main_thread()
            seen.append((name, current_job().handler))

        async with scheduler:
            await mail.enqueue("ann", times=2)
            await plain.after(0.05, "later")
            await scheduler.enqueue("mail", ["by name"], delay=0.02)
            await until(lambda: len(seen) == 3)
        assert sorted(map(str, seen)) == ["('ann', 2)", "('by name', 1)", "('later', 'plain')"]
        assert await mail("called", times=3) is None
        assert seen[-1] == ("called", 3)

    play(main())
    assert pending(path) == []
    assert_whole(path)


def test_a_function_in_a_process_is_called_there(path: Path) -> None:
    run(
        """
        import asyncio, os, sys, pathlib
        module = pathlib.Path(sys.argv[1]) / "work.py"
        module.write_text(
            "import os\\nfrom filewheel import AsyncScheduler\\n"
            f"scheduler = AsyncScheduler({sys.argv[2]!r}, processes=1)\\n"
            "@scheduler.on(where='process')\\n"
            "def heavy(out):\\n    open(out, 'w').write(str(os.getpid()))\\n"
        )
        sys.path.insert(0, sys.argv[1])
        from work import heavy, scheduler

        async def main():
            out = module.with_suffix(".pid")
            async with scheduler:
                await heavy.enqueue(str(out))
                while not out.exists() or not out.read_text():
                    await asyncio.sleep(0.01)
            assert int(out.read_text()) != os.getpid()

        asyncio.run(main())
        """,
        path.parent,
        path,
    )
    assert pending(path) == []


def test_a_thousand_tasks_enqueue_with_a_few_flushes_and_no_thread_each(path: Path, play: Play) -> None:
    watch = Watch()

    async def main() -> None:
        scheduler = AsyncScheduler(path, env=SYSTEM.using(disk=watch))

        @scheduler.on()
        async def step(number: int) -> None: ...

        await step.after(60, -1)
        before = watch.flushes
        ids = await asyncio.gather(*(step.after(60, n) for n in range(1000)))
        assert len(set(ids)) == 1000
        assert watch.flushes - before <= 4
        assert our_threads() == ["filewheel-aio"]
        await scheduler.stop()

    play(main())
    assert len(pending(path)) == 1001


def test_nothing_touches_the_disk_in_the_thread_of_the_loop(path: Path, play: Play) -> None:
    watch = Watch()

    async def main() -> None:
        done: list[int] = []
        scheduler = AsyncScheduler(path, env=SYSTEM.using(disk=watch))

        @scheduler.on(retry=Retry(delay_s=0.01, jitter=0))
        async def chain(left: int) -> None:
            if current_job().attempt == 0 and left == 3:
                raise ValueError
            with current_job().transaction():
                if left:
                    await chain.enqueue(left - 1)
            done.append(left)

        @scheduler.every(3600)
        async def hourly() -> None: ...

        await scheduler.schedule("dynamic", "0 9 * * *", "chain", [0])
        async with scheduler:
            assert await scheduler.wait_until_keeper(120)
            assert scheduler.state == "firing"
            await chain.options(key="one").enqueue(3)
            await until(lambda: done == [3, 2, 1, 0])
            id_ = await chain.after(60, 0)
            assert await scheduler.cancel(id_)
            assert await scheduler.unschedule("dynamic")
        await scheduler.drain()
        await scheduler.stop()

    play(main())
    # One byte into a pipe that does not block is no call to the disk.
    assert set(watch.in_loop) <= {"send_hint"}
    assert watch.flushes
    assert pending(path) == ["hourly"]


def test_the_key_the_options_and_the_trace_of_a_call_are_kept(path: Path, play: Play) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def main() -> MessageId:
        scheduler = AsyncScheduler(path)

        @scheduler.on(skip_late_s=5)
        async def sync_user(user: int) -> None:
            await scheduler.enqueue("elsewhere", at=4e9)

        first = await sync_user.options(key="user:1").after(60, 1)
        with pytest.raises(KeyHeld):
            await sync_user.options(key="user:1").after(60, 1)
        assert await sync_user.options(key="user:1", on_conflict="keep").after(60, 1) == first
        with pytest.raises(BadArgument, match="missing a required argument"):
            await sync_user.after(60)
        assert await scheduler.cancel(key="user:1")
        assert not await scheduler.cancel(key="user:1")
        with pytest.raises(BadArgument, match="id or a key"):
            await scheduler.cancel()
        await sync_user.options(headers={TRACEPARENT: trace}).enqueue(1)
        assert await scheduler.drain() == 1
        await scheduler.stop()
        return first

    play(main())
    with Wheel(path) as wheel:
        (message,) = wheel.list()
    assert (message.topic, message.due_us) == ("elsewhere", 4_000_000_000 * US_PER_S)
    assert message.headers[TRACEPARENT] == trace


def test_what_a_transaction_enqueues_is_written_with_the_acknowledgement_or_not_at_all(path: Path, play: Play) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path)

        @scheduler.on()
        async def good() -> None:
            with current_job().transaction():
                await asyncio.gather(nothing.after(60), scheduler.enqueue("nothing", delay=60))
                await nothing.options(key="free").after(60)
                with pytest.raises(KeyHeld):
                    await nothing.options(key="held").after(60)
                await nothing.options(key="held", on_conflict="replace").after(90)
            assert pending(path).count("nothing") == 1

        @scheduler.on(retry=Retry(limit=0))
        async def bad() -> None:
            with current_job().transaction():
                await scheduler.enqueue("lost", delay=60)
            raise ValueError("after the block")

        @scheduler.on(retry=Retry(limit=0))
        async def late() -> None:
            with current_job().transaction():
                task = asyncio.ensure_future(scheduler.enqueue("lost", delay=60))
            with pytest.raises(Closed):
                await task

        @scheduler.on()
        async def nothing() -> None: ...

        await nothing.options(key="held").after(3600)
        for handler in (good, bad, late):
            await handler.enqueue()
        await scheduler.drain()
        await scheduler.stop()

    play(main())
    assert pending(path) == ["nothing"] * 4


def test_code_that_cannot_await_enqueues_through_the_blocking_half(path: Path, play: Play) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path)

        @scheduler.on()
        def first() -> None:
            with current_job().transaction():
                second.blocking.after(60)
            scheduler.blocking.enqueue("third", delay=90)

        @scheduler.on()
        async def second() -> None: ...

        async with scheduler:
            await first.enqueue()
            await until(lambda: len(pending(path)) == 2)

    play(main())
    assert pending(path) == ["second", "third"]


def test_recurring_work_is_planted_and_followed_by_its_next_occurrence(path: Path, play: Play) -> None:
    async def main() -> None:
        calls: list[datetime_us] = []
        scheduler = AsyncScheduler(path)

        @scheduler.every(0.05)
        @scheduler.on(retry=Retry(limit=1))
        async def tick() -> None:
            calls.append(current_job().message.due_us)

        async with scheduler:
            await until(lambda: len(calls) >= 3)
        assert all(due % 50_000 == 0 for due in calls)
        assert calls == sorted(set(calls))

    datetime_us = int
    play(main())
    assert pending(path) == ["tick"]


# -- ends ------------------------------------------------------------------------------------------------------


def test_leaving_waits_for_calls_and_cancels_those_that_take_longer_which_are_offered_again(
    path: Path, play: Play
) -> None:
    async def main() -> None:
        ended: list[str] = []
        scheduler = AsyncScheduler(path, stop_s=0.3)
        begun = asyncio.Semaphore(0)

        @scheduler.on()
        async def quick() -> None:
            begun.release()
            await asyncio.sleep(0.1)
            await scheduler.enqueue("left", delay=60)
            ended.append("quick")

        @scheduler.on()
        async def slow() -> None:
            begun.release()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async with scheduler:
            await quick.enqueue()
            await slow.enqueue()
            await begun.acquire()
            await begun.acquire()
        assert ended == ["quick", "cancelled"]

    play(main())
    assert pending(path) == ["slow", "left"]
    assert_whole(path)


def test_run_ends_gracefully_when_it_is_cancelled_and_at_once_when_it_is_cancelled_again(
    path: Path, play: Play
) -> None:
    async def main() -> None:
        ended: list[str] = []
        scheduler = AsyncScheduler(path)
        begun = asyncio.Event()
        go_on = asyncio.Event()

        @scheduler.on()
        async def work(name: str) -> None:
            begun.set()
            await go_on.wait()
            ended.append(name)

        for name, again in (("one", False), ("two", True)):
            begun.clear()
            go_on.clear()
            running = asyncio.ensure_future(scheduler.run())
            await work.enqueue(name)
            await begun.wait()
            while scheduler._asked is None:  # a call may begin before `start` has returned, and that is no `run` yet
                await asyncio.sleep(0.001)
            running.cancel()
            await asyncio.sleep(0.05)
            assert not running.done()
            if again:
                running.cancel()
            else:
                go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert ended == ["one"]

    play(main())
    assert pending(path) == ["work"]


def test_stop_ends_run_also_from_inside_of_a_handler(path: Path, play: Play) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path)
        done: list[int] = []

        @scheduler.on()
        async def last() -> None:
            await scheduler.stop()
            await asyncio.sleep(0.05)
            done.append(1)

        for _ in range(2):
            await last.enqueue()
            await scheduler.run()
        await scheduler.stop()
        assert done == [1, 1]

    play(main())
    assert pending(path) == []


@pytest.mark.parametrize("uvloop", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_and_a_second_one_cuts_the_wait_short(path: Path, number: int, uvloop: bool) -> None:
    if uvloop:
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    run(
        """
        import asyncio, os, signal, sys
        from filewheel import AsyncScheduler

        path, number, uvloop = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
        factory = __import__("uvloop").new_event_loop if uvloop else None
        scheduler = AsyncScheduler(path)
        before = signal.getsignal(signal.SIGTERM)

        @scheduler.on()
        async def work(seconds):
            os.kill(os.getpid(), number)
            await asyncio.sleep(seconds)
            if seconds > 1:
                raise SystemExit("not reached")

        @scheduler.on()
        async def again():
            await asyncio.sleep(0.1)
            os.kill(os.getpid(), number)
            await asyncio.sleep(3600)

        async def main():
            await work.enqueue(0.1)
            await scheduler.run()
            assert signal.getsignal(signal.SIGTERM) == before
            await scheduler.enqueue("again")
            await work.enqueue(3600)
            await scheduler.run()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
        """,
        path,
        number,
        uvloop,
    )
    assert sorted(pending(path)) == ["again", "work"]


def test_a_start_that_is_cancelled_leaves_nothing_behind(path: Path, play: Play) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path)
        for delay_s in (0, 0, 0.0005, 0.002):
            starting = asyncio.ensure_future(scheduler.start())
            await asyncio.sleep(delay_s)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            await scheduler.stop()
        async with scheduler:  # the lock is free
            assert await scheduler.wait_until_keeper(120)
            with pytest.raises(BadArgument, match="already"):
                await scheduler.start()
            with pytest.raises(BadArgument, match="was started"):
                await scheduler.drain()

    play(main())


def test_a_task_that_somebody_else_cancels_has_failed_and_holds_nothing_up(path: Path, play: Play) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(path)
        tasks: list[asyncio.Task[Any] | None] = []

        @scheduler.on(concurrency=1, retry=Retry(delay_s=0.01))
        async def work() -> None:
            tasks.append(asyncio.current_task())
            if len(tasks) == 1:
                await asyncio.sleep(3600)

        async with scheduler:
            await work.enqueue()
            await until(lambda: tasks)
            assert tasks[0] is not None
            tasks[0].cancel()
            await until(lambda: len(tasks) == 2)

    play(main())
    assert pending(path) == []


# -- several ---------------------------------------------------------------------------------------------------


def test_one_fires_and_the_other_takes_over_when_it_stops(path: Path, play: Play) -> None:
    async def main() -> None:
        calls: list[str] = []
        schedulers = [AsyncScheduler(path), AsyncScheduler(path)]
        for number, scheduler in enumerate(schedulers):

            @scheduler.on("work")
            async def work(number: int = number) -> None:
                calls.append(f"by {number}")

        first, second = schedulers
        await first.start()
        assert await first.wait_until_keeper(120)
        await second.start()
        assert not await second.wait_until_keeper(0.05)
        with pytest.raises(Locked):
            await AsyncScheduler(path).drain()
        await second.enqueue("work")
        await until(lambda: calls == ["by 0"])
        await first.stop()
        await first.enqueue("work")
        await until(lambda: calls == ["by 0", "by 1"])
        await second.stop()
        await first.stop()
        assert not await first.wait_until_keeper(0)

    play(main())


def test_events_come_in_the_loop(path: Path, play: Play) -> None:
    async def main() -> None:
        here = threading.get_ident()
        told: list[str] = []
        scheduler = AsyncScheduler(path)

        @scheduler.on()
        async def work() -> None: ...

        forget = scheduler.on_event(lambda e: told.append(e.kind if threading.get_ident() == here else "elsewhere"))
        async with scheduler:
            await work.enqueue()
            await until(lambda: "acknowledged" in told)
            forget()
            await work.enqueue()
            await until(lambda: not pending(path))
        assert sorted(told) == ["acknowledged", "enqueued", "fired", "took_over"]

    play(main())


def test_one_definition_serves_one_loop_after_another_but_not_two_at_once(path: Path) -> None:
    scheduler = AsyncScheduler(path)
    calls: list[int] = []

    @scheduler.on()
    async def work(number: int) -> None:
        calls.append(number)

    async def once(number: int) -> None:
        await work.enqueue(number)
        assert await scheduler.drain() == 1
        with pytest.raises(OtherLoop):
            await asyncio.to_thread(asyncio.run, work.enqueue(0))
        await scheduler.stop()

    asyncio.run(once(1))
    asyncio.run(once(2))
    assert calls == [1, 2]
    # And without a loop of the caller's, as any scheduler.
    work.blocking.enqueue(3)
    assert scheduler.blocking.drain() == 1
    scheduler.blocking.stop()
    assert calls == [1, 2, 3]
    assert our_threads() == []


def test_a_drain_with_a_fake_clock_needs_no_sleep(path: Path, play: Play) -> None:
    async def main() -> None:
        clock = FakeClock()
        scheduler = AsyncScheduler(path, clock=clock)
        calls: list[str] = []

        @scheduler.on(retry=Retry(limit=1, delay_s=100, jitter=0))
        async def flaky() -> None:
            calls.append(f"attempt {current_job().attempt}")
            if current_job().attempt == 0:
                raise ValueError

        @scheduler.on()
        def plain() -> None:
            calls.append("plain")

        await flaky.after(60)
        await plain.after(90)
        assert await scheduler.drain() == 0
        clock.advance(60)
        assert await scheduler.drain() == 1
        clock.advance(100)
        assert await scheduler.drain() == 2
        assert calls == ["attempt 0", "plain", "attempt 1"]
        await scheduler.stop()

    play(main())


def test_a_loop_that_is_closed_without_a_stop_ends_the_firing_and_frees_the_lock(path: Path) -> None:
    scheduler = AsyncScheduler(path)

    @scheduler.on()
    async def work() -> None: ...

    asyncio.run(scheduler.start())
    scheduler.blocking.enqueue("work")
    eventually(lambda: "filewheel-scheduler" not in our_threads())
    assert Scheduler(path, unknown="bury").drain() == 1

    def forget() -> None:
        asyncio.run(scheduler.stop())
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed <AsyncWheel"):
        forget()
    eventually(lambda: our_threads() == [])


def test_its_own_sync_holds_on_a_wheel_that_was_there_and_many_may_ask_for_it_first(wheel_dir: Path) -> None:
    watch = Watch()
    scheduler = AsyncScheduler(wheel_dir, sync="never", env=SYSTEM.using(disk=watch))

    @scheduler.on(skip_late_s=5)
    async def work(number: int) -> None: ...

    async def main() -> None:
        calls = [scheduler.enqueue("work", [n], delay=60) for n in range(5)]
        ids = await asyncio.gather(*calls, *(work.after(60, n) for n in range(5)))
        assert len(set(ids)) == 10
        assert watch.flushes == 0
        assert our_threads() == ["filewheel-aio"]
        with pytest.raises(BadArgument, match="missing"):
            await scheduler.enqueue("work")
        await scheduler.stop()

    asyncio.run(main())
    with Wheel(wheel_dir) as wheel:
        assert {m.headers["filewheel.skip_late_s"] for m in wheel.list()} == {"5.0"}


def test_flushes_are_timed_and_enqueued_calls_counted(path: Path) -> None:
    scheduler = AsyncScheduler(path)

    async def main() -> None:
        await scheduler.enqueue("work", delay=60)
        await scheduler.stop()

    asyncio.run(main())
    text = asyncio.run(scheduler.prometheus())
    assert 'filewheel_enqueued_total{handler="work"} 1' in text
    assert "filewheel_pending 1" in text
    scheduler.blocking.stop()
    assert scheduler.metrics.counts("enqueued") == {"work": 1}
    assert scheduler.metrics.times("sync")


def test_where_a_function_runs_is_checked_when_it_is_registered(path: Path) -> None:
    scheduler = AsyncScheduler(path)
    with pytest.raises(BadArgument, match="coroutine function cannot run in a thread"):

        @scheduler.on(where="thread")
        async def wrong() -> None: ...

    @scheduler.on("same")
    async def one() -> None: ...

    with pytest.raises(BadArgument, match="already"):
        scheduler.on("other")(one)
    with pytest.raises(BadArgument, match="two handlers"):

        @scheduler.on("same")
        async def two() -> None: ...

    assert repr(one) == "<AsyncHandler same>"
    assert repr(scheduler) == f"<AsyncScheduler {path}>"
    assert not os.path.exists(path)
    assert isinstance(scheduler.blocking, Scheduler)
