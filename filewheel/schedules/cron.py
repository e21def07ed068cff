"""The next fire of a cron expression in a time zone.

It has the rules for clocks that go forward or back. The search goes by months, not minutes, so it costs the same for
ten years as for a minute.
Invariant: `after(us) > us`, no fire is between the two, and no search covers more than 40 years.
"""

from __future__ import annotations

import calendar
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import date
from zoneinfo import ZoneInfo

from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US, US_PER_S
from filewheel.schedules.expression import parse
from filewheel.schedules.zone import Zone

_DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_END_S = DUE_END_US // US_PER_S - 2 * _DAY_S
"""From here on, near the end of the year 9999, the local time of some zones leaves the calendar."""
_YEARS = 40
"""29 February falls on a given weekday every 28 years, across 2100 after 40."""
_GAPS_MOST = 256
"""More gaps than any zone has in 40 years: Morocco has two a year."""


class Cron:
    """A cron expression in a time zone.

    Five fields, or six with seconds first: minute, hour, day-of-month, month, day-of-week. Each is `*`, a value, a
    range `9-17`, a step `*/15` or `8-18/2`, or a list of these. Months and weekdays also by name, in either case; 0 and
    7 are Sunday; a range may run over the end (`fri-mon`, `22-4`). `L` is the last day of the month, `LW` its last day
    from Monday to Friday, `fri#2` the second Friday, `friL` the last. Or @hourly, @daily, @midnight, @weekly, @monthly,
    @yearly, @annually.

    When both day fields are restricted, a day must fit either; when one of them begins with `*`, a day must fit both.
    (So `0 0 13 * fri` is each 13th and each Friday, and `0 0 */2 * fri` the Fridays with an odd date.)

    Where clocks change:

    - Minute and hour name times of day (neither begins with `*`): a time in a gap fires once, at the first instant
      after the gap; a time in a fold fires once, the first time.
    - Minute or hour begins with `*`: real time. It fires in both passes of a fold, and omits only times in a gap.

    This is the rule of Debian's cron. Two with the same expression and zone are equal; `0 0 * * *` is @daily.
    """

    __slots__ = ("_days", "_expression", "_zone")

    def __init__(self, text: str, tz: str | ZoneInfo = "UTC") -> None:
        """Read an expression.

        Raises BadArgument for text that is not one, for an expression that never fires (30 February), and for an
        unknown zone.
        """
        self._expression = parse(text)
        self._zone = Zone(tz)
        self._days: dict[tuple[int, int], tuple[int, ...]] = {}
        try:
            self._next_wall_s(0)
        except BadArgument:
            raise BadArgument(
                f"{self.text!r} never comes: none of its months has such a day-of-month and day-of-week",
                hint="'0 0 L 2 *' for the last day of February",
            ) from None

    @property
    def text(self) -> str:
        """The normalized expression: lower case except L, single spaces, a name like @daily expanded."""
        return self._expression.text

    @property
    def tz(self) -> str:
        """The name of the zone."""
        return self._zone.name

    def after(self, us: int) -> int:
        """Return the first fire strictly after an instant, both in microseconds since the epoch.

        Cost: some microseconds, for any distance. No fire is before 1970. Raises BadArgument when there is none for 40
        years (as `*/5 2 * 3 sunL` where that hour is always a gap), or none before the year 10000.
        """
        start_s = max(us, -1) // US_PER_S + 1
        if start_s >= _END_S:
            raise self._nothing()
        found_s = self._after_fixed(start_s) if self._expression.is_fixed else self._after_moving(start_s)
        if found_s >= _END_S:
            raise self._nothing()
        return found_s * US_PER_S

    def times(self, us: int) -> Iterator[int]:
        """Yield the fires after an instant, without end. Raises as `after` does."""
        while True:
            us = self.after(us)
            yield us

    def is_moved(self, us: int) -> bool:
        """Return whether a gap has moved a fire: its local time is not one of the expression."""
        at_s = us // US_PER_S
        wall_s = at_s + self._zone.offset_s(at_s)
        return self._next_wall_s(wall_s) != wall_s

    def to_text(self) -> str:
        """Return the definition as JSON, for `from_text`."""
        return json.dumps({"cron": self.text, "tz": self.tz}, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cron) and (self.text, self.tz) == (other.text, other.tz)

    def __hash__(self) -> int:
        return hash((self.text, self.tz))

    def __repr__(self) -> str:
        return f"Cron({self.text!r}, tz={self.tz!r})"

    # -- the zone ----------------------------------------------------------------------------------------------

    def _after_fixed(self, start_s: int) -> int:
        """Return the first fire from an instant on, of a job with times of day."""
        zone = self._zone
        # At the end of a gap the times inside of it have yet to fire: the smaller offset includes them.
        wall_s = start_s + min(zone.offset_s(start_s - 1), zone.offset_s(start_s))
        first, second = zone.offsets_s(wall_s)
        if first > second and wall_s - second == start_s:  # the second pass of a fold, without fires
            wall_s = zone.change_s(wall_s - first, start_s) + first
        wall_s = self._next_wall_s(wall_s)
        first, second = zone.offsets_s(wall_s)
        if first < second:
            return zone.change_s(wall_s - second, wall_s - first)
        return wall_s - first

    def _after_moving(self, start_s: int) -> int:
        """Return the first fire from an instant on, of a job that follows real time."""
        zone = self._zone
        for _ in range(_GAPS_MOST):
            here_s = start_s + zone.offset_s(start_s)
            wall_s = self._next_wall_s(here_s)
            first, second = zone.offsets_s(here_s)
            if first > second and here_s - first == start_s:  # the first pass of a fold
                change_s = zone.change_s(start_s, here_s - second)
                if wall_s >= change_s + first:
                    start_s = change_s  # not in the rest of this pass, maybe in the second
                    continue
            first, second = zone.offsets_s(wall_s)
            if first >= second:
                return wall_s - first if wall_s - first >= start_s else wall_s - second
            start_s = zone.change_s(wall_s - second, wall_s - first)
        raise self._nothing()

    # -- the calendar, without a zone ------------------------------------------------------------------------

    def _next_wall_s(self, wall_s: int) -> int:
        """Return the first wall time from this one on that fits."""
        day, second = divmod(wall_s, _DAY_S)
        found = self._next_day(day)
        if found == day:
            time_s = self._next_time_s(second)
            if time_s is not None:
                return day * _DAY_S + time_s
            found = self._next_day(day + 1)
        first_s = self._next_time_s(0)
        assert first_s is not None
        return found * _DAY_S + first_s

    def _next_time_s(self, second: int) -> int | None:
        """Return the first second of the day from this one on that fits, if there is one."""
        e = self._expression
        hour, minute, second = second // 3600, second // 60 % 60, second % 60
        if hour in e.hours:
            if minute in e.minutes and second <= e.seconds[-1]:
                return hour * 3600 + minute * 60 + e.seconds[bisect_left(e.seconds, second)]
            if minute < e.minutes[-1]:
                return hour * 3600 + e.minutes[bisect_right(e.minutes, minute)] * 60 + e.seconds[0]
        if hour < e.hours[-1]:
            return e.hours[bisect_right(e.hours, hour)] * 3600 + e.minutes[0] * 60 + e.seconds[0]
        return None

    def _next_day(self, day: int) -> int:
        """Return the first day (counted from 1970) from this one on that fits."""
        if day > _END_S // _DAY_S:
            raise self._nothing()
        begin = date.fromordinal(day + _EPOCH_DAY)
        from_day, first = begin.day, begin.year * 12 + begin.month - 1
        for months in range(first, min(first + _YEARS * 12, 9999 * 12 + 11) + 1):
            year, month = months // 12, months % 12 + 1
            if month in self._expression.months:
                days = self._days_of(year, month)
                if days and from_day <= days[-1]:
                    of_month = days[bisect_left(days, from_day)]
                    return date(year, month, of_month).toordinal() - _EPOCH_DAY
            from_day = 1
        raise self._nothing()

    def _days_of(self, year: int, month: int) -> tuple[int, ...]:
        weekday, length = calendar.monthrange(year, month)
        # There are 28 kinds of months.
        found = self._days.get((weekday, length))
        if found is None:
            found = self._days[weekday, length] = self._expression.days_of((weekday + 1) % 7, length)
        return found

    def _nothing(self) -> BadArgument:
        return BadArgument(
            f"{self.text!r} in {self.tz} does not come again: not in {_YEARS} years, or not before the year 10000",
            hint="a time of day: a time in a gap then fires at the end of the gap",
        )
