"""The time-outs of an event loop: where they wait, and their calls when they are due.

The simple form of `_timeouts.c`, which is a hierarchical wheel: here the ticks in use are in a heap, and each has its
time-outs in the order of their starts. `compiled.py` chooses. The public class is `filewheel.timers.LoopWheel`, a
subclass that has the loop.
Invariants: no call comes before its due; the hand has emptied each tick up to itself; no tick in use is emptied before
`_armed`, the tick for which the driver has set its one timer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextvars import Context, copy_context
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")

NEVER = 1 << 59
"""A due further away waits there."""
NO_ROUND = -1
"""As `_round`: the last round was called to its end."""
LATE_S = 2.0
"""A driver that is so late was interrupted, and a start arms it again."""
IN_TURN = -1
"""As `_armed`: the driver sets its timer at the end of the turn."""
_HANDS_BACK = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
"""The flags of a function that does nothing when it is called."""


def seconds(value: object) -> float:
    """Return a number as a float; NaN for anything else. Text is no number, though `float` takes it."""
    try:
        return math.ldexp(value, 0)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


class LoopTimeout:
    """A time-out that was started by `call_later` or `call_at`."""

    __slots__ = ("_args", "_callback", "_context", "_home", "_state", "_wheel", "_when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context: Context | None = context
        self._wheel: TimeoutWheel | None = None
        self._home: Timeouts = {}
        self._state = "pending"

    def cancel(self) -> None:
        """Cancel the call, unless it has begun: then this does nothing."""
        wheel = self._wheel
        if wheel is None:
            return
        if get_ident() != wheel._thread:
            wheel._outside(False)
        if self._wheel is wheel:
            wheel._remove(self)
            self._state = "cancelled"
            self._callback = self._context = None
            self._args = ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled in time."""
        return self._state == "cancelled"

    def when(self) -> float:
        """Return its due, as a time of the loop."""
        return self._when

    def __repr__(self) -> str:
        return f"<LoopTimeout when={self._when!r} {self._state}>"


