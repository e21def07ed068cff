"""Pauses and resumes: a change of paused.json in the primary, then in each other wheel of the set that can be reached.

The primary's file counts. A copy is replaced by a newer one only, and the replicator brings it to wheels that could not
be reached, so a promotion finds it. The mark in the file `begun` changes after the file is durable: from then on no
keeper begins what is paused.
Invariant: a change that returned is in the primary, durable, and in force.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from filewheel.disk.begun import MARK_BYTES, Marks
from filewheel.disk.directory import Directory, opened
from filewheel.disk.keeper_lock import holder
from filewheel.disk.paused import change_pauses, read_pauses
from filewheel.errors import Damaged, FilewheelError, disk_errors, said, said_of
from filewheel.format.pauses import Pause, Pauses
from filewheel.roster.fence import Fence, fenced
from filewheel.roster.roster import Roster, read_roster
from filewheel.sets.peers import Peers, skip_unreachable

log = logging.getLogger(__name__)

_COPY_WAIT_S = 3.0


def pause(directory: Directory, wanted: Pause, *, drain: bool = False) -> Pause:
    """Add a pause and return it; one that exists keeps its time. With `drain`, also count a drain of the wheel.

    On return it is durable, and no message that it holds begins. Raises as `change_pauses`; Fenced in a backup.
    """

    def add(old: Pauses) -> Pauses:
        return replace(old.added(wanted), drains=old.drains + drain)

    _, new = _change(directory, add)
    _warn_of_old_keeper(directory)
    return new.find(wanted) or wanted


def resume(directory: Directory, which: Callable[[Pause], bool]) -> tuple[Pause, ...]:
    """Remove the pauses for which `which` returns True; return them. Raises as `pause`."""

    def remove(old: Pauses) -> Pauses:
        left = tuple(p for p in old if not which(p))
        return old if len(left) == len(old) else replace(old, entries=left)

    old, new = _change(directory, remove)
    return tuple(p for p in old if new.find(p) is None)


def _change(directory: Directory, change: Callable[[Pauses], Pauses]) -> tuple[Pauses, Pauses]:
    """Change the pauses of a primary, or of a wheel in no set; return the old and the new ones."""
    fence, peers = Fence(directory), Peers(directory.env)
    roster = _checked(directory, fence, peers)

    def changed(old: Pauses) -> Pauses:
        fence.look()  # under the lock: a promotion since then reads this file after it has fenced this wheel
        fence.check_may_write()
        new, epoch = change(old), 0 if roster is None else roster.epoch
        return old if new == old else replace(new, version=old.version + 1, epoch=max(old.epoch, epoch))

    old, new = change_pauses(directory, changed)
    Marks(directory).note(directory.env.entropy(MARK_BYTES), 1)
    if roster is not None:  # also without a change: a copy may be behind
        _spread(directory, new, roster, peers)
    return old, new


def _checked(directory: Directory, fence: Fence, peers: Peers) -> Roster | None:
    """Return the roster of a wheel that may be paused. Raises Fenced when another one is, or becomes, the primary."""
    fence.check_may_write()
    roster = fence.roster
    if roster is not None:
        for one in peers.seen(roster.wheels(), roster.set):
            if one.roster.epoch > roster.epoch:
                raise fenced(replace(one.roster, role="fenced"), directory.path)
    return roster


def _spread(directory: Directory, pauses: Pauses, roster: Roster, peers: Peers) -> None:
    """Copy the pauses to the other wheels of a set; log those that cannot be reached."""
    for member in roster.members:
        if member.state == "fenced" or not member.is_wheel:
            continue

        def write(path: str = member.path, wheel: str = member.wheel) -> None:
            with opened(path, directory.env) as there:
                theirs = read_roster(there.disk, path)
                is_ours = theirs is not None and theirs.set == roster.set and theirs.epoch == roster.epoch
                if there.settings.id == wheel and is_ours:
                    change_pauses(
                        there, lambda old: pauses if pauses.order > old.order else old, mend=True, wait_s=_COPY_WAIT_S
                    )

        try:
            peers.ask(member.path, write)
        except (FilewheelError, OSError) as exc:
            log.warning(
                "%s did not get this change (%s): a replicator brings it there; if that wheel is promoted before, it "
                "does not know of it",
                member.path,
                said_of(exc, member.path),
            )


def copy_pauses(source: Directory, target: Directory) -> None:
    """Make the pauses of a backup those of its primary; nothing is written if they are. A damaged copy is replaced.

    Nothing is done while the primary's own file is damaged: its keeper, and `verify`, report that. Raises as
    `change_pauses`.
    """

    def primarys(old: Pauses) -> Pauses:
        theirs = read_pauses(source.disk, source.path)  # read under the lock: a later change comes after this one
        return old if theirs == old else theirs

    with contextlib.suppress(Damaged), disk_errors(source.path):
        theirs = read_pauses(source.disk, source.path)
        try:
            is_same = theirs == read_pauses(target.disk, target.path)
        except Damaged as exc:
            log.warning("%s; it is replaced by the primary's", said(exc))
            is_same = False
        if not is_same:
            change_pauses(target, primarys, mend=True, wait_s=_COPY_WAIT_S)


def take_over(here: Directory, wheels: list[tuple[str, str]], peers: Peers) -> tuple[Pauses, list[str]]:
    """Give a wheel that is being promoted the newest pauses of its set; return them, and notes about what is paused.

    Files that cannot be read are passed over, with a note. Raises Damaged when its own is damaged and no other is
    readable, and as `change_pauses`.
    """
    found: list[Pauses] = []
    notes: list[str] = []

    def look(path: str, wheel: str) -> None:
        with opened(path, here.env) as there:
            if there.settings.id == wheel:
                try:
                    found.append(read_pauses(there.disk, path))
                except Damaged as exc:
                    notes.append(said(exc))

    for path, wheel in wheels:
        with skip_unreachable():
            peers.ask(path, partial(look, path, wheel))
    newest = max(found, key=lambda pauses: pauses.order, default=None)
    _, now = change_pauses(
        here, lambda old: old if newest is None or newest.order <= old.order else newest, mend=newest is not None
    )
    if now.entries:
        notes.append(f"paused, as before: {now}; `filewheel resume` ends it")
    return now, notes


def _warn_of_old_keeper(directory: Directory) -> None:
    """Log a warning if the present keeper is of a version that does not heed pauses."""
    who = holder(directory)
    if who is not None and who.pid is not None and who.drains is None:
        log.warning(
            "%s: %s is the keeper, and its version of filewheel does not heed pauses: restart it", directory.path, who
        )
