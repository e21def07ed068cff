"""Signs of life of a keeper: when its background thread last came around, and when its consumer last asked for work.

The background thread writes both times into the note of keeper.lock every few seconds, so that another process, also
in another container, sees whether the keeper is alive. In the keeper's own process `stalled_s` answers without a file.
Invariant: no error here reaches the firing, and nothing here takes a lock.
"""

from __future__ import annotations

from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Clock
from filewheel.message import US_PER_S

BEAT_US = 5 * US_PER_S
"""How often the note is written."""


class Pulse:
    """The signs of life of one keeper."""

    def __init__(self, keeper_lock: KeeperLock, clock: Clock) -> None:
        self._keeper_lock = keeper_lock
        self._clock = clock
        self._turned_us: int | None = None
        """When the background thread last came around, by the steady clock; None before its first turn."""
        self._asked_us = clock.now_us()
        self._written_us: int | None = None

    def asked(self) -> None:
        """Note that the consumer asks for messages, or waits for some. Cost: one reading of the clock."""
        self._asked_us = self._clock.now_us()

    def turned(self) -> None:
        """Note a turn of the background thread, and write the note when it is old. Never raises OSError."""
        now = self._turned_us = self._clock.steady_us()
        if self._written_us is None or now - self._written_us >= BEAT_US:
            self._written_us = now
            self._keeper_lock.beat(self._clock.now_us(), self._asked_us)

    def stalled_s(self) -> float:
        """Return for how many seconds the background thread has not come around; 0 without one."""
        turned_us = self._turned_us
        return 0.0 if turned_us is None else max(0, self._clock.steady_us() - turned_us) / US_PER_S
