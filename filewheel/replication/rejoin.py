"""Rejoining: a wheel that was fenced becomes a backup of the primary that took its place.

What only it has was enqueued there and never copied: the new primary absorbs it first (absorb.py). Then it says in its
own roster that it is a backup, and so does the primary's; a replicator makes it equal to the new one.
Invariant: no message that was only here is dropped before it is durable in the new primary.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import Directory, DiskFactory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, NoWheel
from filewheel.owner import Owner
from filewheel.replication.absorb import Absorption
from filewheel.replication.replicator import find_primary
from filewheel.roster import Member, Roster, change_roster, read_roster
from filewheel.writer import Entropy

log = logging.getLogger(__name__)

_BATCH = 10_000

Progress = Callable[[str, int, int], None]


@dataclass
class Rejoin:
    """What a rejoin did."""

    primary: str
    kept: int = 0
    """Messages that only the old wheel had, and that are in the new primary now."""
    dropped: int = 0
    """Messages that the old wheel had fired, and the new primary did not know of."""
    notes: list[str] = field(default_factory=list)


def rejoin(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
    entropy: Entropy = secrets.token_bytes,
    progress: Progress | None = None,
) -> Rejoin:
    """Make a fenced wheel a backup of the new primary, which first gets what only the old one has.

    On return it is registered as a backup that is joining; a replicator brings it in step. `force` also takes a wheel
    that is a backup already. Cost: a walk over both wheels, and over the journals that the new primary has retained.

    Raises BadArgument when the wheel was not fenced, NoWheel when the new primary cannot be seen, Locked while its
    keeper runs.
    """
    where = os.path.abspath(os.fspath(path))
    with _opened(where, disk) as old:
        mine = read_roster(old.disk, where)
        if mine is None:
            raise BadArgument(f"{where} is in no set of wheels", hint="`filewheel backup add`")
        primary, theirs = find_primary(where, disk)
        if theirs.primary_wheel == old.settings.id:
            raise BadArgument(f"{where} is the primary", hint="promote another wheel first")
        if mine.role == "backup" and not force:
            raise BadArgument(f"{where} is a backup already", hint="`filewheel replicate` keeps it in step")
        owner = Owner(old)
        owner.take("rejoin", wait=False)
        try:
            with _opened(primary, disk) as new:
                member = theirs.member(old.settings.id)
                found = Absorption(
                    old, new, overflow=None if member is None else member.overflow, clock=clock, entropy=entropy,
                    progress=progress,
                ).run()  # fmt: skip
                _register(old, new, member, clock)
                return Rejoin(primary, found.kept, found.dropped, found.notes)
        finally:
            owner.release()


def _register(old: Directory, new: Directory, member: Member | None, clock: Clock) -> None:
    """Write into both rosters that the old wheel is a backup now: into its own first, so that it never fires again."""
    mode = member.mode if member is not None else "ship"
    back = Member(old.path, old.settings.id, mode, "joining", clock.now_us())

    def join(roster: Roster | None) -> Roster | None:
        return None if roster is None else roster.with_member(back)

    theirs = read_roster(new.disk, new.path)
    if theirs is None:
        raise NoWheel("the primary has left its set", path=new.path)
    joined = theirs.with_member(back)
    change_roster(old, lambda _: replace(joined, role="backup"))
    change_roster(new, join)


@contextlib.contextmanager
def _opened(path: str, disk: DiskFactory) -> Iterator[Directory]:
    opened = open_directory(path, write=False, disk=disk)
    try:
        yield opened
    finally:
        opened.disk.release()
