"""The event loop whose long timers are on a wheel: what asyncio's loop promises holds, and libraries gain untouched."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from filewheel.timers import LoopTimeout, WheelEventLoop
from tests.support import REPO
from tests.timers import cpython


def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
    with asyncio.Runner(loop_factory=WheelEventLoop, **options) as runner:
        return runner.run(main)


@pytest.mark.parametrize("debug", [False, True])
def test_calls_come_in_their_order_and_none_is_early(debug: bool) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        called: list[tuple[float, float]] = []
        begun = loop.time()
        for delay in (0.2, 0.15, 0.05, 0.001, 0):
            loop.call_at(begun + delay, lambda delay=delay: called.append((delay, loop.time() - begun)))
        await asyncio.sleep(0.3)
        assert [delay for delay, _ in called] == [0, 0.001, 0.05, 0.15, 0.2]
        assert all(at >= delay for delay, at in called)
        for delay in (0.12, 0.01):
            begun, late = loop.time(), loop.create_future()
            loop.call_later(delay, late.set_result, None)
            await late
            assert loop.time() - begun >= delay

    run(main(), debug=debug)


def test_long_timers_are_on_the_wheel_and_short_ones_in_the_heap() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        long, at = loop.call_later(0.1, print), loop.call_at(loop.time() + 60, print)
        short, over = loop.call_later(0.099, print), loop.call_at(0, int)
        assert isinstance(long, LoopTimeout)
        assert isinstance(at, LoopTimeout)
        assert isinstance(short, asyncio.TimerHandle)
        assert isinstance(over, asyncio.TimerHandle)
        for handle in (long, at, short, over):
            assert handle.when() < loop.time() + 61
            handle.cancel()
            assert handle.cancelled()
        assert len(loop._wheel) == 0

    run(main())


def test_asyncios_own_timeouts_use_the_wheel_and_leave_nothing_there() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            assert len(loop._wheel) == 1
            assert await asyncio.wait_for(asyncio.sleep(0, 5), 60) == 5
        assert len(loop._wheel) == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.12):
                await asyncio.sleep(60)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.12)
        assert len(loop._wheel) == 0

    run(main())


def test_a_callback_may_return_a_task_as_in_asyncio() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reported: list[Any] = []
        loop.set_exception_handler(lambda loop, context: reported.append(context))
        done = asyncio.Event()

        async def work() -> None:
            done.set()

        loop.call_later(0.11, lambda: loop.create_task(work()))
        await asyncio.wait_for(done.wait(), 60)
        assert not reported

    run(main())


def test_an_error_of_a_callback_goes_to_the_loops_handler() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        reported: asyncio.Queue[Any] = asyncio.Queue()
        loop.set_exception_handler(lambda loop, context: reported.put_nowait(context["exception"]))
        loop.call_later(0.11, int, "x")
        assert isinstance(await asyncio.wait_for(reported.get(), 60), ValueError)

    run(main())


def test_what_asyncio_refuses_is_refused_with_an_error_of_the_same_kind() -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        with pytest.raises(TypeError):
            loop.call_later(None, print)
        with pytest.raises(TypeError):
            loop.call_at(None, print)
        for delay in (0, 60):
            with pytest.raises(TypeError, match="coroutines cannot be used"):
                loop.call_later(delay, main)

    run(main(), debug=True)
    loop = WheelEventLoop()
    handle = loop.call_later(60, print)
    loop.close()
    assert handle.cancelled()
    for delay in (0, 60):
        with pytest.raises(RuntimeError, match="closed"):
            loop.call_later(delay, print)


def test_timers_that_were_started_before_the_loop_ran_in_another_thread_are_called_there() -> None:
    loop = WheelEventLoop()
    called: list[int] = []
    loop.call_later(0.11, lambda: (called.append(threading.get_ident()), loop.stop()))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    thread.join(60)
    assert called == [thread.ident]
    loop.close()


def test_a_loop_that_never_comes_to_a_delay_of_infinity_takes_it() -> None:
    async def main() -> None:
        handle = asyncio.get_running_loop().call_later(float("inf"), print)  # anyio's sleep_forever
        await asyncio.sleep(0.12)
        handle.cancel()

    run(main())


@pytest.mark.skipif(not cpython.is_here(), reason="this Python came without its tests")
def test_cpythons_own_tests_of_timeouts_and_waits_pass_on_a_loop_with_a_wheel() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.timers.cpython", "test_timeouts", "test_waitfor"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout
