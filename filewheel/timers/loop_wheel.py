"""A wheel for the time-outs of an asyncio program: hundreds of thousands that almost never fire, over one loop timer.

asyncio keeps its timers in a heap: each start is O(log n), and a cancelled timer stays there until it is due or until
half of the heap is cancelled. Here start and cancel are O(1), and a cancelled time-out is gone. The price: a call is
late by up to a tick.
Where time-outs wait is in `filewheel/native/` (`_timeouts.c`, and the same calls in Python); this file drives it.
Invariant: as long as a time-out is pending, the loop has a timer that is not later than the next thing to do, and one
a second later: Ctrl-C may end the loop between taking the first from its queue and calling it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, TypeVarTuple

from filewheel.checks import check_done, check_function, check_number, shown
from filewheel.env import loop_time
from filewheel.errors import BadArgument, Closed, OtherLoop
from filewheel.native.compiled import LoopTimeout, TimeoutWheel
from filewheel.native.timeouts import seconds

Ts = TypeVarTuple("Ts")

TICK_S = 0.01
TICK_MIN_S, TICK_MAX_S = 1e-6, 1e6
"""Finer than any loop wakes; and a time-out that is late by more than days is a mistake."""
TURN_S = 0.01
"""How long the wheel calls what is due before others have their turn: a callback that takes longer ends it."""
AGAIN_S = 1.0
"""How long after the loop's timer its second one comes, in case Ctrl-C took the first."""
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

        Raises BadArgument for a tick that is no number from 1e-6 to 1e6, OtherLoop without a loop, Closed for a closed
        one.
        """
        check_number("tick_s", tick_s, least=TICK_MIN_S, most=TICK_MAX_S)
        loop = _loop_of(loop)
        # The time of uvloop is that of the iteration, so after a long callback a delay would begin in the past.
        is_steady = type(loop).time is asyncio.BaseEventLoop.time or type(loop).__module__.startswith("uvloop")
        self.loop = loop
        self.clock = loop_time if is_steady else loop.time
        """Reads the time of the loop, in seconds."""
        super().__init__(tick_s, self.clock, is_steady, loop)
        self._timers: tuple[asyncio.Handle, ...] = ()
        self._armed_s = math.inf
        self._context = Context()  # empty: the loop's timer must not keep what some caller's context holds
        self._scopes = Context()  # that of the calls of `timeout`, which look at no variable
        if loop.is_closed():
            self._outside(True)

    def call_every(
        self, period: float, callback: Callable[[*Ts], object], /, *args: *Ts, context: Context | None = None
    ) -> PeriodicTimeout:
        """Call a function at each multiple of a period from now on, in seconds, until it is cancelled.

        Multiples that are over when the loop comes to them are left out. A call that raises is reported, and the next
        one comes. Raises as `call_later`, and BadArgument for a period that is not above 0.
        """
        check_number("period", period)
        check_function("callback", callback)
        return PeriodicTimeout(self, period, partial(callback, *args), context)

    def timeout(self, delay: float | None) -> TimeoutScope:
        """Return an async context manager that cancels its body after a delay in seconds, as `asyncio.timeout`.

        None is never. On leaving, the cancellation becomes a TimeoutError. Raises BadArgument for other delays.
        """
        return TimeoutScope(self, None if delay is None else self.clock() + self._seconds("delay", delay))

    def timeout_at(self, when: float | None) -> TimeoutScope:
        """Return the context manager of `timeout` for a time of the loop."""
        return TimeoutScope(self, None if when is None else self._seconds("when", when))

    def cancel_all(self) -> None:
        """Cancel every pending time-out. Raises OtherLoop from another thread."""
        if asyncio._get_running_loop() is not self.loop:
            self._outside(False)
        self._clear()

    def _wake(self, when: float) -> None:
        if self.loop.is_running() and asyncio._get_running_loop() is not self.loop:
            self._outside(True)  # it runs elsewhere, and has not called the wheel yet
        now = self.clock()
        delay = max(0.0, min(when - now, DAY_S))
        timer = self._call_after(delay) if delay else self.loop.call_soon(self._drive, context=self._context)
        before, was_s = self._timers, self._armed_s
        # Ctrl-C between two of these leaves a timer too many, which finds nothing to do.
        self._timers = timer, self._call_after(delay + AGAIN_S)
        self._armed_s = when
        # The first one before is left to come if it is due: a loop that is busy would never call one that moves on.
        for one in before if was_s > now else before[1:]:
            one.cancel()

    def _call_after(self, delay: float) -> asyncio.Handle:
        return self.loop.call_later(delay, self._drive, context=self._context)

    def _drive(self) -> None:
        """Do what is due; then set the timers for the rest, also when a callback ends the loop."""
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

    def _seconds(self, name: str, value: object) -> float:
        number = seconds(value)
        if math.isnan(number):
            self._refuse(name, value)
        return number

    def _refuse(self, name: str, value: object) -> None:
        if name == "callback":
            check_function("callback", value)
            raise BadArgument(f"callback is a function, not {shown(value)}", hint="wheel.call_later(30, function, ...)")
        if name == "context":
            raise BadArgument(f"context is a Context, not {shown(value)}", hint="contextvars.copy_context()")
        raise BadArgument(f"{name} is a number of seconds, not {shown(value)}", hint=f"{name}=30.0")

    def _outside(self, is_start: bool) -> None:
        """Refuse another thread's call, and a start on a closed loop. Before the loop runs, any thread may start."""
        if self.loop.is_running() and asyncio._get_running_loop() is not self.loop:
            raise OtherLoop(
                "the wheel's event loop runs in another thread",
                hint="loop.call_soon_threadsafe(wheel.call_later, ...)",
            )
        if is_start and self.loop.is_closed():
            raise Closed("the wheel's event loop is closed", hint="make a LoopWheel in the new loop")

    def __enter__(self) -> LoopWheel:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel_all()

    def __repr__(self) -> str:
        return f"<LoopWheel {len(self)} pending>"


