"""Every change of every zone's clocks from 1970 to 2037, and what a cron job does around one, told a second time.

The changes are read from the database's files (RFC 8536) and from the rules that continue them. The fires around a
change are written down from the rule itself, by listing the wall times that fit and mapping each: nothing searches.
"""

from __future__ import annotations

import importlib.resources
import struct
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

DAY_S = 86_400
FIRST_S = int(datetime(1970, 1, 2, tzinfo=UTC).timestamp())
END_S = int(datetime(2038, 1, 1, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class Change:
    """From `at_s` on, clocks are `after_s` ahead of UTC, and `before_s` until then."""

    at_s: int
    before_s: int
    after_s: int

    @property
    def shift_s(self) -> int:
        """How far clocks were put forward; back, when it is negative."""
        return self.after_s - self.before_s


@dataclass(frozen=True)
class Daily:
    """A cron expression for each day, with the times of day that it means."""

    text: str
    hours: tuple[int, ...]
    minutes: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether it names times of day."""
        minute, hour, *_ = self.text.split()
        return minute[0] != "*" and hour[0] != "*"

    def fires(self, change: Change, start_s: int, end_s: int) -> list[int]:
        """Return its fires from `start_s` until `end_s`, if the clocks change in between only once."""
        found = set()
        before, after, is_fixed = change.before_s, change.after_s, self.is_fixed
        seconds = [h * 3600 + m * 60 for h in self.hours for m in self.minutes]
        for day in range((start_s - DAY_S) // DAY_S, (end_s + DAY_S) // DAY_S + 1):
            for wall_s in (day * DAY_S + second for second in seconds):
                passes = [wall_s - before] if wall_s - before < change.at_s else []
                if wall_s - after >= change.at_s:
                    passes.append(wall_s - after)
                if is_fixed:
                    passes = passes[:1] or [change.at_s]
                found.update(passes)
        return sorted(at for at in found if start_s <= at < end_s)


def offset_s(zone: ZoneInfo, at_s: int) -> int:
    """Return how far a zone is ahead of UTC."""
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _file(name: str) -> bytes:
    for top in zoneinfo.TZPATH:
        path = Path(top) / name
        if path.is_file():
            return path.read_bytes()
    return importlib.resources.files("tzdata").joinpath("zoneinfo", name).read_bytes()


def _listed(data: bytes) -> list[int]:
    """Return the instants that a zone's file lists."""
    first = struct.unpack(">6l", data[20:44])
    # The first part has 4-byte times and is there for old readers; the second has what counts.
    skipped = 44 + first[3] * 5 + first[4] * 6 + first[5] + first[2] * 8 + first[1] + first[0]
    assert data[skipped : skipped + 4] == b"TZif"
    count = struct.unpack(">6l", data[skipped + 20 : skipped + 44])[3]
    return list(struct.unpack(f">{count}q", data[skipped + 44 : skipped + 44 + 8 * count]))


def _by_rule(zone: ZoneInfo, start_s: int) -> list[int]:
    """Return the instants after the last one listed: a week is shorter than any rule's summer."""
    found = []
    after = offset_s(zone, start_s)
    for week_s in range(start_s, END_S, 7 * DAY_S):
        low, high = week_s, week_s + 7 * DAY_S
        before, after = after, offset_s(zone, high)
        if before != after:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset_s(zone, middle) == before else (low, middle)
            found.append(high)
    return found


def _changes(name: str, data: bytes) -> list[Change]:
    zone = ZoneInfo(name)
    listed = [at for at in _listed(data) if at < END_S]
    last_s = max([FIRST_S, *listed])
    found = []
    for at in sorted({*listed, *_by_rule(zone, last_s)}):
        change = Change(at, offset_s(zone, at - 1), offset_s(zone, at)) if at >= FIRST_S else None
        if change and change.shift_s and at < END_S:
            found.append(change)
    return found


@cache
def all_changes() -> dict[str, list[Change]]:
    """Return the changes of one zone of each group whose rules are equal, by name."""
    by_file: dict[bytes, str] = {}
    for name in sorted(zoneinfo.available_timezones()):
        by_file.setdefault(_file(name), name)
    groups: dict[tuple[Change, ...], str] = {}
    for data, name in by_file.items():
        groups.setdefault(tuple(_changes(name, data)), name)
    return {name: list(changes) for changes, name in groups.items()}
