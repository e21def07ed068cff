"""The time that a keeper fires by: the wall clock, watched for steps that the steady clock does not confirm.

A step ahead by more than an hour is logged, and held if the keeper was opened so: the messages that it makes due wait.
A step back is logged, and shortens the hold.
Invariant: the hold is never negative, so nothing fires before its time by the wall clock.
"""

from __future__ import annotations

import logging

from filewheel.env import Clock
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.keeper")

JUMP_LIMIT_US = 3600 * US_PER_S


class Jumps:
    """A clock, less the held part of its jumps. Not thread-safe: the keeper's lock guards it."""

    def __init__(self, clock: Clock, path: str, *, hold: bool) -> None:
        self._clock = clock
        self._path = path
        self._hold = hold
        self._looked: tuple[int, int] | None = None
        self.held_us = 0
        """How much of the jumps ahead is held back."""

    def now_us(self) -> int:
        """Return the time to fire by, and log a step since the last call."""
        now, steady = self._clock.now_us(), self._clock.steady_us()
        if self._looked is not None:
            step = (now - self._looked[0]) - (steady - self._looked[1])
            if step > JUMP_LIMIT_US:
                log.critical(
                    "%s: the clock jumped ahead by %d s; %s",
                    self._path,
                    step // US_PER_S,
                    "holding the messages that it makes due until this keeper is opened again"
                    if self._hold
                    else "firing the messages that it makes due",
                )
                if self._hold:
                    self.held_us += step
            elif step < -US_PER_S:
                log.warning("%s: the clock went back by %d s; nothing fires twice", self._path, -step // US_PER_S)
                self.held_us = max(0, self.held_us + step)
        self._looked = (now, steady)
        return now - self.held_us
