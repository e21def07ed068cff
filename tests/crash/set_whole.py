"""Makes a set whole again, as a person would whose processes have all ended, and compares its wheels.

A promotion that was cut short is done again, a wheel that was fenced rejoins, a replicator brings all in step. None of
that may need force: whatever failed, and whenever, the set can be made whole with the commands that the docs name.
Invariant: nothing is fired here.
"""

from __future__ import annotations

import os
from pathlib import Path

from filewheel import BadArgument, FilewheelError, Wheel, promote, rejoin, verify_backups
from filewheel.disk.directory import opened
from filewheel.disk.disk import SYSTEM
from filewheel.roster.roster import Roster, roster_at
from filewheel.tools import dump
from filewheel.tools.verify import verify
from tests.crash.set_scenarios import NAMES, PassingClock, replicate

_TRIES = 3


def make_whole(place: Path, now_us: int, *, damages: bool) -> tuple[Path, list[str], bool]:
    """Return the wheel that fires, what is wrong with the set, and whether a rejoin said that something may fire again.

    `damages`: files were removed on purpose.
    """
    clock = PassingClock(now_us)
    primary = _primary(place) or _promote_any(place, clock)
    if primary is None:
        return place / NAMES[0], ["no wheel of the set can be promoted"], False
    doubts: list[str] = []
    for path, roster in _rosters(place).items():
        top = roster_at(primary)
        # A rejoin that was cut short between the two rosters leaves a backup that the primary calls fenced.
        half = top is not None and any(m.path == str(path) and m.state == "fenced" for m in top.members)
        if path != primary and (half or roster.role == "fenced" or (roster.role == "primary" and _is_of(roster, top))):
            doubts += rejoin(path, env=SYSTEM.using(clock=clock)).notes
    wrong = _bring_in_step(primary, clock)
    return primary, wrong + _differences(primary, clock, damages=damages), bool(doubts)


def _rosters(place: Path) -> dict[Path, Roster]:
    found = {place / name: roster_at(place / name) for name in NAMES if (place / name / "wheel.json").exists()}
    return {path: roster for path, roster in found.items() if roster is not None}


def _is_of(roster: Roster, top: Roster | None) -> bool:
    return top is not None and roster.set == top.set


def _primary(place: Path) -> Path | None:
    rosters = _rosters(place)
    if place / NAMES[0] not in rosters:
        return place / NAMES[0]  # it stands alone: who was added was not, and says so to nobody who counts
    best = max(rosters, key=lambda path: rosters[path].epoch)
    primaries = [p for p in rosters if rosters[p].role == "primary" and rosters[p].epoch == rosters[best].epoch]
    return primaries[0] if primaries else None


def _promote_any(place: Path, clock: PassingClock) -> Path | None:
    """Promote again: what was being promoted, or whichever wheel may be."""
    rosters = _rosters(place)
    for path in sorted(rosters, key=lambda p: rosters[p].role != "promoting"):
        try:
            promote(path, wait_s=0.05, env=SYSTEM.using(clock=clock))
        except BadArgument:
            continue
        return path
    return None


def _bring_in_step(primary: Path, clock: PassingClock) -> list[str]:
    roster = roster_at(primary)
    if roster is None or not roster.members:
        return []
    said = ""
    for _ in range(_TRIES):
        try:
            replicate(str(primary), clock)
        except FilewheelError as exc:
            said = str(exc)
            continue
        left = [m for m in (roster_at(primary) or roster).members if m.state != "current"]
        if not left:
            return []
        said = f"{left[0].path} is {left[0].state}"
    return [f"the set cannot be brought in step: {said}"]


def _differences(primary: Path, clock: PassingClock, *, damages: bool) -> list[str]:
    wrong = []
    pending = _pending(primary, clock)
    members = {m.path for m in (roster_at(primary) or Roster("", 0, "primary", "", "")).members}
    for one in verify_backups(primary, env=SYSTEM.using(clock=clock)) if members else ():
        wrong += [f"{one.status.member.path} is no copy: {found}" for found in one.mismatches]
    for path in map(Path, sorted(members)):
        other = _pending(path, clock)
        if other != pending:
            wrong.append(f"{path.name} lacks {len(pending - other)} messages, and has {len(other - pending)} too many")
        with opened(path) as directory:
            wrong += [f"damage in {path.name}: {f.name}: {f.what}" for f in verify(directory).damage]
        if not damages:
            wrong += [f"in quarantine of {path.name}: {name}" for name in os.listdir(path / "quarantine")]
    return wrong


def _pending(path: Path, clock: PassingClock) -> set[tuple[bytes, bytes]]:
    with Wheel(path, clock=clock) as wheel:
        return {(bytes(m.id), m.payload) for m in dump.dump(wheel)}
