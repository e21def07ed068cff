"""A time zone: its wall time at an instant, and the instants of a wall time.

Only this file uses zoneinfo. Instants are whole seconds since the epoch; a wall time is counted in the same way, as if
the clocks were in UTC. When clocks go forward, some wall times never occur (a *gap*); when they go back, some occur
twice (a *fold*).
Invariant: UTC needs no time zone database; every other zone is the database's, never the machine's.
"""

from __future__ import annotations

import difflib
import errno
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from filewheel.errors import BadArgument, disk_errors
from filewheel.message import to_datetime

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00")
_A_SECOND = timedelta(seconds=1)
_SHOWN = 64
_NO_ZONE = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})
"""Of a name that the database has no file for; another error says nothing about the zone."""


class Zone:
    """A named zone of the IANA database."""

    __slots__ = ("info", "name")

    def __init__(self, tz: str | ZoneInfo) -> None:
        """Find a zone by its name.

        Raises BadArgument for an unknown one, with the closest names; DiskError when the database cannot be read.
        """
        self.name = _name_of(tz)
        with disk_errors("the time zone database"):
            self.info: tzinfo = UTC if self.name == "UTC" else _load(self.name)

    def offset_s(self, at_s: int) -> int:
        """Return how far the clocks are ahead of UTC at an instant, in seconds."""
        if self.info is UTC:
            return 0
        offset = datetime.fromtimestamp(at_s, self.info).utcoffset()
        assert offset is not None
        return offset // _A_SECOND

    def offsets_s(self, wall_s: int) -> tuple[int, int]:
        """Return the offsets of a wall time at its first and at its second occurrence.

        They are equal if it occurs once. In a fold the first is greater; in a gap it is smaller, and they are the
        offsets before and after the gap.
        """
        if self.info is UTC:
            return 0, 0
        wall = _EPOCH + timedelta(seconds=wall_s)
        first = wall.replace(tzinfo=self.info).utcoffset()
        second = wall.replace(tzinfo=self.info, fold=1).utcoffset()
        assert first is not None
        assert second is not None
        return first // _A_SECOND, second // _A_SECOND

    def change_s(self, before_s: int, after_s: int) -> int:
        """Return the first second of the new offset, given an instant before the change and one after it."""
        old = self.offset_s(before_s)
        while after_s - before_s > 1:
            middle = (before_s + after_s) // 2
            if self.offset_s(middle) == old:
                before_s = middle
            else:
                after_s = middle
        return after_s

    def show(self, us: int) -> datetime:
        """Return the local time at an instant in microseconds; in UTC where it would leave the calendar."""
        moment = to_datetime(us)
        try:
            return moment.astimezone(self.info)
        except (OverflowError, ValueError):
            return moment


def _name_of(tz: object) -> str:
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise BadArgument(
            f"tz is the name of a time zone, not {type(tz).__name__}", hint="'Europe/Berlin', or ZoneInfo with a key"
        )
    return name


def _load(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError):  # unknown, or not a valid name
        pass
    except OSError as exc:
        if exc.errno not in _NO_ZONE:
            raise
    known = zoneinfo.available_timezones()
    if not known:
        raise BadArgument(
            f"tz {name[:_SHOWN]!r}: this system has no time zone database", hint="pip install 'filewheel[tzdata]'"
        )
    by_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name[:_SHOWN].lower(), by_case, n=3)
    raise BadArgument(
        f"tz {name[:_SHOWN]!r} is not a time zone",
        hint=" or ".join(by_case[each] for each in near) or "a name of the IANA database, Europe/Berlin",
    )
