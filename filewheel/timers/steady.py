"""The steady clock in nanoseconds, delays in them, and waiting until one of its times.

A fake clock (`filewheel.testing.FakeClock`) has a method `watch`: it calls back after each move, and a wait looks
again.
Invariant: no wait is trusted: after each one the clock is read again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from filewheel.checks import check_function, check_number, shown, span_us
from filewheel.env import Clock
from filewheel.errors import BadArgument, Closed, Forked, Reentered

Result = TypeVar("Result")
NS_PER_S = 1_000_000_000
NS_PER_US = 1_000
DELAY_MAX_S = 10**18
"""The longest delay, more than the age of the universe: in nanoseconds it is still far inside of a float."""
WAIT_MAX_S = 60.0
"""The longest wait in one piece: the steady clock counts a suspended machine's time, and a wait does not."""

Delay = float | timedelta
"""A time from now on: seconds or a timedelta. A negative one is over."""


def delay_ns(name: str, delay: Delay) -> int:
    """Return a delay to the nearest nanosecond: 0.446 is 446 ms. Raises BadArgument, also for NaN and infinity."""
    if isinstance(delay, timedelta):
        return span_us(delay) * NS_PER_US
    if type(delay) not in (float, int) or not -DELAY_MAX_S <= delay <= DELAY_MAX_S:
        delay = max(-DELAY_MAX_S, check_number(name, delay, above=None, most=DELAY_MAX_S))
    return delay * NS_PER_S if isinstance(delay, int) else round(delay * NS_PER_S)


def period_ns(name: str, period: Delay) -> int:
    """Return a period in nanoseconds, at least 1. Raises BadArgument."""
    found = delay_ns(name, period)
    if found <= 0:
        raise BadArgument(f"{name} is a time above 0, not {shown(period)}")
    return found


def bound(fn: Callable[..., Result], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Result]:
    """Return a function with its arguments. Raises BadArgument for what cannot be called, or does nothing then."""
    if not callable(fn):
        raise BadArgument(f"a timer calls a function, not {shown(fn)}")
    check_function("the function of a timer", fn)
    return partial(fn, *args, **kwargs)


class Steady:
    """A clock as the timers read it. Raises BadArgument for something that is no clock."""

    def __init__(self, clock: Clock) -> None:
        if not callable(getattr(clock, "steady_us", None)):
            raise BadArgument(f"clock has a method steady_us, which {shown(clock)} has not")
        self._clock = clock
        self._watch: Callable[[Callable[[], None]], None] | None = getattr(clock, "watch", None)

    def now_ns(self) -> int:
        """Return the steady time in nanoseconds."""
        return self._clock.steady_us() * NS_PER_US

    def watch(self, moved: Callable[[], None]) -> None:
        """Call a method after each move of a fake clock, for as long as its object lives."""
        if self._watch is not None:
            self._watch(moved)

    def wait_s(self, until_ns: int | None) -> float:
        """Return how many seconds to wait for a time, at most WAIT_MAX_S; None is a time that never comes."""
        if until_ns is None or self._watch is not None:  # a fake clock calls back: seconds of its own mean nothing
            return WAIT_MAX_S
        return min(max(0, until_ns - self.now_ns()) / NS_PER_S, WAIT_MAX_S)


class OwnerProcess:
    """The process that made a timer: its threads and locks are no use in a child."""

    __slots__ = ("_name", "_pid")

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise Forked in a child of that process."""
        if self._pid != os.getpid():
            raise Forked(f"this {self._name} belongs to the process that made it", hint="make another after the fork")

    def one_call(self, lock: threading.RLock) -> threading.RLock:
        """Return a reentrant lock for a `with`. Raises Forked, and Reentered when this thread has the lock.

        A signal handler or a destructor may interrupt a call of its own thread: it would see, and leave, half a change.
        """
        self.check()
        if lock._is_owned():  # type: ignore[attr-defined]
            raise Reentered(
                f"this thread is in the middle of another call of this {self._name}",
                hint="give signal handlers and destructors one of their own, or a Timer",
            )
        return lock

    def closed(self) -> Closed:
        """Return the error of a call after the end."""
        return Closed(f"this {self._name} was closed", hint=f"make another {self._name}")
