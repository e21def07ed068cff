"""The log of a replicator's failures: a line at the start, a reminder every few minutes, and one at the end.

The replicator retries every second, and a line for each attempt would hide other lines. Some failures are part of a
planned promotion and end without help; they are logged only when they last.
Invariant: a failure that lasts is logged, and each failure at most twice a minute.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from filewheel.env import Clock
from filewheel.message import US_PER_S

log = logging.getLogger(__name__)

REMIND_US = 300 * US_PER_S
_OTHER_US = 60 * US_PER_S
"""A failure with a new text is logged again only after this long."""
_OVER_US = 60 * US_PER_S
"""A failure that did not occur for this long is over."""


@dataclass
class _Failure:
    began_us: int
    met_us: int
    logged_us: int | None = None
    was_over: bool = False
    """It worked again since the last line, perhaps for a moment."""
    said: set[str] = field(default_factory=set)


class FailureLog:
    """The failures of one replicator, each under a name. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, _Failure] = {}

    def failed(self, name: str, text: str, *, after_s: float = 0) -> None:
        """Log a failure unless it was logged already; with `after_s`, only when it has lasted that long."""
        now_us = self._clock.steady_us()
        with self._lock:
            known = self._known.get(name)
            if known is None or now_us - known.met_us > _OVER_US:
                known = self._known[name] = _Failure(now_us, now_us)
            known.met_us = now_us
            if known.logged_us is None:
                is_due = now_us - known.began_us >= after_s * US_PER_S
            else:
                is_known = text in known.said and not known.was_over
                is_due = now_us - known.logged_us >= (REMIND_US if is_known else _OTHER_US)
            if not is_due:
                return
            minutes = (now_us - known.began_us) // (60 * US_PER_S)
            is_again = known.logged_us is not None
            known.logged_us, known.was_over = now_us, False
            known.said.add(text)
        log.warning("%s%s", text, f" (for {minutes} min)" if is_again and minutes else "")

    def over(self, name: str, text: str = "") -> None:
        """Note that it works again; log the text if the failure was logged."""
        with self._lock:
            known = self._known.get(name)
            if known is None or known.was_over:
                return
            if known.logged_us is None:
                del self._known[name]
                return
            known.was_over = True
        if text:
            log.info("%s", text)
