"""Sets of wheels: making a wheel a backup of another, taking it out again, and how they all are.

The primary's roster is what counts, so it is written last when a member comes and first when one goes: a crash in
between leaves a wheel that says it is a backup and is none, which `add_backup` and `remove_backup` mend when they are
called again.
Invariant: a wheel in which something waits is never made a backup of another unless it is already of the same set.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import Directory, DiskFactory, create_directory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, Fenced, FilewheelError, NotFound, NoWheel, WheelExists
from filewheel.message import US_PER_S
from filewheel.owner import holder
from filewheel.replication.behind import Behind, how_far_behind
from filewheel.replication.follows import read_follows
from filewheel.roster import (
    Member,
    Mode,
    OnFailure,
    Roster,
    change_roster,
    read_roster,
)
from filewheel.snapshot import Snapshot
from filewheel.standing import fenced


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
    with _opened(os.path.abspath(os.fspath(primary)), disk) as ours:
        if where == os.path.abspath(ours.path):
            raise BadArgument("a wheel is no backup of itself", hint="name a directory on another disk")
        roster = read_roster(ours.disk, ours.path)
        if roster is not None and roster.role != "primary":
            raise fenced(roster, ours.path)
        _make(where, ours, force=force, clock=clock, disk=disk)
        with _opened(where, disk) as theirs:
            _check_free(theirs, roster)
            member = Member(where, theirs.settings.id, mode, "joining", clock.now_us())

            def join(old: Roster | None) -> Roster | None:
                now = old or Roster(secrets.token_hex(16), 1, "primary", os.path.abspath(ours.path), ours.settings.id)
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
    if copies is not None and (type(copies) is not int or not 0 <= copies <= 16):
        raise BadArgument(f"copies is a number from 0 to 16, not {copies!r}", hint="0 is the primary and all mirrors")
    if timeout_s is not None and (not isinstance(timeout_s, (int, float)) or not 0.01 <= timeout_s <= 3600):
        raise BadArgument(f"timeout_s is 0.01 to 3600, not {timeout_s!r}")
    if retain_bytes is not None and (type(retain_bytes) is not int or retain_bytes < 1 << 20):
        raise BadArgument(f"retain_bytes is at least {1 << 20}, not {retain_bytes!r}")


def _make(where: str, ours: Directory, *, force: bool, clock: Clock, disk: DiskFactory) -> None:
    """Make the backup's wheel unless there is one."""
    with contextlib.suppress(NoWheel), _opened(where, disk):
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


def _check_free(theirs: Directory, ours: Roster | None) -> None:
    """Raise unless a wheel may become a backup in this set: it is of it, or nothing waits in it."""
    roster = read_roster(theirs.disk, theirs.path)
    if roster is not None and ours is not None and roster.set == ours.set:
        if roster.role != "backup":
            raise Fenced("this wheel was a primary of this set", path=theirs.path, hint="`filewheel rejoin`")
        return
    if roster is not None and roster.role != "backup":
        raise WheelExists("this wheel is of another set", path=theirs.path, hint="name another directory")
    with Snapshot(theirs) as snapshot:
        if next(snapshot.puts(hi=b"\xff" * 16), None) is not None:
            raise WheelExists(
                "messages wait in this wheel; as a backup it would lose them", path=theirs.path,
                hint="name an empty directory, or `filewheel dump` it first",
            )  # fmt: skip


def remove_backup(
    primary: str | os.PathLike[str],
    which: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
) -> Member:
    """Take a backup out of its set, by its path or the start of its wheel id; return it as it was registered.

    If it can be reached it stands alone afterwards: a keeper that is started on it fires what it holds. With the last
    backup the set is dissolved. Raises NotFound, Fenced.
    """
    with _opened(os.path.abspath(os.fspath(primary)), disk) as ours:
        roster = read_roster(ours.disk, ours.path)
        if roster is not None and roster.role != "primary":
            raise fenced(roster, ours.path)
        member = _find(roster, which, ours.path)

        def leave(old: Roster | None) -> Roster | None:
            if old is None:
                return None
            left = old.without_member(member.wheel)
            return left if left.members else None

        # First here: from now on nobody waits for it, or writes to it. A crash leaves it as a backup without a set.
        change_roster(ours, leave)
    with contextlib.suppress(FilewheelError, OSError), _opened(member.path, disk) as theirs:
        if theirs.settings.id == member.wheel:
            change_roster(theirs, lambda old: None if old is not None and old.role == "backup" else old)
    return member


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

    Cost: a stat of each journal segment, and the headers of the frames that a backup has not read.
    """
    with _opened(os.path.abspath(os.fspath(path)), disk) as here:
        roster = read_roster(here.disk, here.path)
        if roster is None:
            return None
        found: list[MemberStatus] = []
        for member in roster.members:
            found.append(_status(here if roster.role == "primary" else None, member, clock, disk))
        return SetStatus(roster, roster.primary, found)


def _status(primary: Directory | None, member: Member, clock: Clock, disk: DiskFactory) -> MemberStatus:
    why = member.why
    try:
        with _opened(member.path, disk) as there:
            if there.settings.id != member.wheel:
                return MemberStatus(member, False, why="another wheel is in its place")
            following = holder(there, "backup") is not None
            follows = read_follows(there.disk, there.path)
            if primary is None or follows is None or follows.primary_wheel != primary.settings.id:
                return MemberStatus(member, True, following=following, why=why)
            behind = how_far_behind(primary, follows) if follows.overflow >= 0 else Behind()
            lag_s = 0.0
            if behind.bytes is None or behind.bytes > 0:
                lag_s = max(0, clock.now_us() - follows.in_step_us) / US_PER_S
            return MemberStatus(member, True, behind.messages, behind.bytes, lag_s, following, why)
    except (FilewheelError, OSError) as exc:
        return MemberStatus(member, False, why=str(exc))


@contextlib.contextmanager
def _opened(path: str, disk: DiskFactory) -> Iterator[Directory]:
    opened = open_directory(path, write=False, disk=disk)
    try:
        yield opened
    finally:
        opened.disk.release()
