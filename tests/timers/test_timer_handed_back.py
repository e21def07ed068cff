"""Functions of timers that hand their work back: refused when that is known, and else logged or raised."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from filewheel.errors import BadArgument
from filewheel.timers import ScheduledExecutor, Timer
from tests.timers.loops import WHEELS, run
from tests.timers.support import soon


async def coroutine() -> None: ...


def generator() -> Iterator[None]:
    yield


async def async_generator() -> AsyncIterator[None]:
    yield


class Worker:
    async def __call__(self) -> None: ...

    async def work(self) -> None: ...


REFUSED = [coroutine, generator, async_generator, Worker(), Worker().work, functools.partial(coroutine)]
STARTS: dict[str, Callable[[Any], Any]] = {
    "Timer.call_later": lambda fn: Timer().call_later(0, fn),
    "Timer.call_every": lambda fn: Timer().call_every(0.001, fn),
    "ScheduledExecutor.submit": lambda fn: ScheduledExecutor(1).submit(fn),
    "ScheduledExecutor.schedule": lambda fn: ScheduledExecutor(1).schedule(0, fn),
    "ScheduledExecutor.schedule_at_fixed_rate": lambda fn: ScheduledExecutor(1).schedule_at_fixed_rate(0, 60, fn),
    "ScheduledExecutor.schedule_with_fixed_delay": lambda fn: ScheduledExecutor(1).schedule_with_fixed_delay(0, 60, fn),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("function", REFUSED)
def test_a_function_that_does_nothing_when_it_is_called_is_refused(start: Any, function: Any) -> None:
    with pytest.raises(BadArgument, match="is a plain function, and .* returns a "):
        start(function)


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_a_function_of_a_timer_hands_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Timer() as timer:
        timer.call_later(0, lambda: coroutine())
        soon(lambda: "returned work that is not done, a coroutine" in caplog.text)


@pytest.mark.parametrize("method", ["schedule_at_fixed_rate", "schedule_with_fixed_delay"])
def test_a_periodic_task_that_hands_its_work_back_ends_with_an_error(method: str) -> None:
    with ScheduledExecutor(1) as executor:
        future = getattr(executor, method)(0, 0.001, lambda: coroutine())
        with pytest.raises(TypeError, match="returned work that is not done, a coroutine"):
            future.result(60)


@pytest.mark.parametrize("method", ["call_later", "call_every"])
def test_a_function_that_an_executor_cannot_call_is_logged(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with concurrent.futures.ProcessPoolExecutor(1) as pool:  # which cannot send a lambda to its process
        timer = Timer(executor=pool)
        getattr(timer, method)(0.001, lambda: None)
        soon(lambda: "could not call the function of a timer" in caplog.text)
        timer.close()


def test_a_periodic_function_goes_to_a_pool_of_processes_again_and_again(capfd: pytest.CaptureFixture[str]) -> None:
    with concurrent.futures.ProcessPoolExecutor(1) as pool, Timer(executor=pool) as timer:
        timer.call_every(0.001, print, "here", flush=True)
        soon(lambda: capfd.readouterr().out.count("here"))
        soon(lambda: capfd.readouterr().out.count("here"))


class OneAfterTheOther:
    """An executor of a program, whose `submit` returns no future."""

    def submit(self, function: Callable[..., object], *args: object) -> None:
        function(*args)


def test_an_executor_may_return_no_future(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    with Timer(executor=OneAfterTheOther()) as timer:  # type: ignore[arg-type]
        timer.call_every(0.001, called.append, 1)
        soon(lambda: len(called) > 2)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture(params=WHEELS.values(), ids=WHEELS.keys())
def loop_wheel(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("function", [coroutine, generator, async_generator, Worker().work])
def test_a_loop_wheel_refuses_a_function_that_does_nothing_when_it_is_called(loop_wheel: Any, function: Any) -> None:
    async def body(wheel: Any) -> None:
        with pytest.raises(BadArgument, match="^callback is a plain function, and .* returns a "):
            wheel.call_later(1, function)
        with pytest.raises(BadArgument, match="^callback is a plain function"):
            wheel.call_at(1e9, function)
        assert len(wheel) == 0

    run(body, loop_wheel)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "function", [lambda: coroutine(), Worker(), functools.partial(coroutine), lambda: generator(), lambda: print]
)
def test_a_loop_wheel_reports_work_that_is_handed_back_to_the_loop(loop_wheel: Any, function: Any) -> None:
    reported: list[Any] = []

    async def body(wheel: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        wheel.call_later(1, function)
        await asyncio.sleep(3)

    run(body, loop_wheel)
    (error,) = reported
    assert isinstance(error, TypeError)
    assert "returned work that is not done" in str(error)


@pytest.mark.parametrize("value", [None, True, False, 3, "text", [1]])
def test_a_callback_of_a_loop_wheel_may_return_any_other_value(loop_wheel: Any, value: object) -> None:
    reported: list[Any] = []

    async def body(wheel: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        wheel.call_later(1, lambda: value)
        await asyncio.sleep(3)

    run(body, loop_wheel)
    assert not reported
