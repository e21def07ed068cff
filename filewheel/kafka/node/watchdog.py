"""Notices a part of a node that makes no progress, whatever the reason.

Each unit of a node (a thread, what a partition takes in and what it delivers, the wheel of a standby, the brokers)
says at each look where it stands, and what it waits for if it has work. The log gets a line for one that stands still
with work, and another when it goes on; health has it in between.
Owns how long each unit has stood. Invariant: a unit that stands still with work for STUCK_S is a problem at the next
look; one without work, or that moves, never is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from filewheel.env import Clock
from filewheel.kafka.node.health import Problem
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka")

STUCK_S = 30
GAP_US = 5 * US_PER_S
"""The most that counts between two looks. In a longer time without one this process stood still, and no unit of it."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Where a part of a node stands at this moment."""

    name: str
    """The beginning of a sentence: `partition 3 took nothing in`."""
    place: Hashable
    """Another value after each progress."""
    waits_for: str | None
    """What it has to do, or what keeps it from that; None if it has nothing to do."""
    partition: int | None = None
    severity: Literal["failing", "warning"] = "failing"


@dataclass(slots=True)
class _Stand:
    place: Hashable
    stood_us: int = 0
    is_said: bool = False


class Watchdog:
    """Looks at the units of a node. Thread-safe."""

    def __init__(self, units: Callable[[], Iterable[Unit]], clock: Clock) -> None:
        """`units` returns all of them as they are now; it must not wait, not even for a lock that a disk can hold."""
        self._units = units
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_us = clock.steady_us()
        self._stands: dict[str, _Stand] = {}

    def look(self) -> list[Problem]:
        """Return the units that are stuck now. Call it every second or so, and when somebody asks."""
        with self._lock:
            now_us = self._clock.steady_us()
            passed_us = min(now_us - self._looked_us, GAP_US)
            self._looked_us = now_us
            before, self._stands = self._stands, {}
            return [problem for unit in self._units() if (problem := self._look_at(unit, before, passed_us))]

    def _look_at(self, unit: Unit, before: dict[str, _Stand], passed_us: int) -> Problem | None:
        stand = before.get(unit.name)
        if stand is None or unit.waits_for is None or stand.place != unit.place:
            if stand is not None and stand.is_said:
                log.warning("%s for %d s; it goes on", unit.name, stand.stood_us // US_PER_S)
            self._stands[unit.name] = _Stand(unit.place)
            return None
        stand.stood_us += passed_us
        self._stands[unit.name] = stand
        if stand.stood_us < STUCK_S * US_PER_S:  # mutant: kafka-stuck-unseen
            return None
        why = f": {unit.waits_for}" if unit.waits_for else ""
        reason = f"{unit.name} for {stand.stood_us // US_PER_S} s{why}"
        if not stand.is_said:
            stand.is_said = True
            log.error("%s", reason)
        return Problem("stuck", unit.severity, reason, unit.partition)
