"""Times of the command line: microseconds since the epoch.

Invariant: a conversion is exact.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

US_PER_S = 1_000_000
YEAR_10000_US = 253_402_300_800 * US_PER_S
"""The end of all dues."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Return the current time."""
    return time.time_ns() // 1000


def to_datetime(us: int) -> datetime:
    """Return a moment as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=us)
