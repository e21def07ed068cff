"""Sets of wheels: making a wheel a backup of another, taking it out again, and how they all are.

The primary's roster is what counts, so it is written last when a member comes and first when one goes: a crash in
between leaves a wheel that says it is a backup and is none, which `add_backup` and `remove_backup` mend when they are
called again. With its last backup a set is dissolved, but the roster stays, with no members: those who have the wheel
open go on, and a wheel that missed that it was taken out is still known as one of this set.
Invariant: a wheel in which something waits is never made a backup of another unless it is already of the same set.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, replace

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.disk.directory import Directory, DiskFactory, create_directory, opened
from filewheel.disk.disk import OsDisk
from filewheel.disk.keeper_lock import holder
from filewheel.errors import BadArgument, Fenced, FilewheelError, NotFound, NoWheel, WheelExists, disk_errors, said
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S
from filewheel.replication.behind import Behind, how_far_behind
from filewheel.replication.follows import read_follows
from filewheel.replication.whole import missing_files
from filewheel.roster.fence import fenced
from filewheel.roster.retention import discard_retained, read_overflow
from filewheel.roster.roster import (
    COPIES_MAX,
    MEMBERS_MAX,
    TIMEOUT_MAX_S,
    Member,
    Mode,
    OnFailure,
    Roster,
    change_roster,
    read_roster,
)


def add_backup(
    primary: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    mode: Mode = "ship",
    on_failure: OnFailure | None = None,
    copies: int | None = None,
    timeout_s: float | None = None,
    retain_bytes: int | None = None,
    force: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
) -> Member:
    """Make `path` a backup of a wheel, and return how it is registered. A replicator brings it in step.

    Makes the backup's wheel when nothing is there. What `on_failure`, `copies`, `timeout_s` and `retain_bytes` say
    holds for the whole set. A member that is registered already gets the new mode.

    Raises Fenced when the wheel is not a primary, WheelExists when something waits in the other one, BadArgument.
    """
    where = os.path.abspath(os.fspath(path))
    _check(mode, on_failure, copies, timeout_s, retain_bytes)
    with disk_errors(where), opened(os.path.abspath(os.fspath(primary)), disk) as ours:
        if where == os.path.abspath(ours.path):
            raise BadArgument("a wheel is no backup of itself", hint="name a directory on another disk")
        roster = read_roster(ours.disk, ours.path)
        if roster is not None and roster.role != "primary":
            raise fenced(roster, ours.path)
        _make(where, ours, force=force, clock=clock, disk=disk)
        with opened(where, disk) as theirs:
            known = _check_free(theirs, ours, roster)
            if roster is not None and len(roster.members) >= MEMBERS_MAX:
                raise BadArgument(
                    f"a set has {MEMBERS_MAX} backups at most", hint="`filewheel backup remove` one first"
                )
            member = Member(where, theirs.settings.id, mode, "joining", clock.now_us())
            # What an `add_backup` that was cut short has written there is taken up.
            made_up = (secrets.token_hex(16), 1) if known is None else (known.set, known.epoch)
            first = Roster(*made_up, "primary", os.path.abspath(ours.path), ours.settings.id)

            def join(old: Roster | None) -> Roster | None:
                now = old or first
                return replace(
                    now.with_member(member),
                    on_failure=on_failure or now.on_failure,
                    copies=now.copies if copies is None else copies,
                    timeout_s=now.timeout_s if timeout_s is None else timeout_s,
                    retain_bytes=now.retain_bytes if retain_bytes is None else retain_bytes,
                )

            def be_backup(mine: Roster) -> Roster:
                return replace(mine, role="backup")

            # A crash between the two leaves a backup that its primary does not know: added again, it is known.
            planned = join(roster)
            assert planned is not None
            change_roster(theirs, lambda _: be_backup(planned))
            made = change_roster(ours, join)
            assert made is not None
            change_roster(theirs, lambda _: be_backup(made))
    return member


def _check(mode: object, on_failure: object, copies: object, timeout_s: object, retain_bytes: object) -> None:
    if mode not in ("ship", "mirror"):
        raise BadArgument(f'mode is "ship" or "mirror", not {mode!r}')
    if on_failure not in (None, "refuse", "stale"):
        raise BadArgument(f'on_failure is "refuse" or "stale", not {on_failure!r}')
    if copies is not None and (type(copies) is not int or not 0 <= copies <= COPIES_MAX):
        raise BadArgument(
            f"copies is a number from 0 to {COPIES_MAX}, not {copies!r}", hint="0 is the primary and all mirrors"
        )
    if timeout_s is not None and (not isinstance(timeout_s, (int, float)) or not 0.01 <= timeout_s <= TIMEOUT_MAX_S):
        raise BadArgument(f"timeout_s is 0.01 to {TIMEOUT_MAX_S}, not {timeout_s!r}")
    if retain_bytes is not None and (type(retain_bytes) is not int or not 1 << 20 <= retain_bytes < 1 << 63):
        raise BadArgument(f"retain_bytes is {1 << 20} or more, not {retain_bytes!r}")


def _make(where: str, ours: Directory, *, force: bool, clock: Clock, disk: DiskFactory) -> None:
    """Make the backup's wheel unless there is one."""
    with contextlib.suppress(NoWheel), opened(where, disk):
        return
    create_directory(
        where,
        slots=ours.settings.slots,
        sync=ours.settings.sync,
        payload_bytes_max=ours.settings.payload_bytes_max,
        now_us=clock.now_us(),
        force=force,
        disk=disk,
    )


