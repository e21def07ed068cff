"""The time-outs of an event loop: where they wait, and their calls when they are due.

A hierarchical wheel as Linux and tokio have it: LEVELS times 64 slots; a slot of a level spans the 64 slots of the
level below. A bit for each slot in use gives the next slot to empty without a look at the others, so an idle wheel does
nothing. `_timeouts.c` has the same in C; `compiled.py` chooses. The public class is `filewheel.timers.LoopWheel`, a
subclass that has the loop.
Invariants: no call comes before its due; the hand has emptied each slot up to itself; no slot in use is emptied before
`_armed`, the tick for which the driver has set its one timer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import Context, copy_context
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from threading import get_ident
from types import FunctionType, MethodType
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")

LEVELS = 10
BITS = 6
SLOTS = 1 << BITS
NEVER = 1 << 59
"""A due further away waits there."""
NO_ROUND = -1
"""As `_round`: the last round was called to its end."""
IN_TURN = -1
"""As `_armed`: the driver sets its timer at the end of the turn."""
_HANDS_BACK = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
"""The flags of a function that does nothing when it is called."""
MOVES = 256
"""How many are moved between two looks at the clock."""


class Links:
    """One in a doubly linked list; the list itself is one of them, and stands between its last and its first."""

    __slots__ = ("_after", "_before")

    _after: Any
    _before: Any

    def __init__(self) -> None:
        self._after = self._before = self

    def append(self, one: Any) -> None:
        """Put one at the end of this list."""
        one._before, one._after = self._before, self
        self._before._after = self._before = one

    def take_all(self, other: Links) -> None:
        """Move all of another list to the end of this one."""
        if other._after is other:
            return
        first, last = other._after, other._before
        other._after = other._before = other
        first._before, self._before._after = self._before, first
        last._after, self._before = self, last


def remove(one: Any) -> None:
    """Take one out of its list."""
    one._before._after, one._after._before = one._after, one._before


class LoopTimeout(Links):
    """A time-out that was started by `call_later` or `call_at`."""

    __slots__ = ("_args", "_callback", "_context", "_level", "_slot", "_state", "_wheel", "_when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        super().__init__()
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context: Context | None = context
        self._wheel: TimeoutWheel | None = None
        self._level = 0
        self._slot = 0
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
        self._round = NO_ROUND  # the tick up to which the slots are emptied before what came later is called
        self._pending = 0
        self._used = [0] * LEVELS
        self._slots = [[Links() for _ in range(SLOTS)] for _ in range(LEVELS)]
        self._soon, self._due, self._moving = Links(), Links(), Links()

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
        try:
            number = math.nan if isinstance(value, (str, bytes, bytearray)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
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
        tick, hand = self._tick_of(when), self._hand_of(now)
        if hand > self._hand and self._armed >= 0 and (hand < self._armed or not self._pending):
            self._hand = hand  # no slot is emptied before `_armed`, so the hand may pass to here
        if when <= now:
            self._soon.append(one)
            empty_at = self._hand
        else:
            empty_at = self._place(one, max(tick, self._hand + 1))
        one._wheel = self
        self._pending += 1
        was = self._armed
        if empty_at < was:
            self._armed = empty_at
            try:
                self._wake(now if when <= now else self._origin + empty_at * self._tick_s)
            except BaseException:
                self._armed = was
                one.cancel()
                raise
        return one

    def _place(self, one: LoopTimeout, tick: int) -> int:
        """Put a time-out that is due after the hand into its slot; return the tick at which the slot is emptied."""
        level = (((tick ^ self._hand) | (SLOTS - 1)).bit_length() - 1) // BITS
        one._level, one._slot = level, tick >> BITS * level & (SLOTS - 1)
        self._used[level] |= 1 << one._slot
        self._slots[level][one._slot].append(one)
        return tick >> BITS * level << BITS * level

    def _remove(self, one: LoopTimeout) -> None:
        """Take a pending time-out out of its list."""
        remove(one)
        # One that is soon, moving or due names its last slot, or none: if that is empty, its bit is clear anyway.
        slot = self._slots[one._level][one._slot]
        if slot._after is slot:
            self._used[one._level] &= ~(1 << one._slot)
        one._wheel = None
        self._pending -= 1

    def _next_slot(self) -> tuple[int, int, int] | None:
        """Return the level and the index of the slot that is emptied next, and its tick."""
        for level, used in enumerate(self._used):
            if used:
                slot = (used & -used).bit_length() - 1
                above = BITS * (level + 1)
                return level, slot, self._hand >> above << above | slot << BITS * level
        return None

    def _turn(self, budget_s: float, /) -> None:
        """Call what is due, for so many seconds at most; `_next` says when to go on.

        What a callback starts waits for the next turn, even if it is due at once. Turns go in rounds: what was due when
        a round began is called before anything that was started since, so a callback that is slower than the budget
        and starts itself for now keeps nothing else waiting.
        """
        now = self._clock()
        until = now + budget_s
        self._thread = get_ident()
        self._armed = IN_TURN
        if self._round == NO_ROUND:
            self._round = self._hand_of(now)
            self._due.take_all(self._soon)
        while True:
            if self._due._after is not self._due:
                self._expire(self._due._after)
            elif self._moving._after is not self._moving:
                self._move_some()
            elif not self._turn_to_next(self._round):
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

    def _move_some(self) -> None:
        """Put some of the moving ones into lower slots."""
        for _ in range(MOVES):
            one = self._moving._after
            if one is self._moving:
                return
            remove(one)
            tick = self._tick_of(one._when)
            if tick > self._hand:
                self._place(one, tick)
            else:
                self._due.append(one)

    def _turn_to_next(self, end: int) -> bool:
        """Move the hand to the next slot that `end` reaches, and empty it; False when there is none."""
        found = self._next_slot()
        if found is None or found[2] > end:
            self._hand = max(self._hand, end)
            return False
        level, slot, self._hand = found
        (self._moving if level else self._due).take_all(self._slots[level][slot])
        self._used[level] &= ~(1 << slot)
        return True

    def _next(self) -> float | None:
        """Return the time of the next `_turn`: one that has passed if there is work left, None if there is nothing."""
        if any(one._after is not one for one in (self._soon, self._due, self._moving)):
            self._armed = self._hand
        else:
            found = self._next_slot()
            self._armed = NEVER if found is None else found[2]
            if found is None:
                return None
        return self._origin + self._armed * self._tick_s

    def _clear(self) -> None:
        """Cancel all."""
        every = Links()
        for one in (self._soon, self._due, self._moving, *(slot for level in self._slots for slot in level)):
            every.take_all(one)
        self._used = [0] * LEVELS
        self._pending = 0
        while every._after is not every:
            one = every._after
            remove(one)
            one._wheel, one._state, one._args = None, "cancelled", ()
            one._callback = one._context = None
