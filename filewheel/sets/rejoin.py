"""Rejoining: a fenced wheel becomes a backup of the new primary.

Messages that only the old wheel has were never copied; the new primary absorbs them first (absorb.py). Then the old
wheel's roster and the primary's roster say that it is a backup. A replicator clears it, and copies it anew.
Invariant: no message that only the old wheel had is dropped before it is durable in the new primary.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filewheel.checks import check_flag, check_path
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env
from filewheel.errors import BadArgument, Fenced, disk_errors
from filewheel.roster.fence import let_producers_look
from filewheel.roster.roster import Member, Roster, change_roster, read_roster
from filewheel.sets.absorb import Absorbed, Absorption
from filewheel.sets.forks import first_not_in, read_forks
from filewheel.sets.status import find_primary

Progress = Callable[[str, int, int], None]


@dataclass
class Rejoin:
    """The result of a rejoin."""

    primary: str
    kept: int = 0
    """Messages that only the old wheel had, now in the new primary."""
    dropped: int = 0
    """Messages that were finished only in the old wheel."""
    notes: list[str] = field(default_factory=list)


def rejoin(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    env: Env = SYSTEM,
    progress: Progress | None = None,
) -> Rejoin:
    """Make a fenced wheel a backup of the new primary, after copying the messages that only the old one has.

    On return it is registered as a backup in state "joining"; a replicator brings it in step. `force` also accepts a
    wheel that is a backup already. Cost: all of the old wheel is read twice.

    Raises BadArgument when the wheel was not fenced, NoWheel when no primary can be found, Locked while its keeper
    runs, DiskError, Damaged.
    """
    check_flag("force", force)
    where = check_path(path)
    with disk_errors(where), opened(where, env) as old:
        mine, primary, theirs = rosters_for(old, where, force=force)
        with opened(primary, env) as new:
            return take_in(old, new, mine, theirs, progress=progress)


def take_in(
    old: Directory, new: Directory, mine: Roster, theirs: Roster, *, progress: Progress | None = None
) -> Rejoin:
    """Make a former primary a backup of the new one; `mine` and `theirs` are their rosters. Raises as `rejoin`."""
    keeper_lock = KeeperLock(old)
    keeper_lock.take("rejoin", wait=False)
    try:
        _fence(old, theirs)  # mutant: rejoin-unfenced
        fork = first_not_in(read_forks(new), read_forks(old))
        found = Absorbed()
        if fork is not None:
            found = Absorption(old, new, fork, progress=progress).run()  # mutant: rejoin-registers-first
        _register(old, new, mine, theirs.member(old.settings.id))
        return Rejoin(new.path, found.kept, found.dropped, found.notes)
    finally:
        keeper_lock.release()


def rosters_for(old: Directory, where: str, *, force: bool) -> tuple[Roster, str, Roster]:
    """Return the old wheel's roster, the primary's path and its roster. Raises BadArgument, NoWheel."""
    mine = read_roster(old.disk, where)
    if mine is None:
        raise BadArgument(f"{where} is in no set of wheels", hint="`filewheel backup add DIR`")
    primary, theirs = find_primary(where, old.env)
    if theirs.primary_wheel == old.settings.id:
        raise BadArgument(f"{where} is the primary", hint="promote another wheel first")
    member = theirs.member(old.settings.id)
    # After a crash between the two rosters, its own says "backup", and the new primary's does not.
    is_registered = member is not None and member.state != "fenced"
    if mine.role == "backup" and is_registered and not force:
        raise BadArgument(f"{where} is a backup already", hint="`filewheel replicate` keeps it in step")
    return mine, primary, theirs


def _fence(old: Directory, theirs: Roster) -> None:
    """Fence the old wheel, and wait until its producers have seen that."""

    def fence(mine: Roster | None) -> Roster | None:
        if mine is None or mine.role not in ("primary", "promoting"):
            return mine
        return replace(
            mine,
            role="fenced",
            epoch=theirs.epoch,
            primary=theirs.primary,
            primary_wheel=theirs.primary_wheel,
            office=theirs.office,
        )

    change_roster(old, fence)
    let_producers_look()


def _register(old: Directory, new: Directory, mine: Roster, member: Member | None) -> None:
    """Register the old wheel as a backup in both rosters: in its own first, so that it never fires again."""
    mode = member.mode if member is not None else "ship"
    back = Member(old.path, old.settings.id, mode, "joining", new.env.clock.now_us())

    def join(roster: Roster | None) -> Roster:
        if roster is None or roster.role != "primary" or roster.set != mine.set:
            raise Fenced("this wheel is not the primary any more", path=new.path, hint="`filewheel rejoin` again")
        return roster.with_member(back)

    joined = join(read_roster(new.disk, new.path))
    # A crash between the two leaves a backup that the new primary still lists as fenced.
    change_roster(old, lambda _: replace(joined, role="backup"))
    change_roster(new, join)
