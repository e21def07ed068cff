"""A wheel for the time-outs of an asyncio program: hundreds of thousands that almost never fire, over one loop timer.

asyncio keeps its timers in a heap: each start is O(log n), and a cancelled timer stays there until it is due or until
half of the heap is cancelled. Here start and cancel are O(1), and a cancelled time-out is gone. The price: a call is
late by up to a tick.
Where time-outs wait is in `filewheel/native/` (`_timeouts.c`, and the same in Python); this file drives it.
Invariant: as long as a time-out is pending, the loop has a timer that is not later than the next thing to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from filewheel.checks import check_done, check_function, check_number, shown
from filewheel.env import loop_time
from filewheel.errors import BadArgument, Closed, OtherLoop
from filewheel.native.compiled import LoopTimeout, TimeoutWheel
from filewheel.timers.loop_scope import TimeoutScope

TICK_S = 0.01
TICK_MIN_S, TICK_MAX_S = 1e-6, 1e6
"""Finer than any loop wakes; and a time-out that is late by more than days is a mistake."""
TURN_S = 0.01
"""How long the wheel calls what is due before others have their turn: a callback that takes longer ends it."""
DAY_S = 86400.0
"""The loop's timer is not set further ahead: no loop takes any number."""


class LoopWheel(TimeoutWheel):
    """The time-outs of one event loop: `call_later`, `call_at` and `timeout` as asyncio has them.

    start O(1), cancel O(1), expiry O(1) and at most one move for each factor of 64 that its delay is above a tick.
    Calls come in the order of ticks, never early, and late by up to a tick. What is due at once is called in turns of
    10 ms, so that the loop's other work goes on. Belongs to the loop's thread.
    Source: Varghese and Lauck (1987), scheme 7, with the levels of Linux's timer wheel and a bit for each slot in use.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, *, tick_s: float = TICK_S) -> None:
        """Make a wheel for the running loop, or for the given one.

        Raises BadArgument without a loop, or for a tick that is no number from 1e-6 to 1e6; Closed for a closed loop.
        """
        check_number("tick_s", tick_s, least=TICK_MIN_S, most=TICK_MAX_S)
        loop = _loop_of(loop)
        # The time of uvloop is that of the iteration, so after a long callback a delay would begin in the past.
        is_steady = type(loop).time is asyncio.BaseEventLoop.time or type(loop).__module__.startswith("uvloop")
        self.loop = loop
        self.clock = loop_time if is_steady else loop.time
        """Reads the time of the loop, in seconds."""
        super().__init__(tick_s, self.clock, is_steady, loop)
        self._timer: asyncio.Handle | None = None
        self._context = Context()  # empty: the loop's timer must not keep what some caller's context holds
        self._scopes = Context()  # that of the calls of `timeout`, which look at no variable
        if loop.is_closed():
            self._outside(True)

    def timeout(self, delay: float | None) -> TimeoutScope:
        """Return an async context manager that cancels its body after a delay in seconds, as `asyncio.timeout`.

        None is never. On leaving, the cancellation becomes a TimeoutError. Raises BadArgument for other delays.
        """
        if delay is not None:
            delay = self.clock() + check_number("delay", delay, above=None)
        return TimeoutScope(self, delay, self._scopes)

    def timeout_at(self, when: float | None) -> TimeoutScope:
        """Return the context manager of `timeout` for a time of the loop."""
        if when is not None:
            check_number("when", when, above=None)
        return TimeoutScope(self, when, self._scopes)

    def cancel_all(self) -> None:
        """Cancel every pending time-out. Raises OtherLoop from another thread."""
        if asyncio._get_running_loop() is not self.loop:
            self._outside(False)
        self._clear()

    def _wake(self, when: float) -> None:
        if self.loop.is_running() and asyncio._get_running_loop() is not self.loop:
            self._outside(True)  # it runs elsewhere, and has not called the wheel yet
        delay = when - self.clock()
        if delay > 0:
            timer: asyncio.Handle = self.loop.call_later(min(delay, DAY_S), self._drive, context=self._context)
        else:
            timer = self.loop.call_soon(self._drive, context=self._context)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _drive(self) -> None:
        """Do what is due; then set the timer for the rest, also when a callback ends the loop."""
        self._timer = None
        try:
            self._turn(TURN_S)
        finally:
            if (when := self._next()) is not None:
                self._wake(when)

    def _raised(self, callback: Callable[..., object], timeout: LoopTimeout, exc: BaseException) -> None:
        message = f"Exception in callback {shown(callback)} of {timeout!r}"
        self.loop.call_exception_handler({"message": message, "exception": exc, "handle": timeout})

    def _returned(self, value: object) -> None:
        check_done("it", value)

    def _refuse(self, name: str, value: object) -> None:
        if name == "callback":
            check_function("callback", value)
            raise BadArgument(f"callback is a function, not {shown(value)}", hint="wheel.call_later(30, function, ...)")
        if name == "context":
            raise BadArgument(f"context is a Context, not {shown(value)}", hint="contextvars.copy_context()")
        raise BadArgument(f"{name} is a finite number of seconds, not {shown(value)}", hint=f"{name}=30.0")

    def _outside(self, is_start: bool) -> None:
        """Refuse another thread's call, and a start on a closed loop. Before the loop runs, any thread may start."""
        if self.loop.is_running() and asyncio._get_running_loop() is not self.loop:
            raise OtherLoop(
                "the wheel's event loop runs in another thread",
                hint="loop.call_soon_threadsafe(wheel.call_later, ...)",
            )
        if is_start and self.loop.is_closed():
            raise Closed("the wheel's event loop is closed", hint="make a LoopWheel in the new loop")

    def __repr__(self) -> str:
        return f"<LoopWheel {len(self)} pending>"


def _loop_of(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    if loop is None:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise BadArgument("no event loop runs here", hint="make the LoopWheel in a coroutine, or give it a loop")
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise BadArgument(f"loop is an event loop, not {shown(loop)}", hint="asyncio.get_running_loop()")
    return loop
