"""The upkeep of all wheels of a node on one thread: flush, deal, count.

Owns the times at which each wheel wants to be called. A wheel without work is not called, so a thousand idle ones cost
nothing.
Invariant: a wheel that asked is called within its time; one that was closed is forgotten at its next turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from filewheel.env import Clock, Event
from filewheel.errors import FilewheelError
from filewheel.message import US_PER_S

WITHIN_S = 0.5
"""How soon a wheel with new work is called: what arrives until then is one flush."""


class NeedsUpkeep(Protocol):
    """A wheel that needs upkeep."""

    def housekeep(self) -> int | None:
        """Do what it is time for; return after how many microseconds there may be more, None: not before a wake."""


class UpkeepThread:
    """The upkeep of the wheels that call `wake`."""

    def __init__(self, clock: Clock, *, failed: Callable[[NeedsUpkeep, FilewheelError], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._lock = threading.Lock()
        self._times: dict[NeedsUpkeep, int] = {}
        """When each wheel with work wants to be called, in steady time."""
        self._woken = Event()

    def wake(self, wheel: NeedsUpkeep) -> None:
        """Call this wheel within WITHIN_S. From any thread; does not wait."""
        at = self._clock.steady_us() + round(WITHIN_S * US_PER_S)
        with self._lock:
            is_first = not self._times
            self._times[wheel] = min(self._times.get(wheel, at), at)
        if is_first:
            self._woken.set()

    def step(self, timeout_s: float = 0.0) -> None:
        """Call the wheels whose time has come; wait for at most `timeout_s` until there is one."""
        with self._lock:
            next_us = min(self._times.values(), default=None)
        if next_us is not None:
            timeout_s = min(timeout_s, max(next_us - self._clock.steady_us(), 0) / US_PER_S)
        if timeout_s > 0:
            self._woken.wait(timeout_s)
        self._woken.clear()
        now = self._clock.steady_us()
        with self._lock:
            due = [wheel for wheel, at in self._times.items() if at <= now]
            for wheel in due:
                del self._times[wheel]
        for wheel in due:
            self._keep(wheel)

    def _keep(self, wheel: NeedsUpkeep) -> None:
        try:
            wait_us = wheel.housekeep()
        except FilewheelError as exc:
            self._failed(wheel, exc)
            return
        if wait_us is not None:
            with self._lock:
                self._times.setdefault(wheel, self._clock.steady_us() + wait_us)
