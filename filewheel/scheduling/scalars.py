"""Types that JSON has no form for: what text, or a number, becomes where an annotation asks for one of them.

A program stores a UUID, a Decimal or a date with its type (values.py). The shell and other languages write them as JSON
does, as text; then the annotation of the handler's parameter says what it is.
Invariant: a value comes out as the annotated type or as None, or it is refused: no other type gets through.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.timespec import delay_us, parse_duration

Convert = Callable[[Any], Any]


def _decimal(value: Any) -> Decimal:
    # A float by its shortest text: 9.5 of JSON is Decimal("9.5").
    return Decimal(value if isinstance(value, (str, int)) else repr(value))


def _datetime(value: str) -> datetime:
    found = datetime.fromisoformat(value)
    if found.utcoffset() is None:
        raise ValueError("it has no time zone")
    return found.astimezone(UTC)


def _timedelta(value: Any) -> timedelta:
    return timedelta(microseconds=parse_duration(value) if isinstance(value, str) else delay_us(value))


_NUMBERS = (int, float)
_READ: dict[Any, tuple[Convert, tuple[type, ...], str]] = {
    UUID: (UUID, (), "a UUID"),
    Decimal: (_decimal, _NUMBERS, "a Decimal"),
    date: (date.fromisoformat, (), "a date, such as 2027-01-31"),
    time: (time.fromisoformat, (), "a time of day, such as 09:30"),
    datetime: (_datetime, (), "a datetime with its zone, such as 2027-01-31T09:30Z"),
    timedelta: (_timedelta, _NUMBERS, "a duration: seconds, or such as 1h30m"),
}
"""For each type how it is read, from which other types than text, and how an error describes it."""


def reader_of(kind: Any) -> Convert | None:
    """Return how a stored value becomes one of these types; None for any other type. It raises ValueError."""
    if kind not in _READ:
        return None
    read, others, described = _READ[kind]

    def convert(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return value
        if isinstance(value, (str, *others)) and not isinstance(value, bool):
            try:
                return read(value)
            except (ValueError, InvalidOperation, OverflowError, BadArgument):
                raise ValueError(f"{shown(value)} is not {described}") from None
        raise ValueError(f"{shown(value)} is not {described}")

    return convert
