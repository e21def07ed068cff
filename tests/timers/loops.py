"""Helpers for tests of the loop wheel: an event loop whose time is the test's, and the wheel in C and in Python."""

from __future__ import annotations

import asyncio
import importlib.util
import selectors
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

from filewheel.native import compiled, timeouts
from filewheel.timers import loop_wheel


class _Selector(selectors.DefaultSelector):
    """Lets the time of its loop pass at once, instead of waiting."""

    loop: FakeTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            return super().select(None)
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """A loop that never waits: its time jumps to the next timer. A test may move `now` on, too."""

    def __init__(self) -> None:
        self.now = 1000.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now


def run(body: Callable[[Any], Coroutine[Any, Any, Any]], make: Callable[..., Any]) -> Any:
    """Run a coroutine with a wheel, in a loop whose time jumps."""

    async def main() -> Any:
        return await body(make())

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(main())


def _in_python() -> Any:
    """Load the module of LoopWheel a second time, over the wheel in Python."""
    spec = importlib.util.spec_from_file_location("loop_wheel_in_python", loop_wheel.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with (
        mock.patch.object(compiled, "TimeoutWheel", timeouts.TimeoutWheel),
        mock.patch.object(compiled, "LoopTimeout", timeouts.LoopTimeout),
    ):
        spec.loader.exec_module(module)
    return module.LoopWheel


WHEELS = {"chosen": loop_wheel.LoopWheel} | ({"python": _in_python()} if compiled.COMPILED else {})
CORES = {"chosen": compiled.TimeoutWheel} | ({"python": timeouts.TimeoutWheel} if compiled.COMPILED else {})
