"""Turns durations and times, as callers and people write them, into microseconds.

The library takes seconds, timedelta, aware datetime or epoch seconds (`due_from`); the command line takes text
(`parse_duration`, `parse_time`). A naive datetime is refused: with a guessed zone, messages fire an hour off.
Invariant: a returned due is legal, from the epoch to the last microsecond of the year 9999.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from fractions import Fraction

from filewheel.checks import moment_us, shown, span_us
from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US, US_PER_S, to_datetime

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNITS_US = {"ms": 1000, **{unit: seconds * US_PER_S for unit, seconds in _UNITS_S.items()}}
_LENGTH_MAX = 64
_COARSENESS = 2.0**-52
EXACT_END_US = 2**53
"""From here on (the year 2255), not every microsecond has a float."""
_UNIT_WORDS = {
    "ms": "ms msec millisecond milliseconds",
    "s": "s sec secs second seconds",
    "m": "m min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
    "w": "w week weeks",
}
_UNIT_OF = {word: unit for unit, words in _UNIT_WORDS.items() for word in words.split()}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+) ?")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?( ?[ap]m)?")
_HOUR = re.compile(r"([0-9]{1,2})() ?([ap]m)", re.ASCII)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_OF = {name[:length]: n for n, name in enumerate(_DAYS) for length in (3, len(name))}
_DAY_OF |= {"tues": 1, "weds": 2, "thur": 3, "thurs": 3}
_NEARBY = {"yesterday": -1, "today": 0, "tomorrow": 1}


def delay_us(delay: float | timedelta) -> int:
    """Turn a delay into microseconds, rounded up so that nothing fires early."""
    if isinstance(delay, timedelta):
        return span_us(delay)
    if isinstance(delay, (int, float)) and not isinstance(delay, bool):
        return _exact_us("delay", delay)
    hint = "timedelta(minutes=5)" if isinstance(delay, str) else ""
    raise BadArgument(f"delay is seconds or a timedelta, not {type(delay).__name__}", hint=hint)


def at_us(at: datetime | float, name: str = "at") -> int:
    """Turn a point in time into microseconds since the epoch. Raises BadArgument, which names the argument."""
    if isinstance(at, datetime):
        return moment_us(at)
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
    us = max(at_us(at, name), -DUE_END_US)  # one that is still further away has no float
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
    """Read "90", "90s", "1h30m", "2d", "1w", "1.5h", "250ms", "1 hour 30 min" or "2 weeks" as microseconds.

    Raises BadArgument, also for months and years, which have no fixed length.
    """
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
        unit = _UNIT_OF.get(part[2])
        if unit is None:
            if part[2].rstrip("s") in ("month", "mo", "year", "y", "yr"):
                wrong.what += ". A month and a year have no fixed length: write 30d or 365d"
            raise wrong
        total += Fraction(part[1]) * _UNITS_US[unit]
    if not end or end != len(text):
        raise wrong
    return math.ceil(total)


def parse_time(text: str, now: datetime) -> datetime:
    """Read a time: "now", "@1767225600", ISO 8601, a time of day for its next occurrence, or words.

    A time of day is "09:00", "9:00:30", "9am", "9:30 pm", "noon" or "midnight". The words are a day and a time of day:
    "today", "tomorrow", "yesterday" or a weekday, "mon 09:00", which may be today; "next mon 09:00" is after today. "in
    2 hours" is from now on. `now` is aware; a time without a zone is in the zone of `now`. Where the clocks skip a
    time, it moves past the jump; where a time of day comes twice, it is the first that is still to come.

    Raises BadArgument, also for a day without a time of day.
    """
    try:
        return _parse_time(text.strip(), now)
    except (OverflowError, MemoryError):
        raise BadArgument(f"{text[:_LENGTH_MAX]!r} is after the year 9999, or before the calendar") from None


def _parse_time(text: str, now: datetime) -> datetime:
    if text == "now":
        return now
    if re.fullmatch(r"@[0-9]+(\.[0-9]+)?", text):
        return to_datetime(math.ceil(Fraction(text[1:]) * US_PER_S))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = _in_words(" ".join(text.split()), now)
    if found.tzinfo is None:
        found = _localise(found, now.tzinfo)
    return found


def _localise(naive: datetime, zone: tzinfo | None) -> datetime:
    """Give a naive time a zone. A time that a jump forward skips moves past the jump, as with at(1)."""
    return naive.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)


_TIMES = "write 09:00, 'tomorrow 9:00', 'mon 09:00', 'in 2 hours', 2027-01-01T09:00+01:00, @1767225600 or now"


def _in_words(text: str, now: datetime) -> datetime:
    """Read a time of day, with a day before or behind it; or "in" and a duration."""
    words = text.lower()
    if words.startswith("in "):
        # By way of UTC: with a zone, Python adds to the wall clock.
        return (now.astimezone(UTC) + timedelta(microseconds=parse_duration(words[3:]))).astimezone(now.tzinfo)
    first, _, rest = words.partition(" ")
    is_next = first == "next" and rest.partition(" ")[0] in _DAY_OF
    first, _, rest = rest.partition(" ") if is_next else (first, "", rest)
    if first not in _DAY_OF and first not in _NEARBY:
        before, _, last = words.rpartition(" ")
        first, rest = (last, before) if last in _DAY_OF or last in _NEARBY else ("", words)
    clock = _clock_of(text, rest.removeprefix("at ").removeprefix("on "), has_day=bool(first))
    if first in _NEARBY:
        return _first_after(now, clock, [_NEARBY[first]])
    days = range(8 if first else 366) if not is_next else range(1, 8)
    today = now.weekday()
    return _first_after(now, clock, [n for n in days if not first or (today + n) % 7 == _DAY_OF[first]])


def _clock_of(text: str, words: str, *, has_day: bool) -> time:
    """Read a time of day."""
    if words in ("noon", "12 noon"):
        return time(12)
    if words == "midnight":
        if has_day:
            raise BadArgument(f"{text!r} may be the start or the end of that day: write 00:00 with the day that begins")
        return time(0)
    found = _CLOCK.fullmatch(words) or _HOUR.fullmatch(words)
    if found is None:
        if has_day and not words:
            raise BadArgument(f"{text!r} has no time of day: write '{text} 09:00'")
        raise BadArgument(f"{text!r} is not a time: {_TIMES}")
    hour, half = int(found[1]), found.groups()[-1]
    if half is not None:
        if not 1 <= hour <= 12:
            raise BadArgument(f"{text!r} is not a time of day: with am and pm the hours are 1 to 12")
        hour = hour % 12 + (12 if half.strip() == "pm" else 0)
    minute, second = int(found[2] or 0), int(found[3] or 0) if found.re is _CLOCK else 0
    if hour > 23 or minute > 59 or second > 59:
        raise BadArgument(f"{text!r} is not a time of day")
    return time(hour, minute, second)


def _first_after(now: datetime, clock: time, days: Sequence[int]) -> datetime:
    """Return the first of these days, counted from today, at a time of day that is after now; the last if none is."""
    for n in days:
        day = datetime.combine(now.date() + timedelta(days=n), clock)
        # In a repeated hour, the time of day comes twice.
        for candidate in (day, day.replace(fold=1)):
            found = _localise(candidate, now.tzinfo)
            # In UTC, because two times of one zone compare by their wall clocks, without regard to `fold`.
            if found.astimezone(UTC) > now.astimezone(UTC):
                return found
    return _localise(datetime.combine(now.date() + timedelta(days=days[-1]), clock), now.tzinfo)


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
