"""A value that is dear to make, remembered for as long as it was dear.

One thread makes it at a time; the others get the one before, if there is one, and can say how old it is. So a view that
takes T seconds is made again after SHARE times T at the earliest: any number of viewers costs at most 1/SHARE of a
processor, and no viewer costs nothing.
Invariant: at most one thread makes a value at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from filewheel.env import Clock
from filewheel.errors import anew
from filewheel.message import US_PER_S

T = TypeVar("T")

SHARE = 20
"""The time between two makings is at least this many times that of the last one."""


@dataclass(frozen=True)
class Seen(Generic[T]):
    """A value, with the time of its making."""

    value: T
    at_us: int
    """The wall time when its making began."""
    took_us: int

    def age_us(self, now_us: int) -> int:
        """Return how old it is; 0 when its time is in the future."""
        return max(0, now_us - self.at_us)


class Remembered(Generic[T]):
    """Makes a value again when it is old enough. Thread-safe."""

    def __init__(self, make: Callable[[], T], clock: Clock, *, least_s: float = 1.0) -> None:
        """`least_s` is the least time between two makings, however quick they are."""
        self._make = make
        self._clock = clock
        self._least_us = round(least_s * US_PER_S)
        self._lock = threading.Lock()
        """Held while a value is made."""
        self._seen: Seen[T] | None = None
        self._error: Exception | None = None
        self._made_us = 0
        """The steady time of the end of the last making."""
        self._took_us = 0

    def get(self) -> Seen[T]:
        """Return the value; make it if it is old, unless another thread does.

        Waits only for a first value. Raises what the making raised, also to those who ask soon after it.
        """
        if not self._is_fresh():
            has_one = self._seen is not None or self._error is not None
            if self._lock.acquire(blocking=not has_one):
                try:
                    if not self._is_fresh():  # another thread made it while this one waited
                        self._try()
                finally:
                    self._lock.release()
        if self._error is not None:
            raise anew(self._error)
        assert self._seen is not None
        return self._seen

    def forget(self) -> None:
        """Make it again at the next call: something was changed that it shows."""
        self._made_us, self._took_us = -(1 << 62), 0

    def _is_fresh(self) -> bool:
        if self._seen is None and self._error is None:
            return False
        age_us = self._clock.steady_us() - self._made_us
        return age_us < max(self._least_us, SHARE * self._took_us)

    def _try(self) -> None:
        at_us, start_us = self._clock.now_us(), self._clock.steady_us()
        seen, error = None, None
        try:
            value = self._make()
            seen = Seen(value, at_us, self._clock.steady_us() - start_us)
        except Exception as exc:
            error = anew(exc)
        self._seen, self._error = seen, error
        self._made_us = self._clock.steady_us()
        self._took_us = self._made_us - start_us
