"""The status of a set: its primary, and the progress of each backup.

It needs no running replicator: it compares the files of a backup with those of its primary.
Invariant: a report is a value. Nothing here takes a lock or writes.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass, replace

from filewheel.checks import check_path, scheme_of
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM, is_scarce
from filewheel.disk.keeper_lock import holder
from filewheel.env import Env
from filewheel.errors import (
    BadArgument,
    Damaged,
    FilewheelError,
    NoWheel,
    disk_errors,
    said_of,
)
from filewheel.message import US_PER_S
from filewheel.roster.far import FOLLOWED_US, read_note
from filewheel.roster.roster import (
    Member,
    Roster,
    read_roster,
    roster_at,
)
from filewheel.sets.lag import lag_of, lag_of_far, missing_files, why_no_copy

_ANOTHER = "another wheel is in its place"


# -- status --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemberStatus:
    """The status of one backup."""

    member: Member
    reachable: bool
    lag_messages: int | None = None
    """Records of the primary that it lacks; None when unknown."""
    lag_bytes: int | None = None
    lag_s: float | None = None
    """Seconds since it was in step; 0 when it is."""
    following: bool = False
    """Whether a replicator follows it now."""
    why: str = ""
    """The problem with it, if any."""
    lacks: int = 0
    """The number of missing or too short files of its checkpoint."""
    is_broken: bool = False
    """It cannot go on as it is, and is to be copied anew (`why`)."""


@dataclass(frozen=True)
class SetStatus:
    """The status of a set of wheels."""

    roster: Roster
    primary: str
    members: list[MemberStatus]
    primary_why: str = ""
    """Why the primary cannot be read, as seen from this wheel; an empty string if it can."""
    successor: str = ""
    """The wheel that was promoted in the primary's place, if this wheel's roster does not name it yet."""


def set_status(path: str | os.PathLike[str], *, env: Env = SYSTEM) -> SetStatus | None:
    """Return the status of this wheel's set, as its primary sees it; None when the wheel is in no set. Takes no lock.

    Cost: a stat of each file of the primary and of its backups, and the headers of the frames that a backup lacks.
    """
    where = check_path(path)
    with disk_errors(where), opened(where, env) as here:
        roster = read_roster(here.disk, here.path)
        if roster is None or (roster.role == "primary" and not roster.members):
            return None
        if roster.role == "primary":
            return SetStatus(roster, roster.primary, [member_status(here, m, env) for m in roster.members])
    with contextlib.ExitStack() as stack:
        primary: Directory | None = None
        successor = ""
        try:
            there = stack.enter_context(opened(roster.primary, env))
            theirs = read_roster(there.disk, there.path)
            why = _why_not_primary(there, theirs, roster)
            if theirs is not None and why == _promoted(theirs):
                successor = theirs.primary
            if not why and theirs is not None:
                primary, roster = there, theirs
        except (FilewheelError, OSError) as exc:
            why = said_of(exc, roster.primary)
        members = [member_status(primary, m, env) for m in roster.members]
        return SetStatus(roster, roster.primary, members, why, successor)


def _why_not_primary(there: Directory, theirs: Roster | None, ours: Roster) -> str:
    """Return why the wheel that a roster names as the primary is not; an empty string if it is."""
    if theirs is None or theirs.set != ours.set:
        return "it is no longer in this set" if there.settings.id == ours.primary_wheel else _ANOTHER
    if theirs.role == "primary" and theirs.epoch >= ours.epoch:
        return ""
    if theirs.held < theirs.epoch or ours.held < ours.epoch or theirs.role == "promoting":
        return "a promotion has started and not ended"
    return _promoted(theirs)


def _promoted(theirs: Roster) -> str:
    return f"{theirs.primary} was promoted in its place"


def member_status(primary: Directory | None, member: Member, env: Env) -> MemberStatus:
    """Return the status of one backup, as `set_status`."""
    if member.is_far:
        return _far_status(primary, member, env)
    why = member.why
    try:
        with opened(member.path, env) as there:
            if there.settings.id != member.wheel:
                return MemberStatus(member, False, why=_ANOTHER)
            lacks = len(missing_files(there))  # mutant: lacking-unlisted
            is_own = member.state == "fenced" or member.absorb  # it may have what no other wheel has
            broken = "" if is_own else why_no_copy(there)
            if broken:
                return MemberStatus(member, True, why=f"{broken}: copy it anew", is_broken=True)
            if lacks:
                why = f"{lacks} of its files are missing: `filewheel replicate` copies them again"
            follower = holder(there, "backup")
            known = MemberStatus(member, True, following=follower is not None, why=why, lacks=lacks)
            if primary is None or member.state == "joining" or there.settings.salt != primary.settings.salt:
                return known
            try:
                lag = lag_of(primary, there)
            # mutant: primary-blames-backup
            except (FilewheelError, OSError) as exc:  # an error of the primary, not of this backup
                why = f"its lag is unknown, because the primary cannot be read: {said_of(exc, primary.path)}"
                return replace(known, why=why)
            lag_s = lag.lag_s(env.clock.now_us())
            return replace(known, lag_messages=lag.records, lag_bytes=lag.size_bytes, lag_s=lag_s)
    except (FilewheelError, OSError) as exc:
        return MemberStatus(member, False, why=said_of(exc, member.path), is_broken=isinstance(exc, Damaged))


def _far_status(primary: Directory | None, member: Member, env: Env) -> MemberStatus:
    """Return the status of a backup at a URL: what its replicator knows of it."""
    if primary is None:
        return MemberStatus(member, False, why="only the replicator of the primary can ask it")
    try:
        note, now_us = read_note(primary.disk, member.wheel), env.clock.now_us()
        following = not note.error and 0 <= now_us - note.noted_us < FOLLOWED_US
        since = f" (for {max(0, now_us - note.since_us) // US_PER_S:,} s)"
        why = note.error + since if note.error else member.why
        known = MemberStatus(member, not note.error, following=following, why=why)
        if member.state == "joining" or not note.in_step_us:
            return known
        lag = lag_of_far(primary, note)
    except (FilewheelError, OSError) as exc:
        why = f"its lag is unknown, because the primary cannot be read: {said_of(exc, primary.path)}"
        return MemberStatus(member, True, why=why)
    return replace(known, lag_messages=lag.records, lag_bytes=lag.size_bytes, lag_s=lag.lag_s(now_us))


class NoPrimary(NoWheel):
    """No wheel of the set that can be read is its primary."""

    def __init__(self, what: str, *, path: str, hint: str, promoting: bool) -> None:
        super().__init__(what, path=path, hint=hint)
        self.promoting = promoting
        """A promotion has started and not ended."""


def find_primary(path: str, env: Env = SYSTEM, known: Roster | None = None) -> tuple[str, Roster]:
    """Return the path of the primary of this wheel's set, by the highest epoch that can be read, and its roster.

    `known` is the last known roster, for a wheel that cannot be reached. Raises BadArgument when the wheel is in no
    set, NoWheel when no primary can be read.
    """
    try:
        mine = roster_at(path, env)
    except (FilewheelError, OSError) as exc:
        if known is None or is_scarce(exc):
            raise
        mine = replace(known, role="backup")
    best = (path, mine) if mine is not None and mine.role == "primary" else None
    if mine is None or (best is not None and not mine.members):
        raise BadArgument(f"{path} is in no set of wheels", hint="`filewheel backup add DIR`")
    seen = () if known is None else (known.primary, *(m.path for m in known.members))
    away: dict[str, str] = {}
    is_promoting = _is_promoting(mine)
    for other in dict.fromkeys((mine.primary, *(m.path for m in mine.members), *seen)):
        try:
            theirs = roster_at(other, env)
        except (FilewheelError, OSError) as exc:
            if is_scarce(exc):  # mutant: scarce-passed-over
                raise  # it may be a newer primary, and this process is short of files or memory
            away[other] = said_of(exc, other)
            continue
        if theirs is None or theirs.set != mine.set:
            continue
        is_promoting = is_promoting or _is_promoting(theirs)
        if theirs.role == "primary" and (best is None or theirs.epoch > best[1].epoch):
            best = other, theirs
    if best is None:
        raise _no_primary(path, mine, away, is_promoting=is_promoting)
    return best


def _is_promoting(roster: Roster) -> bool:
    return roster.role == "promoting" or roster.held < roster.epoch


def _no_primary(path: str, mine: Roster, away: dict[str, str], *, is_promoting: bool) -> NoPrimary:
    """Return the error for a set whose primary cannot be read; `away` has the reasons by wheel."""
    if is_promoting:
        return NoPrimary(
            "no wheel of this set is the primary: a promotion has started and not ended",
            path=path,
            promoting=True,
            hint="wait a moment; if it was interrupted, `filewheel promote` it again",
        )
    why = away.get(mine.primary)
    if why is not None:
        what = f"{mine.primary}, the primary of this set, cannot be read ({why})"
    else:
        names = ", ".join(f"{other} ({why})" for other, why in away.items())
        what = f"no wheel of this set that can be read is its primary; these cannot be read: {names or 'none'}"
    return NoPrimary(what, path=path, promoting=False, hint=way_out(mine, path))


def way_out(roster: Roster, path: str) -> str:
    """Return a hint for a set whose primary cannot be read, as seen from the wheel at `path`."""
    if scheme_of(roster.primary):
        return f"use it on its machine; `filewheel backup add ssh://HOST{path}` there makes this wheel its backup"
    first = next(iter(roster.promotable()), None)
    if first is None:
        return f"mount its disk; no backup is current, `filewheel -C {shlex.quote(path)} backup list` lists them"
    return f"mount its disk; if it is lost, promote a current backup: `filewheel -C {shlex.quote(first.path)} promote`"