def _check_free(theirs: Directory, primary: Directory, ours: Roster | None) -> Roster | None:
    """Raise unless a wheel may become a backup in this set: it is of it, or nothing waits in it. Return its roster."""
    if theirs.settings.id == primary.settings.id:
        raise BadArgument("this is the primary, or a copy of it", path=theirs.path, hint="name another directory")
    roster = read_roster(theirs.disk, theirs.path)
    if roster is not None and ours is not None and roster.set == ours.set:
        if roster.role != "backup":
            raise Fenced("this wheel was a primary of this set", path=theirs.path, hint="`filewheel rejoin`")
        return roster
    if roster is not None and roster.role == "primary" and not roster.members:
        roster = None  # its set was dissolved
    # One that says it is a backup of this primary, which has no set: an add or a removal was cut short.
    if roster is not None and (roster.role != "backup" or roster.primary_wheel != primary.settings.id or ours):
        raise WheelExists(
            f"this wheel is of another set, with the primary {roster.primary}", path=theirs.path,
            hint="`filewheel backup remove` it there, or name another directory",
        )  # fmt: skip
    with Snapshot(theirs) as snapshot:
        if next(snapshot.puts(hi=b"\xff" * 16), None) is not None:
            raise WheelExists(
                "messages wait in this wheel; as a backup it would lose them", path=theirs.path,
                hint="name an empty directory, or `filewheel dump` it first",
            )  # fmt: skip
    return roster


def remove_backup(
    primary: str | os.PathLike[str],
    which: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
) -> Member:
    """Take a backup out of its set, by its path or the start of its wheel id; return it as it was registered.

    If it can be reached it stands alone afterwards: a keeper that is started on it fires what it holds.

    Raises NotFound, Fenced, Damaged, DiskError.
    """
    mine = os.path.abspath(os.fspath(primary))
    with disk_errors(mine), opened(mine, disk) as ours:
        roster = read_roster(ours.disk, ours.path)
        if roster is not None and roster.role != "primary":
            raise fenced(roster, ours.path)
        try:
            member = _find(roster, which, ours.path)
        except NotFound:
            left_over = _left_over(ours, roster, which, disk)
            if left_over is None:
                raise
            member, set_ = left_over
        else:
            set_ = "" if roster is None else roster.set

        def leave(old: Roster | None) -> Roster | None:
            if old is None:
                return None
            left = old.without_member(member.wheel)
            return left if left.members else replace(left, copies=0)

        # First here: from now on nobody waits for it, or writes to it. A crash leaves it as a backup without a set.
        left = change_roster(ours, leave)
        if left is not None and not left.members:
            with contextlib.suppress(OSError):  # the next keeper does it otherwise
                discard_retained(ours)

    def stand_alone(old: Roster | None) -> Roster | None:
        return None if old is not None and old.role == "backup" and old.set == set_ else old

    with contextlib.suppress(FilewheelError, OSError), opened(member.path, disk) as theirs:
        if theirs.settings.id == member.wheel:
            change_roster(theirs, stand_alone)
    return member


