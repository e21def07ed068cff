"""Campaign: what the command line makes of local times around every change of every time zone's clocks.

A round is one zone. Its changes from 1970 to 2040 are found by bisection; around each, times are written as people
write them, and read by `parse_time` with the zone's own rules and by the command line's `read_time` with the machine's
(TZ). What they mean is worked out from one direction only, which is never in doubt: from an instant to its local time.
Invariant: the oracle never turns a local time into an instant by anything but looking which instants show it.
"""

from __future__ import annotations

import contextlib
import os
import time
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.input.params import read_time
from filewheel.message import US_PER_S
from filewheel.timespec import parse_time
from tests.crash.campaign import Campaign, Tally

ZONES = sorted(z for z in zoneinfo.available_timezones() if z not in {"localtime", "posixrules"})
END_S = 2_208_988_800
"""2040."""
LOOK_S = 86_400
"""Two changes within a day that undo each other are not seen; none is known."""
EDGES_S = [-7200, -3600, -1, 0, 1, 600, 1800]
NOWS_S = [-86_400, -5400, -1, 0, 900, 5400]
_EPOCH = datetime(1970, 1, 1)


class Zone:
    """A zone's offsets, by instant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.info = zoneinfo.ZoneInfo(name)

    def offset(self, epoch_s: int) -> int:
        found = datetime.fromtimestamp(epoch_s, UTC).astimezone(self.info).utcoffset()
        assert found is not None
        return found // timedelta(seconds=1)

    def changes(self) -> Iterator[tuple[int, int, int]]:
        """Yield (instant, offset before, offset after) of each change."""
        before = self.offset(0)
        for at in range(LOOK_S, END_S, LOOK_S):
            after = self.offset(at)
            if after != before:
                low, high = at - LOOK_S, at
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self.offset(middle) == before else (low, middle)
                yield high, before, after
                before = after

    def passes(self, local_s: int, near: list[int]) -> list[int]:
        """Return the instants that show this local time, by offsets that are near; of a skipped one its stand-in."""
        shows = [local_s - o for o in near if self.offset(local_s - o) == o]
        # A jump forward leaves no instant: by the offset before it, the time lies as far behind it.
        return sorted(shows) or [local_s - min(near)]


def iso(local_s: int) -> datetime:
    """Return the naive datetime that is so many seconds on the wall since 1970."""
    return _EPOCH + timedelta(seconds=local_s)


@contextlib.contextmanager
def machine_in(zone: str) -> Iterator[bool]:
    """Let the machine be in a zone; yield whether it can be."""
    paths = [f"{path}/{zone}" for path in zoneinfo.TZPATH if os.path.exists(f"{path}/{zone}")]
    was = os.environ.get("TZ")
    if paths:
        os.environ["TZ"] = ":" + paths[0]
        time.tzset()
    try:
        yield bool(paths)
    finally:
        if was is None:
            os.environ.pop("TZ", None)
        else:
            os.environ["TZ"] = was
        time.tzset()


def play(number: int, tally: Tally, rig: Any) -> None:
    """Play one zone."""
    zone = Zone(ZONES[number])
    with machine_in(zone.name) as here:
        if not here:
            tally.skip(f"no time zones in {zoneinfo.TZPATH}")
        last = -(10**9)
        for at, before, after in zone.changes():
            if at - last < 4 * 86_400:
                tally.count("changes too close to another")
            last = at
            tally.count("tz transitions")
            for wall, edge in ((o, e) for o in {before, after} for e in EDGES_S):
                local_s = at + wall + edge
                check(zone, tally, local_s, at, here=here)
            for now_s in NOWS_S:
                for wall in {before, after}:
                    check_clock(zone, tally, at + wall + 600, at + now_s, here=here)


def check(zone: Zone, tally: Tally, local_s: int, at: int, *, here: bool) -> None:
    """Read one date and time, which names no zone."""
    meant = zone.passes(local_s, sorted({zone.offset(at - 1), zone.offset(at)}))[0]
    if meant < 0:
        return
    text = iso(local_s).isoformat()
    now = datetime.fromtimestamp(at, UTC).astimezone(zone.info)
    tally.count("times read", 1 + here)
    got = parse_time(text, now).timestamp()
    tally.check(got == meant, f"{zone.name} {text}: read as {got:.0f}, means {meant}")
    if here:
        us = read_time(text, at * US_PER_S).due_us
        tally.check(us == meant * US_PER_S, f"TZ={zone.name} {text}: read as {us / US_PER_S:.0f}, means {meant}")


def check_clock(zone: Zone, tally: Tally, local_s: int, now_s: int, *, here: bool) -> None:
    """Read a time of day as its next occurrence."""
    if now_s < 0:
        return
    near = sorted({zone.offset(now_s + d * 43_200) for d in range(-3, 7)})
    today = (now_s + zone.offset(now_s)) // 86_400
    days = [(today + d) * 86_400 + local_s % 86_400 for d in range(4)]
    meant = min(u for day in days for u in zone.passes(day, near) if u > now_s)
    text = iso(local_s).strftime("%H:%M:%S")
    tally.count("times read", 1 + here)
    got = parse_time(text, datetime.fromtimestamp(now_s, UTC).astimezone(zone.info)).timestamp()
    tally.check(got == meant, f"{zone.name} {text} at {now_s}: read as {got:.0f}, means {meant}")
    if here:
        us = read_time(text, now_s * US_PER_S).due_us
        tally.check(us == meant * US_PER_S, f"TZ={zone.name} {text} at {now_s}: {us / US_PER_S:.0f}, means {meant}")


CAMPAIGN = Campaign(
    name="zones",
    title="local times around every change of every time zone",
    play=play,
    share=0.02,
    targets={"tz transitions": 30_000},
    rounds=len(ZONES),
    missing=lambda: None if len(ZONES) > 100 else "no time zone data",
)
