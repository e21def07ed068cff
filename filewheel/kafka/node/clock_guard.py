"""Compares the clock of this node with that of the brokers: a clock that runs ahead would fire everything early.

A broker stamps each record of the topic of markers. The stamp of a probe lies between the node's times before it was
sent and after it was confirmed; so the offset is known up to that span, and a slow broker never looks like a wrong
clock. A clock that is behind only makes records late: that is said, and nothing is held back for it.
Owns the last offset. Invariant: a node holds its records only while the last probe says that its clock is ahead by
more than the limit; an unknown offset holds nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from filewheel.env import Clock
from filewheel.errors import ClusterError
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka")

WARN_US = US_PER_S
PROBE_US = 60 * US_PER_S
"""The time between two probes."""
PROBE_AGAIN_US = 5 * US_PER_S
"""The same while the clock is off."""


def offset_us(sent_us: int, stamp_us: int, answered_us: int) -> int:
    """Return how far a clock is ahead of the broker's at least; negative: behind; 0: no difference is proved."""
    return max(sent_us - stamp_us, 0) or min(answered_us - stamp_us, 0)


class ClockGuard:
    """The offset of this node's clock."""

    def __init__(
        self,
        stamp: Callable[[], int | None],
        clock: Clock,
        limit_us: int,
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        """`stamp` appends a record and returns the broker's time of it, in milliseconds; None if it has none.

        `limit_us` 0 holds nothing back.
        """
        self._stamp = stamp
        self._clock = clock
        self._limit_us = limit_us
        self._run = run
        self._lock = threading.Lock()
        """Held by a probe."""
        self._next_us = 0
        self._is_tried = False
        self._is_asked = False
        self.offset_us: int | None = None
        """This clock minus the brokers', as far as it is proved; None: not known."""

    @property
    def may_fire(self) -> bool:
        """Whether records may go out."""
        ahead_us = self.offset_us or 0
        return not self._limit_us or ahead_us <= self._limit_us  # mutant: kafka-fires-ahead

    def step(self) -> None:
        """Begin a probe if it is time. Does not wait."""
        if self._clock.steady_us() >= self._next_us and not self._is_asked:
            self._is_asked = True
            self._run(self.probe)

    def first(self) -> None:
        """Probe unless that was done. Before anything fires; waits for the cluster."""
        if not self._is_tried:
            self.probe()

    def probe(self) -> None:
        """Measure the offset. A cluster that does not answer leaves it as it was."""
        with self._lock:
            self._is_tried, self._is_asked = True, False
            before_us = self._clock.now_us()
            try:
                stamp_ms = self._stamp()
            except ClusterError as exc:
                log.info("the clocks were not compared: %s", exc)
                self._next_us = self._clock.steady_us() + PROBE_AGAIN_US
                return
            after_us = self._clock.now_us()
            self._note(None if stamp_ms is None else offset_us(before_us, stamp_ms * 1000 + 999, after_us + 999))

    def _note(self, found_us: int | None) -> None:
        was_off = self.is_off
        self.offset_us = found_us
        is_off = self.is_off
        self._next_us = self._clock.steady_us() + (PROBE_AGAIN_US if is_off else PROBE_US)
        if is_off and not was_off:
            held = "" if self.may_fire else "; nothing fires until it is right"
            side = "ahead of" if (found_us or 0) > 0 else "behind"
            log.error("the clock of this node is %.1f s %s the brokers'%s", abs(found_us or 0) / US_PER_S, side, held)
        elif was_off and not is_off:
            log.warning("the clock of this node is right again")

    @property
    def is_off(self) -> bool:
        """Whether it is off by more than a second."""
        return abs(self.offset_us or 0) > WARN_US
