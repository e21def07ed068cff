"""The one place that reads time, so that everything else can be given another clock.

Two clocks are needed and never mixed: the *wall* decides what is due, the *steady* one (which counts
suspended time too, where the system has it) decides how long something took.
Invariant: no other module of the library calls `time.time` or `time.monotonic`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What filewheel asks of a clock."""

    def now_us(self) -> int:
        """Return the wall time in microseconds since the epoch, UTC."""

    def steady_us(self) -> int:
        """Return a time that never steps, in microseconds from an arbitrary start."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        # BOOTTIME goes on counting while the machine sleeps; MONOTONIC stops.
        self._steady_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        return time.clock_gettime_ns(self._steady_id) // 1000


SYSTEM_CLOCK = SystemClock()