class PeriodicTimeout:
    """A periodic call that was started by `LoopWheel.call_every`."""

    def __init__(
        self, wheel: LoopWheel, period: float, callback: Callable[[], object], context: Context | None
    ) -> None:
        self._wheel = wheel
        self._period = period
        self._callback = callback
        self._timeout = wheel.call_later(period, self._call, context=context)

    def _call(self) -> object:
        due = self._timeout.when()
        overran = max(0.0, self._wheel.clock() - due) // self._period
        # First the next one: the callback may cancel it, or raise. It runs in the context of this call.
        self._timeout = self._wheel.call_at(due + (1 + overran) * self._period, self._call)
        return self._callback()

    def cancel(self) -> None:
        """Cancel all further calls."""
        self._timeout.cancel()

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._timeout.cancelled()

    def when(self) -> float:
        """Return when it is called next, as a time of the loop."""
        return self._timeout.when()

    def __repr__(self) -> str:
        return f"<PeriodicTimeout every {self._period} s: {self._timeout!r}>"


class TimeoutScope(asyncio.Timeout):  # type: ignore[misc]  # final, for those who would change what it does
    """`asyncio.timeout` over a wheel. `LoopWheel.timeout` and `.timeout_at` make one."""

    def __init__(self, wheel: LoopWheel, when: float | None) -> None:
        super().__init__(when)
        self._wheel = wheel
        self._timeout_handler: Any
        self._on_timeout: Callable[[], None]

    def reschedule(self, when: float | None) -> None:
        """Move the due, inside of the body. One that has passed cancels the body at its next await.

        Raises BadArgument for other times; RuntimeError outside of the body, or after the due.
        """
        wheel, timeout = self._wheel, None
        if when is not None:
            timeout = wheel.call_at(when, self._on_timeout, context=wheel._scopes)
        try:
            super().reschedule(None)  # the timer of the loop is not used
        except BaseException:
            if timeout is not None:
                timeout.cancel()
            raise
        self._when, self._timeout_handler = when, timeout


def _loop_of(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    if loop is None:
        loop = asyncio._get_running_loop()
        if loop is None:
            raise OtherLoop("no event loop runs here", hint="make the LoopWheel in a coroutine, or give it a loop")
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise BadArgument(f"loop is an event loop, not {shown(loop)}", hint="asyncio.get_running_loop()")
    return loop
