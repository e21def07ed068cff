"""The log of a client: a line that repeats is written once a minute, and one that passes by itself when it lasts.

Without a broker librdkafka says the same thing several times a second, for each connection. It also warns of each try
while a coordinator of transactions starts, as a new cluster does for its first producer.
Invariant: the first line of its kind is written at once, or after LASTS_US if it usually passes; each later one says
how many were left out.
"""

from __future__ import annotations

import logging
import re
import threading

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.message import US_PER_S

AGAIN_US = 60 * US_PER_S
LASTS_US = 10 * US_PER_S
"""A trouble that usually passes is written when it is still there after this time."""
_PASSING = re.compile(r"(idempotence|transactional) PID|oordinator (load in progress|not available)")
_KINDS_MAX = 256
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
"""Lines that differ in numbers only (ports of connections, milliseconds, counts) are of one kind."""


class QuietLog:
    """A logger for confluent_kafka: it calls `log`."""

    def __init__(self, log: logging.Logger, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[str, tuple[int, int]] = {}
        """Kind of line → when it was written, and how many were left out since."""

    def log(self, level: int, message: str, *args: object) -> None:
        """Write a line, or count it."""
        text = message % args if args else message
        kind = _NUMBERS.sub("#", text)
        now = self._clock.steady_us()
        with self._lock:
            written, left_out = self._kinds.get(kind, (None, 0))
            if _PASSING.search(text) and (written is None or now - written > 2 * AGAIN_US):
                written, left_out = now - AGAIN_US + LASTS_US, 0
            if written is not None and now - written < AGAIN_US:
                self._kinds[kind] = (written, left_out + 1)
                return
            if len(self._kinds) >= _KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = (now, 0)
        self._log.log(level, "%s", f"{text} ({left_out} more like this)" if left_out else text)
