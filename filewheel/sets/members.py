"""Adds a backup to the set of a wheel, or removes one.

The primary's roster is authoritative, so it is written last when a member joins and first when one leaves. A crash in
between leaves a wheel whose own roster says "backup" and which is not registered; another `add_backup` or
`remove_backup` completes the change. After the last removal the roster stays, without members: open handles continue,
and a wheel that missed its removal is still recognised as one of this set.
Invariant: a wheel with pending messages becomes a backup of another only if it is already in the same set.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from filewheel.checks import check_flag, check_number, check_path, scheme_of, shown
from filewheel.disk.checkpoint import Checkpoint, write_checkpoint
from filewheel.disk.directory import Directory, opened, write_settings
from filewheel.disk.disk import SYSTEM, is_scarce
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.quarantine import Quarantine
from filewheel.env import Env
from filewheel.errors import BadArgument, Fenced, FilewheelError, NotFound, NoWheel, WheelExists, disk_errors, said_of
from filewheel.format import layout
from filewheel.keys.upkeep import rebuild_keys
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S
from filewheel.roster.far import drop_note
from filewheel.roster.fence import fenced
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
from filewheel.sets.bucket import ObjectStore, is_bucket
from filewheel.sets.bucket_target import epoch_for
from filewheel.sets.pauses import copy_pauses
from filewheel.sets.peers import when_free
from filewheel.sets.places import check_place
from filewheel.sets.rejoin import take_in
from filewheel.sets.remote import LONG_S, channel_to, clear_place, place_opened
from filewheel.sets.target import replay

log = logging.getLogger(__name__)

KEEP_MAX_S = 10 * 366 * 86_400
WAIT_S = 5.0
"""How long a removal waits until the replicator lets go of a backup."""


def add_backup(
    primary: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    mode: Mode = "ship",
    on_failure: OnFailure | None = None,
    copies: int | None = None,
    timeout_s: float | None = None,
    keep_s: float | None = None,
    take_over: bool = False,
    force: bool = False,
    env: Env = SYSTEM,
) -> Member:
    """Make `path` a backup of a wheel, and return its entry in the roster. A replicator brings it in step.

    `path` is a directory or a URL. Creates the backup's wheel if it is missing. `on_failure`, `copies` and `timeout_s`
    apply to the whole set. `keep_s` is for a bucket: how far back a restore can go. `take_over` says that the wheel
    which has written to a bucket is over: it is fenced when it meets the higher epoch there. A wheel that is a member
    already gets the new mode and nothing else changes; this also works while its disk is unreachable.

    Raises Fenced when the wheel is not a primary, WheelExists when messages are pending in the other one, Replaced when
    another wheel writes to the bucket, NoWheel when the registered wheel at `path` cannot be read and nothing would
    change, BadArgument.
    """
    where = check_path(path)
    check_flag("force", force)
    _check(mode, on_failure, copies, timeout_s)
    check_place(where, mode)
    check_flag("take_over", take_over)
    if keep_s is not None:
        check_number("keep_s", keep_s, least=0, most=KEEP_MAX_S)
    if not is_bucket(where) and (keep_s is not None or take_over):
        raise BadArgument("only a bucket keeps what is older, or is taken over", hint="name a bucket: s3://...")

    def ruled(now: Roster) -> Roster:
        return replace(
            now,
            on_failure=on_failure or now.on_failure,
            copies=now.copies if copies is None else copies,
            timeout_s=now.timeout_s if timeout_s is None else timeout_s,
        )

    with disk_errors(where), opened(check_path(primary), env) as ours:
        if where == ours.path:
            raise BadArgument("a wheel is no backup of itself", hint="name a directory on another disk")
        roster = read_roster(ours.disk, ours.path)
        # Fenced by a bucket: to take it over again is to say that this wheel fires after all.
        is_back = take_over and roster is not None and roster.role == "fenced" and is_bucket(roster.primary)
        if roster is not None and roster.role != "primary" and not is_back:
            raise fenced(roster, ours.path)
        if is_bucket(where):
            where = where.rstrip("/")
            return _add_bucket(ours, where, roster, keep_s, take_over, ruled)
        registered = None if roster is None else roster.member_at(where)
        if roster is not None and registered is not None:
            away = _why_away(registered, env)
            if away or _is_backup_of(roster.set, where, env):
                return _change(ours, registered, mode, ruled, away, env)
        like = ours.settings
        make = {
            "slots": like.slots,
            "sync": like.sync,
            "payload_bytes_max": like.payload_bytes_max,
            "salt": like.salt,
        }
        with place_opened(where, env=env, make=make, force=force) as theirs:
            if scheme_of(where) and roster is not None:
                _take_back(ours, theirs, roster)
            return _join(ours, theirs, roster, mode, ruled)


def _add_bucket(
    ours: Directory,
    where: str,
    roster: Roster | None,
    keep_s: float | None,
    take_over: bool,
    ruled: Callable[[Roster], Roster],
) -> Member:
    """Register a bucket, or change how long it keeps what is older; in a higher epoch when it is taken over."""
    bucket = ObjectStore(where)
    epoch = epoch_for(bucket, ours, 1 if roster is None else roster.epoch, take_over=take_over)
    if roster is None or roster.member_at(where) is None:
        bucket.check()
    wheel = hashlib.sha256(where.encode()).hexdigest()[:32]
    fresh = Member(where, wheel, "ship", "joining", ours.env.clock.now_us())

    def join(old: Roster | None) -> Roster:
        if old is not None and old.role != "primary" and old != roster:
            raise fenced(old, ours.path)
        now = old or Roster(secrets.token_hex(16), 1, "primary", ours.path, ours.settings.id)
        known = now.member_at(where) or fresh
        if keep_s is not None:
            known = replace(known, keep_us=round(keep_s * US_PER_S))
        if epoch > now.epoch:
            known = replace(known, state="joining", since_us=max(known.since_us + 1, fresh.since_us))
        now = replace(now.with_member(known), epoch=max(now.epoch, epoch), office=0)
        return ruled(replace(now, role="primary", primary=ours.path, primary_wheel=ours.settings.id))

    if roster is not None and len(roster.members) >= MEMBERS_MAX and roster.member_at(where) is None:
        raise BadArgument(f"a set has {MEMBERS_MAX} backups at most", hint="`filewheel backup remove` one first")
    made = change_roster(ours, join)
    assert made is not None
    drop_note(ours, wheel)  # what it says was before this
    return made.member(wheel) or fresh


def _take_back(ours: Directory, theirs: Directory, roster: Roster) -> None:
    """Make a former primary on another machine a backup: no `rejoin` there can reach this primary."""
    mine = read_roster(theirs.disk, theirs.path)
    is_former = mine is not None and mine.set == roster.set and mine.role in ("primary", "fenced")
    if mine is not None and is_former and mine.epoch <= roster.epoch:
        log.info("%s was a primary: %s", theirs.path, take_in(theirs, ours, mine, roster))


def _join(
    ours: Directory,
    theirs: Directory,
    roster: Roster | None,
    mode: Mode,
    ruled: Callable[[Roster], Roster],
) -> Member:
    """Register a wheel that is not a member, or a member under another path."""
    known = _check_free(theirs, ours, roster)
    wheel = theirs.settings.id
    if roster is not None and len(roster.members) >= MEMBERS_MAX and roster.member(wheel) is None:
        raise BadArgument(f"a set has {MEMBERS_MAX} backups at most", hint="`filewheel backup remove` one first")
    fresh = Member(theirs.path, wheel, mode, "joining", ours.env.clock.now_us())
    # An interrupted `add_backup` has written the set and epoch there: they are used.
    made_up = (secrets.token_hex(16), 1) if known is None else (known.set, known.epoch)
    first = Roster(*made_up, "primary", ours.path, ours.settings.id)

    def join(old: Roster | None) -> Roster:
        now = old or first
        here = now.member_at(theirs.path)
        if here is not None and here.wheel != wheel:
            raise _is_away(here, _ANOTHER, ours.path)
        return ruled(now.with_member(fresh))

    # A crash between the two leaves a backup that its primary does not list; adding it again completes the change.
    planned = join(roster)
    if roster is None or roster.member(wheel) is None:
        _make_anew(theirs, ours)
    copy_pauses(ours, theirs)  # first: a member may be promoted
    change_roster(theirs, lambda _: replace(planned, role="backup"))
    made = change_roster(ours, join)
    assert made is not None
    change_roster(theirs, lambda _: replace(made, role="backup"))
    return made.member(wheel) or fresh


_ANOTHER = "another wheel is in its place"


def _why_away(member: Member, env: Env) -> str:
    """Return why a member's wheel cannot be read under its path; an empty string if it can.

    Raises when this process is short of files or memory.
    """
    try:
        with place_opened(member.path, env=env) as there:
            read_roster(there.disk, there.path)
            return "" if there.settings.id == member.wheel else _ANOTHER
    except (FilewheelError, OSError) as exc:
        if is_scarce(exc):
            raise
        return said_of(exc, member.path)


def _is_backup_of(set_: str, path: str, env: Env) -> bool:
    with place_opened(path, env=env) as there:
        roster = read_roster(there.disk, path)
    return roster is not None and roster.role == "backup" and roster.set == set_


def _is_away(member: Member, why: str, primary: str) -> NoWheel:
    remove = f"filewheel -C {shlex.quote(primary)} backup remove {shlex.quote(member.path)}"
    return NoWheel(
        f"a backup is registered under this path, and its wheel cannot be read ({why}); nothing was changed",
        path=member.path,
        hint=f"mount its disk; if it is lost, `{remove}`, and then add the new one",
    )


def _change(
    ours: Directory,
    member: Member,
    mode: Mode,
    ruled: Callable[[Roster], Roster],
    away: str,
    env: Env,
) -> Member:
    """Change the mode of a member and the policy of its set. The member only gets a copy of the roster."""
    now_us = max(env.clock.now_us(), member.since_us + 1)  # later than before: a state is recognised by its time

    def change(old: Roster | None) -> Roster | None:
        known = None if old is None else old.member(member.wheel)
        if old is None or known is None:
            raise NotFound(f"{member.path} was removed from the set just now", path=ours.path, hint="add it again")
        changed = known if known.mode == mode else replace(known, mode=mode)
        if changed is not known and known.state != "fenced":
            # Another process writes to it from now on, so it is compared first.
            changed = replace(changed, state="joining", since_us=now_us, why="", is_filled=False)
        now = ruled(old.with_member(changed))
        if away and now == old:
            raise _is_away(member, away, ours.path)
        return now

    made = change_roster(ours, change)
    assert made is not None

    def copy(old: Roster | None) -> Roster | None:
        is_ours = old is not None and old.role == "backup" and old.set == made.set
        return replace(made, role="backup") if is_ours else old

    # If this fails, a replicator writes the copy later.
    if not away:
        with contextlib.suppress(FilewheelError, OSError), place_opened(member.path, env=env) as theirs:
            if theirs.settings.id == member.wheel:
                change_roster(theirs, copy)
    return made.member(member.wheel) or member


def _check(mode: object, on_failure: object, copies: object, timeout_s: float | None) -> None:
    if mode not in ("ship", "mirror"):
        raise BadArgument(f'mode is "ship" or "mirror", not {shown(mode)}')
    if on_failure not in (None, "refuse", "stale"):
        raise BadArgument(f'on_failure is "refuse" or "stale", not {shown(on_failure)}')
    if copies is not None and (type(copies) is not int or not 0 <= copies <= COPIES_MAX):
        raise BadArgument(
            f"copies is a number from 0 to {COPIES_MAX}, not {shown(copies)}", hint="0 is the primary and all mirrors"
        )
    if timeout_s is not None:
        check_number("timeout_s", timeout_s, least=0.01, most=TIMEOUT_MAX_S)


def _check_free(theirs: Directory, primary: Directory, ours: Roster | None) -> Roster | None:
    """Raise unless a wheel may join this set: it is of the set, or has no pending messages. Return its roster."""
    if theirs.settings.id == primary.settings.id:
        raise BadArgument("this is the primary, or a copy of it", path=theirs.path, hint="name another directory")
    roster = read_roster(theirs.disk, theirs.path)
    if roster is not None and ours is not None and roster.set == ours.set:
        if roster.role != "backup":
            raise Fenced("this wheel was a primary of this set", path=theirs.path, hint="`filewheel rejoin`")
        return roster
    if roster is not None and roster.role == "primary" and not roster.members:
        roster = None  # its set was dissolved
    # It says "backup" of this primary, which has no set: an add or a removal was interrupted.
    if roster is not None and (roster.role != "backup" or roster.primary_wheel != primary.settings.id or ours):
        raise WheelExists(
            f"this wheel is of another set, with the primary {roster.primary}",
            path=theirs.path,
            hint="`filewheel backup remove` it there, or name another directory",
        )
    with Snapshot(theirs) as snapshot:
        if next(snapshot.puts(hi=b"\xff" * 16), None) is not None:  # mutant: add-takes-any
            raise WheelExists(
                "messages are pending in this wheel; as a backup it would lose them",
                path=theirs.path,
                hint="name an empty directory, or `filewheel dump` it first",
            )
    return roster


def remove_backup(
    primary: str | os.PathLike[str],
    which: str,
    *,
    env: Env = SYSTEM,
) -> Member:
    """Remove a backup from its set, by its path or the start of its wheel id; return its former entry.

    If it can be reached, it becomes an independent wheel: a keeper that is started on it fires its messages.

    Raises NotFound, Fenced, Damaged, DiskError.
    """
    mine = check_path(primary)
    with disk_errors(mine), opened(mine, env) as ours:
        roster = read_roster(ours.disk, ours.path)
        if roster is not None and roster.role != "primary":
            raise fenced(roster, ours.path)
        try:
            member = _find(roster, which, ours.path)
        except NotFound:
            left_over = _left_over(ours, roster, which, env)
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

        # Here first: producers no longer wait for it or write to it. A crash here leaves a backup without a set.
        change_roster(ours, leave)
        drop_note(ours, member.wheel)
    with contextlib.suppress(FilewheelError, OSError):
        if member.is_far:
            with contextlib.closing(channel_to(member.path)) as channel:
                channel.call("leave", member.wheel, set_, wait_s=LONG_S)
        else:
            stand_alone(member.path, member.wheel, set_, env)
    return member


def stand_alone(path: str, wheel: str, set_: str, env: Env) -> None:
    """Make a former backup a wheel of its own. Its replicator lets go of it within a moment. Raises Locked, OSError."""

    def leave(old: Roster | None) -> Roster | None:
        return None if old is not None and old.role == "backup" and old.set == set_ else old

    with opened(path, env) as theirs:
        if theirs.settings.id != wheel:
            return
        lock = KeeperLock(theirs)
        when_free(WAIT_S, lambda: lock.take("backup", wait=False))
        try:
            finish_copy(theirs)
            change_roster(theirs, leave)
        finally:
            lock.release()


def finish_copy(directory: Directory) -> None:
    """Make a copy a whole wheel: with all that its ticks brought, and with an index of keys. The lock is held.

    On return it is durable. Cost: a read of the slot and lap files. Raises OSError, DiskError.
    """
    replay(directory)
    rebuild_keys(directory, Quarantine(directory))
    with contextlib.suppress(FileNotFoundError):
        directory.disk.unlink(layout.TICKS)
        directory.disk.sync_dir("")


def _make_anew(theirs: Directory, ours: Directory) -> None:
    """Make a wheel that nothing is pending in an empty copy of another. Raises Locked while a keeper has it."""
    lock = KeeperLock(theirs)
    lock.take("backup", wait=False)
    try:
        clear_place(theirs)
        settings = replace(ours.settings, id=theirs.settings.id, created=theirs.settings.created)
        if settings != theirs.settings:
            # A crash between the two leaves a wheel with nothing in it under either salt but an empty checkpoint.
            write_checkpoint(theirs.disk, Checkpoint(), partial(layout.seed, settings.salt_bytes))
            for name in (layout.SETTINGS, layout.SETTINGS_COPY):
                write_settings(theirs.disk, settings, name)
            theirs.settings = settings
    finally:
        lock.release()


def _left_over(ours: Directory, roster: Roster | None, which: str, env: Env) -> tuple[Member, str] | None:
    """Return the wheel at this path, and its set, if its roster says that it is a backup of ours."""
    where = check_path(which)
    with contextlib.suppress(FilewheelError, OSError), opened(where, env) as theirs:
        found = read_roster(theirs.disk, where)
        if (
            found is not None
            and found.role == "backup"
            and (found.primary_wheel == ours.settings.id if roster is None else found.set == roster.set)
        ):
            return Member(where, theirs.settings.id), found.set
    return None


def _find(roster: Roster | None, which: str, path: str) -> Member:
    members = () if roster is None else roster.members
    where = check_path(which)
    found = [m for m in members if m.path == where]
    if not found and isinstance(which, str) and which:
        found = [m for m in members if m.wheel.startswith(which)]
    if len(found) != 1:
        raise NotFound(
            f"{which!r} names {len(found) or 'no'} backup{'s' if len(found) > 1 else ''}",
            path=path,
            hint="`filewheel backup list` shows their paths and ids",
        )
    return found[0]