def _left_over(ours: Directory, roster: Roster | None, which: str, disk: DiskFactory) -> tuple[Member, str] | None:
    """Return the wheel at this path, and its set, if it says that it is a backup of a primary that does not know it."""
    where = os.path.abspath(which)
    with contextlib.suppress(FilewheelError, OSError), opened(where, disk) as theirs:
        found = read_roster(theirs.disk, where)
        if found is not None and found.role == "backup" and (
            found.primary_wheel == ours.settings.id if roster is None else found.set == roster.set
        ):  # fmt: skip
            return Member(where, theirs.settings.id), found.set
    return None


def _find(roster: Roster | None, which: str, path: str) -> Member:
    members = () if roster is None else roster.members
    where = os.path.abspath(which)
    found = [m for m in members if m.path == where] or [m for m in members if which and m.wheel.startswith(which)]
    if len(found) != 1:
        raise NotFound(
            f"{which!r} names {len(found) or 'no'} backup{'s' if len(found) > 1 else ''}", path=path,
            hint="`filewheel backup list` shows their paths and ids",
        )  # fmt: skip
    return found[0]


# -- how they are --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemberStatus:
    """How one backup is."""

    member: Member
    reachable: bool
    lag_messages: int | None = None
    """Records of the primary's journals that it has not got yet; None when that is not known."""
    lag_bytes: int | None = None
    lag_s: float | None = None
    """How long ago it was in step; 0 when nothing is behind."""
    following: bool = False
    """A replicator is at work on it now."""
    why: str = ""
    """What is wrong with it."""
    lacks: int = 0
    """How many files are missing, or too short, that its checkpoint names."""


@dataclass(frozen=True)
class SetStatus:
    """How a set of wheels is."""

    roster: Roster
    primary: str
    members: list[MemberStatus]


def set_status(
    path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK, disk: DiskFactory = OsDisk
) -> SetStatus | None:
    """Say how the set of this wheel is, as its primary sees it; None when the wheel stands alone. Takes no lock.

    Cost: a stat of each journal segment and of each file of a backup, and the headers of the frames that a backup has
    not read.
    """
    where = os.path.abspath(os.fspath(path))
    with disk_errors(where), opened(where, disk) as here:
        roster = read_roster(here.disk, here.path)
        if roster is None or (roster.role == "primary" and not roster.members):
            return None
        if roster.role == "primary":
            return SetStatus(roster, roster.primary, [_status(here, m, clock, disk) for m in roster.members])
    with contextlib.ExitStack() as stack:
        primary: Directory | None = None
        with contextlib.suppress(FilewheelError, OSError):
            there = stack.enter_context(opened(roster.primary, disk))
            theirs = read_roster(there.disk, there.path)
            if theirs is not None and theirs.role == "primary" and (theirs.set, True) == (
                roster.set, theirs.epoch >= roster.epoch
            ):  # fmt: skip
                primary, roster = there, theirs
        return SetStatus(roster, roster.primary, [_status(primary, m, clock, disk) for m in roster.members])


def _status(primary: Directory | None, member: Member, clock: Clock, disk: DiskFactory) -> MemberStatus:
    why = member.why
    try:
        with opened(member.path, disk) as there:
            if there.settings.id != member.wheel:
                return MemberStatus(member, False, why="another wheel is in its place")
            lacks = len(missing_files(there))
            if lacks:
                why = f"{lacks} of its files are missing: `filewheel replicate` heals it"
            following = holder(there, "backup") is not None
            follows = read_follows(there.disk, there.path)
            if primary is None or follows is None or follows.primary_wheel != primary.settings.id:
                return MemberStatus(member, True, following=following, why=why, lacks=lacks)
            is_known = 0 <= follows.overflow == read_overflow(primary)
            behind = how_far_behind(primary, follows) if is_known else Behind()
            lag_s = 0.0
            if behind.bytes is None or behind.bytes > 0:
                lag_s = max(0, clock.now_us() - follows.in_step_us) / US_PER_S
            return MemberStatus(member, True, behind.messages, behind.bytes, lag_s, following, why, lacks)
    except (FilewheelError, OSError) as exc:
        return MemberStatus(member, False, why=said(exc))