class TimeoutWheel:
    """The wheel of one loop. A subclass has `_wake`, `_raised`, `_refuse` and `_outside`, and drives `_turn`."""

    def __init__(self, tick_s: float, clock: Callable[[], float], is_steady: bool, loop: Any, /) -> None:
        """Make a wheel at the clock's time. `is_steady`: the clock is CLOCK_MONOTONIC, which C may read itself.

        This thread is the loop's until `_turn` runs in another. Without a loop there is none that may be closed.
        """
        if not 0 < tick_s < math.inf:
            raise ValueError("a tick is positive")
        self._tick_s = tick_s
        self._clock = clock
        self._loop = loop
        self._thread = get_ident()
        self._origin = clock()
        self._hand = 0
        self._armed = NEVER
        self._late = math.inf
        self._round = NO_ROUND  # the tick up to which all is called before what came later
        self._pending = 0
        self._ticks: list[int] = []
        """Those in `_slots`, and some that were, as a heap."""
        self._slots: dict[int, Timeouts] = {}
        self._soon: Timeouts = {}
        self._due: Timeouts = {}
        self._order: list[LoopTimeout] = []
        """Those due, the next one last; one that is not in `_due` was cancelled."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], /, *args: *Ts, context: Context | None = None
    ) -> LoopTimeout:
        """Call a function after a delay in seconds; return its handle."""
        delay = self._check("delay", delay, callback, context)
        now = self._clock()
        return self._start(now, now + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], /, *args: *Ts, context: Context | None = None
    ) -> LoopTimeout:
        """Call a function at a time of the loop; return its handle."""
        when = self._check("when", when, callback, context)
        return self._start(self._clock(), when, callback, args, context)

    def __len__(self) -> int:
        """Return how many time-outs are pending."""
        return self._pending

    def _wake(self, when: float) -> None:
        """Drive `_turn` at this time of the loop, not later."""
        raise NotImplementedError

    def _raised(self, callback: Callable[..., object], timeout: LoopTimeout, exc: BaseException) -> None:
        """Take the error of a callback."""
        raise NotImplementedError

    def _returned(self, value: object) -> None:
        """Take what a callback returned, if that is not None, True or False. Its error is that of the callback."""
        raise NotImplementedError

    def _refuse(self, name: str, value: object) -> None:
        """Raise the error for a wrong argument."""
        raise NotImplementedError

    def _outside(self, is_start: bool) -> None:
        """Raise, unless a call in another thread, or a start on a closed loop, is all right."""
        raise NotImplementedError

    def _check(self, name: str, value: float, callback: object, context: object) -> float:
        number = seconds(value)
        if math.isnan(number):
            self._refuse(name, value)
        function = callback.__func__ if isinstance(callback, MethodType) else callback
        hands_back = isinstance(function, FunctionType) and function.__code__.co_flags & _HANDS_BACK
        if not callable(callback) or hands_back:
            self._refuse("callback", callback)
        if context is not None and not isinstance(context, Context):
            self._refuse("context", context)
        if get_ident() != self._thread:
            self._outside(True)
        if self._loop is not None and self._loop.is_closed():
            self._outside(True)
        return number

    def _tick_of(self, when: float) -> int:
        """Return the tick at which a due expires: rounded up."""
        ticks = (when - self._origin) / self._tick_s
        if ticks >= NEVER:
            return NEVER
        tick = math.floor(max(0.0, ticks))  # -inf: a time before all others
        return tick + (self._origin + tick * self._tick_s < when)

    def _hand_of(self, now: float) -> int:
        """Return the tick that a time is in: rounded down. The time that `_next` returns is in its tick."""
        ticks = (now - self._origin) / self._tick_s
        if ticks >= NEVER:
            return NEVER
        tick = math.floor(max(0.0, ticks))  # -inf: a time before all others
        if self._origin + (tick + 1) * self._tick_s <= now:
            return tick + 1
        return tick - (tick > 0 and self._origin + tick * self._tick_s > now)

    def _start(
        self, now: float, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> LoopTimeout:
        one = LoopTimeout(when, callback, args, copy_context() if context is None else context)
        tick = self._hand if when <= now else max(self._tick_of(when), self._hand + 1)
        home = self._soon if when <= now else self._slots.get(tick)
        if home is None:
            heapq.heappush(self._ticks, tick)
            home = self._slots[tick] = {}
        home[one] = None
        one._home, one._wheel = home, self
        self._pending += 1
        was = self._armed, self._late
        if tick < self._armed or now > self._late:
            at = now if when <= now or tick >= self._armed else self._origin + tick * self._tick_s
            self._armed, self._late = min(tick, self._armed), at + LATE_S
            try:
                self._wake(at)
            except BaseException:
                self._armed, self._late = was
                one.cancel()
                raise
        return one

    def _remove(self, one: LoopTimeout) -> None:
        """Take a pending time-out out."""
        del one._home[one]
        one._wheel = None
        self._pending -= 1

    def _first(self) -> int | None:
        """Return the first tick that has time-outs."""
        while self._ticks and not self._slots.get(self._ticks[0]):
            self._slots.pop(self._ticks[0], None)
            heapq.heappop(self._ticks)
        return self._ticks[0] if self._ticks else None

    def _turn(self, budget_s: float, /) -> None:
        """Call what is due, for so many seconds at most; `_next` says when to go on.

        What a callback starts waits for the next turn, even if it is due at once. Turns go in rounds: what was due when
        a round began is called before anything that was started since, so a callback that is slower than the budget
        and starts itself for now keeps nothing else waiting.
        """
        now = self._clock()
        until = now + budget_s
        self._thread = get_ident()
        self._armed, self._late = IN_TURN, until + LATE_S
        if self._round == NO_ROUND:
            self._round = self._hand_of(now)
            self._due, self._soon = self._soon, {}
        while True:  # Ctrl-C between any two of these lines loses nothing
            if self._order:
                one = self._order.pop()
                if one in self._due:
                    self._expire(one)
            elif self._due:
                self._order = list(reversed(self._due))
            elif (tick := self._first()) is not None and tick <= self._round:
                self._hand = tick
                self._due = self._slots[tick]
            else:
                self._hand = max(self._hand, self._round)
                self._round = NO_ROUND
                return
            if self._clock() >= until:
                return

    def _expire(self, one: LoopTimeout) -> None:
        self._remove(one)
        one._state = "expired"
        callback, args, context = one._callback, one._args, one._context
        one._callback = one._context = None
        one._args = ()
        if callback is None or context is None:
            return
        try:
            value = context.run(callback, *args)
            if value is not None and not isinstance(value, bool):
                self._returned(value)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:
            self._raised(callback, one, exc)

    def _next(self) -> float | None:
        """Return the time of the next `_turn`: one that has passed if there is work left, None if there is nothing."""
        tick = self._hand if self._soon or self._due else self._first()
        self._armed = NEVER if tick is None else tick
        at = self._origin + self._armed * self._tick_s
        self._late = at + LATE_S
        return None if tick is None else at

    def _clear(self) -> None:
        """Cancel all."""
        for home in (self._soon, self._due, *self._slots.values()):
            for one in list(home):
                self._remove(one)
                one._state, one._args = "cancelled", ()
                one._callback = one._context = None


Timeouts = dict[LoopTimeout, None]
"""Time-outs in order; one is taken out in O(1)."""
