"""Times and numbers of other libraries' kinds: subclasses with an arithmetic of their own, zones that raise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any


def _raises(*args: object) -> Any:
    raise AttributeError("'datetime.timedelta' object has no attribute '_to_microseconds'")


class OddTime(datetime):
    """A datetime whose differences are of a type of its own, as pendulum's are."""

    __sub__ = __rsub__ = __add__ = __radd__ = timestamp = isoformat = _raises  # type: ignore[assignment]


class OddSpan(timedelta):
    """A timedelta that divides by its own type only, and shows other fields, as pendulum's and pandas' do."""

    __floordiv__ = __truediv__ = __mod__ = __divmod__ = __add__ = __sub__ = total_seconds = _raises  # type: ignore[assignment]
    days = seconds = microseconds = property(_raises)  # type: ignore[assignment]


class OddZone(tzinfo):
    """A zone that answers no question."""


class WrongZone(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(days=3)


class Count:
    """An integer of another library: no int, with an index."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value

    __int__ = __index__

    def __float__(self) -> float:
        return float(self._value)


def odd_time(at: datetime) -> OddTime:
    return OddTime(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, at.tzinfo, fold=at.fold)


def odd_span(seconds: float) -> OddSpan:
    return OddSpan(seconds=seconds)


WEST = timezone(-timedelta(hours=23, minutes=59))
EAST = timezone(timedelta(hours=23, minutes=59))
ODD: list[Any] = [
    odd_time(datetime(2030, 1, 1, tzinfo=UTC)), odd_time(datetime(2030, 1, 1)), odd_span(5), OddSpan.max,
    datetime.max.replace(tzinfo=WEST), datetime.min.replace(tzinfo=EAST), datetime(2030, 1, 1, tzinfo=OddZone()),
    datetime(2030, 1, 1, tzinfo=WrongZone()), datetime(2030, 1, 1, tzinfo=UTC, fold=1),
    Decimal(5), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3), Count(5), -(10**400), -0.0, 5e-324, 1e16, -1e16,
]  # fmt: skip
"""Each is taken, or refused with an error of the library."""
