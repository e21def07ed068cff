"""The wheel of an event loop: what asyncio's timers promise holds here, a tick later."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from filewheel.errors import BadArgument, Closed, FilewheelError, OtherLoop
from filewheel.timers import LoopTimeout, LoopWheel
from tests.support import REPO
from tests.timers.loops import WHEELS, FakeTimeLoop, run

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.fixture(params=WHEELS.values(), ids=WHEELS.keys())
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_calls_come_after_their_delay_with_their_arguments_and_at_most_a_tick_late(make: Any) -> None:
    async def body(wheel: Any) -> None:
        loop = asyncio.get_running_loop()
        called: list[Any] = []
        begun = loop.time()
        for delay in (0.5, 0, 3.0, 0.07, 90.0):
            wheel.call_later(delay, lambda *args: called.append((*args, loop.time() - begun)), delay, "x")
        wheel.call_at(begun + 1, lambda: called.append((1, "at", loop.time() - begun)))
        await asyncio.sleep(100)
        assert [delay for delay, _, _ in called] == [0, 0.07, 0.5, 1, 3.0, 90.0]
        assert all(delay <= at <= delay + 0.0101 for delay, _, at in called)

    run(body, make)


def test_the_handle_is_of_the_public_class_and_says_its_state() -> None:
    async def body(wheel: LoopWheel) -> None:
        handle = wheel.call_at(1030.0, print)
        assert isinstance(handle, LoopTimeout)
        assert handle.when() == 1030.0
        assert "pending" in repr(handle)
        handle.cancel()
        assert handle.cancelled()
        assert "cancelled" in repr(handle)
        expired = wheel.call_later(1, int)
        await asyncio.sleep(2)
        expired.cancel()
        assert not expired.cancelled()
        assert "expired" in repr(expired)

    run(body, LoopWheel)


def test_a_callback_runs_in_the_context_of_its_start_or_in_the_given_one(make: Any) -> None:
    async def body(wheel: Any) -> None:
        seen: list[str] = []
        VARIABLE.set("at the start")
        wheel.call_later(1, lambda: seen.append(VARIABLE.get()))
        wheel.call_later(1, lambda: seen.append(VARIABLE.get()), context=contextvars.Context())
        VARIABLE.set("later")
        await asyncio.sleep(2)
        assert seen == ["at the start", "unset"]

    run(body, make)


def test_an_error_of_a_callback_goes_to_the_loops_handler_and_the_next_is_called(make: Any) -> None:
    async def body(wheel: Any) -> None:
        found: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: found.append(context))
        called: list[int] = []
        handle = wheel.call_later(1, int, "x")
        wheel.call_later(1, called.append, 1)
        await asyncio.sleep(2)
        assert called == [1]
        assert found[0]["handle"] is handle
        assert isinstance(found[0]["exception"], ValueError)
        assert "int" in found[0]["message"]

    run(body, make)


def test_ctrl_c_in_a_callback_ends_the_loop_and_the_rest_is_called_when_it_runs_again(make: Any) -> None:
    loop = FakeTimeLoop()
    called: list[int] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    wheel = make(loop)
    wheel.call_later(1, interrupt)
    wheel.call_later(1, called.append, 1)
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(2))
    assert not called
    loop.run_until_complete(asyncio.sleep(2))
    assert called == [1]
    loop.close()


def test_many_that_are_due_at_once_let_others_run_in_between(make: Any) -> None:
    async def body(wheel: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        since: list[int] = [0]
        longest: list[int] = [0]

        def call() -> None:
            loop.now += 0.001  # each takes a millisecond
            since[0] += 1

        def other() -> None:
            longest[0] = max(longest[0], since[0])
            since[0] = 0
            loop.now += 0.0001
            if len(wheel):
                loop.call_soon(other)

        for _ in range(2000):
            wheel.call_later(5, call)
        loop.call_at(loop.time() + 4.99, other)
        while len(wheel):
            await asyncio.sleep(0.1)
        assert 0 < longest[0] <= 12

    run(body, make)


def test_a_million_seconds_of_idle_time_wake_the_loop_a_few_times(make: Any) -> None:
    async def body(wheel: Any) -> None:
        wakes: list[int] = []
        drive = wheel._drive
        wheel._drive = lambda: (wakes.append(1), drive())
        for number in range(1000):
            wheel.call_later(1_000_000 + number / 1000, int)
        await asyncio.sleep(999_999)
        assert len(wheel) == 1000
        assert len(wakes) < 20
        wheel.cancel_all()
        assert len(wheel) == 0

    run(body, make)


def test_another_thread_is_refused_and_nothing_is_started(make: Any) -> None:
    async def body(wheel: Any) -> None:
        handle = wheel.call_later(50, print)
        errors: list[BaseException] = []

        def use() -> None:
            for call in (lambda: wheel.call_later(1, print), handle.cancel, wheel.cancel_all):
                try:
                    call()
                except OtherLoop as exc:
                    errors.append(exc)

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert len(errors) == 3
        assert "call_soon_threadsafe" in str(errors[0])
        assert len(wheel) == 1
        assert not handle.cancelled()
        wheel.cancel_all()

    run(body, make)


def test_a_wheel_that_was_made_before_its_loop_ran_in_another_thread_belongs_to_that_thread(make: Any) -> None:
    loop = FakeTimeLoop()
    wheel = make(loop)
    called: list[int] = []

    async def body() -> None:
        wheel.call_later(1, called.append, threading.get_ident())
        async with wheel.timeout(5):
            await asyncio.sleep(2)

    thread = threading.Thread(target=lambda: loop.run_until_complete(body()))
    thread.start()
    thread.join()
    assert called == [thread.ident]
    assert len(wheel) == 0
    loop.close()


def test_a_loop_that_is_closed_is_refused_and_its_timeouts_can_be_cancelled(make: Any) -> None:
    loop = FakeTimeLoop()
    wheel = make(loop)
    handle = wheel.call_later(1, print)
    loop.close()
    with pytest.raises(Closed, match="closed"):
        wheel.call_later(1, print)
    handle.cancel()
    assert handle.cancelled()
    with pytest.raises(Closed):
        make(loop)


def test_without_a_loop_or_with_wrong_arguments_the_error_names_the_argument(make: Any) -> None:
    with pytest.raises(OtherLoop, match="no event loop"):
        make()
    with pytest.raises(BadArgument, match="loop is an event loop"):
        make("loop")

    async def body(wheel: Any) -> None:
        for call, name in (
            (lambda: wheel.call_later("1", print), "delay"),
            (lambda: wheel.call_at(float("nan"), print), "when"),
            (lambda: wheel.call_later(1, 2), "callback"),
            (lambda: wheel.call_later(1, print, context=1), "context"),
            (lambda: wheel.timeout("1"), "delay"),
            (lambda: wheel.timeout_at(float("nan")), "when"),
            (lambda: wheel.call_later(memoryview(b"1"), print), "delay"),
            (lambda: wheel.timeout(memoryview(b"1")), "delay"),
            (lambda: wheel.call_later(10**400, print), "delay"),
            (lambda: make(tick_s=0), "tick_s"),
            (lambda: make(tick_s=float("nan")), "tick_s"),
            (lambda: make(tick_s=1e-12), "tick_s"),
        ):
            with pytest.raises(BadArgument, match=name):
                call()
        for wrong in (lambda: wheel.call_later(1), lambda: wheel.call_later(1, print, delay=2)):
            with pytest.raises(TypeError):
                wrong()

    run(body, make)


def test_a_periodic_call_comes_at_each_period_that_the_loop_did_not_overrun(make: Any) -> None:
    async def body(wheel: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        called: list[tuple[str, int]] = []
        reported: list[Any] = []
        begun = loop.time()
        loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))

        def call(name: str) -> None:
            called.append((name, round(loop.time() - begun)))
            if len(called) == 2:
                loop.now += 25  # and nobody waits for that
            if len(called) == 4:
                raise ValueError
            if len(called) == 6:
                periodic.cancel()

        periodic = wheel.call_every(10, call, "x")
        assert periodic.when() == begun + 10
        assert len(wheel) == 1
        await asyncio.sleep(200)
        assert called == [("x", at) for at in (10, 20, 45, 50, 60, 70)]
        assert [type(error) for error in reported] == [ValueError]
        assert periodic.cancelled()
        assert len(wheel) == 0

    run(body, make)


def test_a_periodic_call_runs_in_the_context_of_its_start(make: Any) -> None:
    async def body(wheel: Any) -> None:
        seen: list[str] = []
        VARIABLE.set("at the start")
        periodic = wheel.call_every(1, lambda: seen.append(VARIABLE.get()))
        VARIABLE.set("later")
        await asyncio.sleep(3.5)
        periodic.cancel()
        given = contextvars.Context()
        given.run(VARIABLE.set, "given")
        with wheel:
            wheel.call_every(1, lambda: seen.append(VARIABLE.get()), context=given)
            await asyncio.sleep(2.5)
        await asyncio.sleep(5)
        assert seen == ["at the start"] * 3 + ["given"] * 2
        assert len(wheel) == 0

    run(body, make)


@pytest.mark.parametrize("period", [0, -1, float("nan"), float("inf"), "1", None])
def test_a_period_that_is_none_is_refused(make: Any, period: Any) -> None:
    async def nothing() -> None: ...

    async def body(wheel: Any) -> None:
        with pytest.raises(BadArgument, match="period"):
            wheel.call_every(period, print)
        with pytest.raises(BadArgument, match="callback"):
            wheel.call_every(1, nothing)
        assert len(wheel) == 0

    run(body, make)


def test_errors_that_are_a_runtime_error_in_asyncio_are_one_here(make: Any) -> None:
    loop = FakeTimeLoop()
    wheel = make(loop)
    loop.close()
    for call in (lambda: wheel.call_later(1, print), lambda: make(loop), make):
        with pytest.raises(RuntimeError) as raised:
            call()
        assert isinstance(raised.value, FilewheelError)


def test_a_delay_is_any_number_also_one_that_never_comes(make: Any) -> None:
    async def body(wheel: Any) -> None:
        called: list[Any] = []
        for delay in (Decimal("0.5"), Fraction(1, 2), True, float("inf"), float("-inf")):
            wheel.call_later(delay, called.append, delay)
            async with wheel.timeout(delay) as scope:
                pass
            assert scope.when() == wheel.clock() + float(delay)
        await asyncio.sleep(1_000_000)
        assert called == [float("-inf"), Decimal("0.5"), Fraction(1, 2), True]
        (never,) = [wheel.call_at(float("inf"), print)]
        assert never.when() == float("inf")
        assert len(wheel) == 2

    run(body, make)


def test_a_number_that_raises_says_why(make: Any) -> None:
    class Broken:
        def __float__(self) -> float:
            raise ZeroDivisionError

    async def body(wheel: Any) -> None:
        for call in (wheel.call_later, wheel.call_at):
            with pytest.raises(ZeroDivisionError):
                call(Broken(), print)
        with pytest.raises(ZeroDivisionError):
            wheel.timeout(Broken())
        assert len(wheel) == 0

    run(body, make)


def test_a_due_that_is_refused_leaves_the_timeout_as_it_was(make: Any) -> None:
    async def body(wheel: Any) -> None:
        with pytest.raises(TimeoutError):
            async with wheel.timeout(5) as scope:
                with pytest.raises(BadArgument):
                    scope.reschedule("soon")
                await asyncio.sleep(10)

    run(body, make)


def test_ctrl_c_at_any_line_of_a_drive_or_of_its_loop_leaves_a_wheel_that_goes_on(make: Any) -> None:
    """The interrupt is raised at each line in turn."""

    def interrupted_at(line: int) -> bool:
        """Return whether there is such a line."""
        loop = FakeTimeLoop()
        wheel = make(loop)
        called: list[int] = []
        for delay in (1, 5, 9):
            wheel.call_later(delay, called.append, delay)
        left = line

        def trace(frame: Any, event: str, arg: object) -> Any:
            nonlocal left
            if frame.f_code.co_name not in ("_drive", "_wake", "_run", "_run_once", "_turn", "_next", "call_later"):
                return None
            left -= event == "line"
            if left < 0:
                raise KeyboardInterrupt
            return trace

        loop.call_later(100, loop.stop)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        was = len(wheel)
        until = loop.now + 1000
        while loop.now < until:  # and nothing is started
            loop.call_at(until, loop.stop)
            loop.run_forever()
        assert sorted(called) == [1, 5, 9], f"at line {line}, {was} were pending"
        loop.close()
        return left < 0

    line = 0
    while interrupted_at(line):
        line += 1
    assert line > 100


def test_a_body_past_its_timeout_is_cancelled_and_the_error_is_a_timeout(make: Any) -> None:
    async def body(wheel: Any) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(TimeoutError):
            async with wheel.timeout(5) as scope:
                await asyncio.sleep(100)
        assert scope.expired()
        assert 5 <= loop.time() - begun <= 5.02
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        with pytest.raises(TimeoutError):
            async with wheel.timeout(-1):
                await asyncio.sleep(100)

    run(body, make)


def test_a_body_that_ends_in_time_leaves_no_timeout(make: Any) -> None:
    async def body(wheel: Any) -> None:
        async with wheel.timeout(5) as scope, wheel.timeout(None) as never:
            assert len(wheel) == 1
            assert never.when() is None
        assert not scope.expired()
        assert len(wheel) == 0
        with pytest.raises(KeyError):
            async with wheel.timeout_at(2000):
                raise KeyError
        assert len(wheel) == 0
        await asyncio.sleep(100)

    run(body, make)


def test_a_rescheduled_timeout_expires_at_its_new_due_only(make: Any) -> None:
    async def body(wheel: Any) -> None:
        loop = asyncio.get_running_loop()
        async with wheel.timeout(5) as scope:
            scope.reschedule(loop.time() + 50)
            await asyncio.sleep(40)
            scope.reschedule(None)
            await asyncio.sleep(40)
        with pytest.raises(RuntimeError, match="finished"):
            scope.reschedule(5000)
        with pytest.raises(TimeoutError):
            async with wheel.timeout(None) as scope:
                scope.reschedule(loop.time())
                await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="entered"):
            async with scope:
                pass
        with pytest.raises(RuntimeError, match="not been entered"):
            wheel.timeout(1).reschedule(5)

    run(body, make)


def test_of_nested_timeouts_the_one_that_expired_raises(make: Any) -> None:
    async def body(wheel: Any) -> None:
        async with wheel.timeout(100) as outer:
            with pytest.raises(TimeoutError):
                async with wheel.timeout(1):
                    await asyncio.sleep(10)
        assert not outer.expired()
        with pytest.raises(TimeoutError):
            async with wheel.timeout(1):
                async with wheel.timeout(100) as inner:
                    await asyncio.sleep(10)
        assert not inner.expired()
        with pytest.raises(TimeoutError):  # both at once: the inner one's error becomes the outer one's
            async with wheel.timeout(1):
                async with wheel.timeout(1):
                    await asyncio.sleep(10)

    run(body, make)


def test_a_cancel_from_outside_goes_through_even_when_the_timeout_expires_with_it(make: Any) -> None:
    async def body(wheel: Any) -> None:
        async def sleeper() -> None:
            async with wheel.timeout(5):
                await asyncio.sleep(100)

        for delay in (1, 4.999):  # the second one in the tick of the timeout
            task = asyncio.create_task(sleeper())
            wheel.call_later(delay, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task

    run(body, make)


def test_a_timeout_outside_of_a_task_is_refused(make: Any) -> None:
    async def body(wheel: Any) -> None:
        errors: list[str] = []

        def enter() -> None:
            try:
                wheel.timeout(1).__aenter__().send(None)
            except RuntimeError as exc:
                errors.append(str(exc))

        asyncio.get_running_loop().call_soon(enter)
        await asyncio.sleep(1)
        assert "task" in errors[0]

    run(body, make)


def test_with_the_clocks_of_asyncio_and_uvloop_nothing_is_early(make: Any) -> None:
    async def main() -> None:
        wheel = make()
        late: asyncio.Queue[float] = asyncio.Queue()
        for delay in (0, 0.001, 0.02, 0.1):
            due = wheel.clock() + delay
            wheel.call_later(delay, lambda due=due: late.put_nowait(wheel.clock() - due))
        found = [await asyncio.wait_for(late.get(), 60) for _ in range(4)]
        assert min(found) >= 0
        with pytest.raises(TimeoutError):
            async with wheel.timeout(0.01):
                await asyncio.sleep(60)

    asyncio.run(main())
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("pure", ["", "1"])
def test_the_interpreter_ends_quietly_with_timeouts_pending(pure: str) -> None:
    program = """
import asyncio
from filewheel.timers import LoopWheel

class Held:
    def __del__(self):
        kept.cancel()

async def main():
    global wheel, kept
    wheel = LoopWheel()
    kept = wheel.call_later(3600, print)
    for delay in (30, 1e9):
        wheel.call_later(delay, lambda held: None, Held())

asyncio.run(main())
print(len(wheel))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=REPO, env={**os.environ, "FILEWHEEL_PURE": pure},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
