"""A cron expression as text, and as sets of numbers. cron.py adds years and zones.

Invariant: an error names the field, the value and a correct example; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from filewheel.errors import BadArgument

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LAST = -1
"""In place of a day, or of the count in a pair with a weekday: the last one of the month."""
LAST_WORKDAY = -2
"""In place of a day: the last from Monday to Friday of the month."""

_LENGTH_MAX = 1000
_SHOWN = 64
_NTH_MAX = 5


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    example: str
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many different values there are; Sunday is both 0 and 7."""
        return 7 if self.high == 7 else self.high - self.low + 1

    def wrong(self, value: str, why: str) -> BadArgument:
        return BadArgument(f"{self.name} {value[:_SHOWN]!r}: {why}", hint=f"{self.example} as {self.name}")


_SECOND = _Field("second", 0, 59, "0 or */10")
_MINUTE = _Field("minute", 0, 59, "0 or */15 or 5,35")
_HOUR = _Field("hour", 0, 23, "9 or 8-18 or */2")
_DAY = _Field("day-of-month", 1, 31, "1 or 1-7 or L")
_MONTH = _Field(
    "month",
    1,
    12,
    "6 or jan-mar or */3",
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)
_WEEKDAY = _Field(
    "day-of-week", 0, 7, "mon-fri or 0 or fri#2 or friL", ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
)


@dataclass(frozen=True)
class Expression:
    """The meaning of an expression. Weekdays count from Sunday, 0."""

    text: str
    """The normalized expression: lower case except L, single spaces, names like @daily expanded."""
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    """Pairs of a weekday and its count in the month, as (5, 2) for the second Friday."""
    needs_both: bool
    """Whether a day must fit both day fields, not only one."""
    is_fixed: bool
    """Whether minute and hour name times of day."""

    def days_of(self, first_weekday: int, length: int) -> tuple[int, ...]:
        """Return the days that fit in a month of this length that begins on this weekday."""
        return tuple(day for day in range(1, length + 1) if self._fits(day, (first_weekday + day - 1) % 7, length))

    def _fits(self, day: int, weekday: int, length: int) -> bool:
        by_day = day in self.days
        if not by_day and LAST in self.days:
            by_day = day == length
        if not by_day and LAST_WORKDAY in self.days and 1 <= weekday <= 5:
            # The last day of the month, or a Friday with only a weekend after it.
            by_day = day == length or (weekday == 5 and day >= length - 2)
        by_weekday = (
            weekday in self.weekdays
            or (weekday, (day + 6) // 7) in self.nth
            or (day + 7 > length and (weekday, LAST) in self.nth)
        )
        return by_day and by_weekday if self.needs_both else by_day or by_weekday


def parse(text: str) -> Expression:
    """Read an expression: five fields, or six with seconds first, or a name like @daily.

    Raises BadArgument that names the field and the value.
    """
    if not isinstance(text, str):
        raise BadArgument(f"a cron expression is text, not {type(text).__name__}", hint="'0 9 * * mon-fri'")
    parts = _split(text)
    second, minute, hour, day, month, weekday = parts if len(parts) == 6 else ["0", *parts]
    weekdays, nth = _weekdays(weekday)
    last = ",".join(item[:-1] + "L" if item.endswith("l") else item for item in weekday.split(","))
    return Expression(
        # L stays a capital: a small one looks like a one.
        text=" ".join([*parts[:-3], day.upper(), month, last]),
        seconds=tuple(sorted(_values(_SECOND, second))),
        minutes=tuple(sorted(_values(_MINUTE, minute))),
        hours=tuple(sorted(_values(_HOUR, hour))),
        days=_days(day),
        months=frozenset(_values(_MONTH, month)),
        weekdays=weekdays,
        nth=nth,
        needs_both=day.startswith("*") or weekday.startswith("*"),
        is_fixed=not minute.startswith("*") and not hour.startswith("*"),
    )


def _split(text: str) -> list[str]:
    text = text.strip().lower()
    if len(text) > _LENGTH_MAX:
        raise BadArgument(
            f"{text[:_SHOWN]!r}... has {len(text):,} characters; a cron expression has at most {_LENGTH_MAX:,}",
            hint="ranges and steps in place of lists, or several schedules",
        )
    if text.startswith("@"):
        if text not in ALIASES:
            raise BadArgument(f"{text[:_SHOWN]!r} is not a name for a schedule", hint=", ".join(ALIASES))
        text = ALIASES[text]
    parts = text.split()
    if len(parts) not in (5, 6):
        raise BadArgument(
            f"{text[:_SHOWN]!r} has {len(parts)} fields; a cron expression has five: minute hour day-of-month month "
            "day-of-week, and may have seconds before them",
            hint="'0 9 * * mon-fri' is at 09:00 from Monday to Friday",
        )
    return parts


def _days(text: str) -> frozenset[int]:
    special = {"l": LAST, "lw": LAST_WORKDAY}
    found: set[int] = set()
    for item in text.split(","):
        found |= {special[item]} if item in special else _item(_DAY, item)
    return frozenset(found)


def _weekdays(text: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    plain: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for item in text.split(","):
        name, hash_sign, count = item.partition("#")
        if hash_sign:
            if not (count.isascii() and count.isdigit() and 1 <= int(count) <= _NTH_MAX):
                raise _WEEKDAY.wrong(item, f"the count after # is 1 to {_NTH_MAX}")
            nth.add((_number(_WEEKDAY, name, item) % 7, int(count)))
        elif item.endswith("l") and item != "l":
            nth.add((_number(_WEEKDAY, item[:-1], item) % 7, LAST))
        else:
            plain |= _item(_WEEKDAY, item)
    return frozenset(plain), frozenset(nth)


def _values(field: _Field, text: str) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        found |= _item(field, item)
    return found


def _item(field: _Field, item: str) -> set[int]:
    """Read one item of a list: *, a value, a range, each with or without a step."""
    base, slash, step_text = item.partition("/")
    step = _step(field, step_text, item) if slash else 1
    first, dash, last = base.partition("-")
    if base == "*":
        low, high = field.low, field.low + field.size - 1
    elif dash:
        low, high = _number(field, first, item), _number(field, last, item)
    else:
        low = _number(field, base, item)
        high = field.high if slash else low
    if high < low:  # over the end: fri-mon, 22-4
        high += field.size
    return {(value - field.low) % field.size + field.low for value in range(low, high + 1, step)}


def _step(field: _Field, text: str, item: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= field.size):
        why = f"the step after / is 1 to {field.size}: it restarts with each round of the field"
        raise field.wrong(item, why)
    return int(text)


def _number(field: _Field, text: str, item: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.low
    if text.isascii() and text.isdigit() and field.low <= int(text) <= field.high:
        return int(text)
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    raise field.wrong(item, f"{text[:_SHOWN]!r} is not {field.low} to {field.high}{names}")
