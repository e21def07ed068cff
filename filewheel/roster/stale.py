"""Marks backups stale, in the primary's roster and then in the rosters of the other wheels.

A backup that misses messages must not be promoted as if it had all of them. When the primary is lost, only the other
wheels' copies of the roster show that. They are written in a thread of their own, because a disk that does not answer
must not delay the primary; a copy that cannot be written stays as it is.
Invariant: when a roster is returned, the mark is durable in the primary.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.threads import started
from filewheel.env import Env
from filewheel.errors import FilewheelError
from filewheel.roster.roster import WHY_MAX, Member, Roster, change_roster, read_roster

TELL_S = 1.0
"""How long to wait for the other wheels."""


def mark_stale(
    directory: Directory,
    wanted: Callable[[Member], bool],
    why: str,
    *,
    epoch: int,
    now_us: int,
) -> Roster | None:
    """Mark the `wanted` members of a primary stale that are current, or mirrors; return the roster.

    Returns None if another wheel is the primary. Raises Damaged, DiskError.
    """

    def mark(roster: Roster | None, marked: Collection[str] | None = None) -> Roster | None:
        if roster is None or roster.epoch != epoch:
            return roster
        for member in roster.members:
            is_in_use = member.state == "current" or member.is_filled
            if is_in_use and (wanted(member) if marked is None else member.wheel in marked):
                stale = replace(member, state="stale", since_us=now_us, why=why[:WHY_MAX], is_filled=False)
                roster = roster.with_member(stale)
        return roster

    found = change_roster(directory, mark)
    if found is None or found.epoch != epoch or found.role != "primary":
        return None
    marked = [m.wheel for m in found.members if m.state == "stale" and m.since_us == now_us]
    if marked:
        tell = functools.partial(_tell, found, directory.env, lambda old: mark(old, marked))
        try:
            # mutant: stale-untold
            started(threading.Thread(target=tell, name="filewheel-roster", daemon=True)).join(TELL_S)
        except OSError:
            # mutant: stale-untold-unthreaded
            tell()  # no thread can be started: better wait for a disk than leave the others without the mark
    return found


def _tell(roster: Roster, env: Env, mark: Callable[[Roster | None], Roster | None]) -> None:
    """Write the marks into the rosters of the other wheels that can be reached."""
    for member in roster.members:
        with contextlib.suppress(FilewheelError, OSError):
            directory = open_directory(member.path, write=True, env=env)
            try:
                theirs = read_roster(directory.disk, directory.path)
                if directory.settings.id == member.wheel and theirs is not None and theirs.set == roster.set:
                    change_roster(directory, mark)
            finally:
                directory.disk.release()
