"""asyncio's event loop with a wheel in it: `call_later` and what libraries build on it gain without a change.

Long timers, those of time-outs, wait on a `LoopWheel`, and short ones in the loop's heap, which is exact and small
then. So `asyncio.timeout`, aiohttp and asyncpg start and cancel a time-out in O(1), and a cancelled one is gone.
Invariant: a timer of less than EXACT_S is as exact as in asyncio; no other is early, or late by more than a tick.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from filewheel.checks import shown
from filewheel.native.compiled import LoopTimeout
from filewheel.timers.loop_wheel import TICK_S, LoopWheel

Ts = TypeVarTuple("Ts")

EXACT_S = 0.1
"""What is due earlier waits in the loop's heap."""


class WheelEventLoop(asyncio.SelectorEventLoop):
    """The event loop of asyncio whose long timers are on a wheel: `asyncio.Runner(loop_factory=WheelEventLoop)`."""

    def __init__(self, selector: selectors.BaseSelector | None = None, *, tick_s: float = TICK_S) -> None:
        """Make a loop. Raises BadArgument for a tick that is no number from 1e-6 to 1e6."""
        super().__init__(selector)
        self._wheel = _WheelInLoop(self, tick_s=tick_s)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle | LoopTimeout:
        """Call a function after a delay in seconds; return a TimerHandle, or a LoopTimeout, which has its methods."""
        if delay >= EXACT_S:
            return self._wheel.call_later(delay, callback, *args, context=context)
        return super().call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle | LoopTimeout:
        """Call a function at a time of the loop. As `call_later`."""
        if when - self.time() >= EXACT_S:
            return self._wheel.call_at(when, callback, *args, context=context)
        return super().call_at(when, callback, *args, context=context)

    def close(self) -> None:
        """Close the loop; its timers are forgotten."""
        super().close()
        self._wheel._clear()


class _WheelInLoop(LoopWheel):
    """The wheel: its own timers are the loop's, and a callback may return what it likes, as in asyncio."""

    def _call_after(self, delay: float) -> asyncio.Handle:
        assert isinstance(self.loop, WheelEventLoop)
        when = self.loop.time() + delay
        return super(WheelEventLoop, self.loop).call_at(when, self._drive, context=self._context)

    def _returned(self, value: object) -> None:
        pass

    def _refuse(self, name: str, value: object) -> None:
        if name == "callback":
            raise TypeError(f"coroutines cannot be used with call_later() and call_at(), nor {shown(value)}")
        super()._refuse(name, value)
