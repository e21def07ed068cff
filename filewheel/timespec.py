"""Turns durations and times, as callers and people write them, into microseconds.

The library takes seconds, timedelta, aware datetime or epoch seconds (`due_from`); the command line takes text
(`parse_duration`, `parse_time`). A naive datetime is refused: with a guessed zone, messages fire an hour off.
Invariant: a returned due is legal, from the epoch to the last microsecond of the year 9999.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from fractions import Fraction

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US, US_PER_S

_ONE_US = timedelta(microseconds=1)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNITS_US = {"ms": 1000, **{unit: seconds * US_PER_S for unit, seconds in _UNITS_S.items()}}
_LENGTH_MAX = 64
_COARSENESS = 2.0**-52
EXACT_END_US = 2**53
"""From here on (the year 2255), not every microsecond has a float."""
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")


def delay_us(delay: float | timedelta) -> int:
    """Turn a delay into microseconds, rounded up so that nothing fires early."""
    if isinstance(delay, timedelta):
        return delay // _ONE_US
    if isinstance(delay, (int, float)) and not isinstance(delay, bool):
        return _exact_us("delay", delay)
    hint = "timedelta(minutes=5)" if isinstance(delay, str) else ""
    raise BadArgument(f"delay is seconds or a timedelta, not {type(delay).__name__}", hint=hint)


def at_us(at: datetime | float, name: str = "at") -> int:
    """Turn a point in time into microseconds since the epoch. Raises BadArgument, which names the argument."""
    if isinstance(at, datetime):
        if at.tzinfo is None or at.utcoffset() is None:
            raise BadArgument(
                f"{at!r} has no time zone, so it names no moment",
                hint="datetime.now(timezone.utc), or .replace(tzinfo=ZoneInfo('Europe/Berlin'))",
            )
        return (at - _EPOCH) // _ONE_US
    if isinstance(at, (int, float)) and not isinstance(at, bool):
        return _exact_us(name, at)
    raise BadArgument(f"{name} is an aware datetime or epoch seconds, not {type(at).__name__}")


def _exact_us(name: str, seconds: float) -> int:
    """Turn seconds into microseconds, rounded up, except for the rounding error of the float itself."""
    if not isinstance(seconds, float):
        return int(seconds) * US_PER_S
    us = float(seconds) * US_PER_S
    if not math.isfinite(us):
        raise BadArgument(f"{name} is a number of seconds, not {shown(seconds)}")
    if abs(us) >= EXACT_END_US:  # here the product itself is rounded, perhaps down
        return math.ceil(Fraction(seconds) * US_PER_S)
    nearest = round(us)
    return nearest if abs(us - nearest) <= abs(us) * _COARSENESS else math.ceil(us)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def check_due(due_us: int) -> int:
    """Return a due that is legal, or raise BadArgument."""
    if due_us < 0:
        raise BadArgument("due before 1970-01-01", hint="a past due is fine, and fires at once; this one is too far")
    if due_us >= DUE_END_US:
        raise BadArgument("due after the year 9999", hint="check the unit: delays and times are in seconds")
    return due_us


def bound_us(name: str, at: datetime | float) -> int:
    """Turn one end of a range of times into microseconds since the epoch; it may be before the epoch.

    Raises BadArgument for a time after the year 9999, which is nearly always one in milliseconds.
    """
    us = at_us(at, name)
    if us > DUE_END_US:
        raise BadArgument(f"{name} is after the year 9999", hint="check the unit: times are in seconds")
    return us


def due_from(now_us: int, *, delay: float | timedelta | None, at: datetime | float | None) -> int:
    """Return the due time in microseconds for a delay or a time; without both, now.

    Raises BadArgument for both, for a naive datetime, and for a due outside of 1970 to 9999.
    """
    if at is not None:
        if delay is not None:
            raise BadArgument("give delay or at, not both")
        return check_due(at_us(at))
    if delay is None:
        return now_us
    return check_due(now_us + delay_us(delay))


# -- text that people type -------------------------------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Read "90", "90s", "1h30m", "2d", "1w", "1.5h" or "250ms" as microseconds."""
    wrong = BadArgument(f"{text[:_LENGTH_MAX]!r} is not a duration: write 90, 90s, 1h30m or 2d")
    text = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return math.ceil(Fraction(text) * US_PER_S)
    total = Fraction(0)
    end = 0
    for part in _PART.finditer(text):
        if part.start() != end:
            raise wrong
        end = part.end()
        total += Fraction(part[1]) * _UNITS_US[part[2]]
    if not end or end != len(text):
        raise wrong
    return math.ceil(total)


def parse_time(text: str, now: datetime) -> datetime:
    """Read a time: "now", "@1767225600", ISO 8601, or "HH:MM[:SS]" for its next occurrence.

    `now` is aware; a time without a zone is in the zone of `now`.
    """
    try:
        return _parse_time(text.strip(), now)
    except (OverflowError, MemoryError):
        raise BadArgument(f"{text[:_LENGTH_MAX]!r} is after the year 9999, or before the calendar") from None


def _parse_time(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if re.fullmatch(r"@[0-9]+(\.[0-9]+)?", text):
        return _EPOCH + timedelta(microseconds=math.ceil(Fraction(text[1:]) * US_PER_S))
    clock = _CLOCK.fullmatch(text)
    if clock:
        return _next_clock(text, int(clock[1]), int(clock[2]), int(clock[3] or 0), now)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadArgument(f"{text!r} is not a time: write 09:00, 2027-01-01T09:00+01:00, @1767225600 or now") from None
    if found.tzinfo is None:
        found = _localise(found, now.tzinfo)
    return found


def _localise(naive: datetime, zone: tzinfo | None) -> datetime:
    """Give a naive time a zone. A time that a jump forward skips moves past the jump, as with at(1)."""
    return naive.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)


def _next_clock(text: str, hour: int, minute: int, second: int, now: datetime) -> datetime:
    if hour > 23 or minute > 59 or second > 59:
        raise BadArgument(f"{text!r} is not a time of day")
    day = now.replace(tzinfo=None, hour=hour, minute=minute, second=second, microsecond=0, fold=0)
    while True:
        # In a repeated hour, the time of day comes twice.
        for candidate in (day, day.replace(fold=1)):
            found = _localise(candidate, now.tzinfo)
            # In UTC, because two times of one zone compare by their wall clocks, without regard to `fold`.
            if found.astimezone(UTC) > now.astimezone(UTC):
                return found
        day += timedelta(days=1)


# -- for people ------------------------------------------------------------------------------------------------

_SPANS_S = (("y", 31_536_000), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def span(us: int) -> str:
    """Write a length of time in its two largest units: "1h 30m", "42s", "250ms"."""
    if us < US_PER_S:
        return f"{us // 1000}ms" if us >= 1000 else f"{us}µs" if us else "0s"
    seconds = us // US_PER_S
    if seconds < 10:
        return f"{us / US_PER_S:.1f}s".replace(".0s", "s")
    for at, (unit, size) in enumerate(_SPANS_S):
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            if unit == "s" or rest < _SPANS_S[at + 1][1]:
                return f"{whole}{unit}"
            return f"{whole}{unit} {rest // _SPANS_S[at + 1][1]}{_SPANS_S[at + 1][0]}"
    return "0s"
