"""The errors with which a promotion, a rejoin and a repair refuse, for a program that asks somebody first.

An answer to a question that could only fail is wasted. The state may change between the check and the call, so the
call checks again.
Invariant: nothing here changes a wheel; a check may take the keeper's lock for a moment.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from filewheel.checks import check_flag, check_path
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env
from filewheel.errors import Damaged, Fenced, FilewheelError, disk_errors
from filewheel.format import layout
from filewheel.roster.roster import read_roster
from filewheel.sets.promote import Promoting
from filewheel.sets.rejoin import rosters_for
from filewheel.sets.status import find_primary
from filewheel.tools.verify import Finding


def check_promote(path: str | os.PathLike[str], *, force: bool = False, env: Env = SYSTEM) -> None:
    """Raise the error with which `promote` would refuse this wheel now. Cost: a look at each wheel of the set."""
    check_flag("force", force)
    where = check_path(path)
    with disk_errors(where), opened(where, env) as here:
        promoting = Promoting.of(here)
        if not promoting.is_done():
            promoting.check_complete(force=force)


def check_rejoin(path: str | os.PathLike[str], *, force: bool = False, env: Env = SYSTEM) -> None:
    """Raise the error with which `rejoin` would refuse this wheel now. Cost: a look at each wheel of the set."""
    check_flag("force", force)
    where = check_path(path)
    with disk_errors(where), opened(where, env) as old:
        rosters_for(old, where, force=force)
        _check_keeper(old, "rejoin")


def check_repair(directory: Directory, found: Sequence[Finding]) -> None:
    """Raise the error with which a repair of these findings would end with nothing mended.

    Raises Locked while a keeper runs; Damaged when only the roster is damaged, which a repair leaves as it is; Fenced
    for a backup.
    """
    check_not_copied(directory, found)
    _check_keeper(directory, "repair")
    if found and all(one.name == layout.ROSTER for one in found):
        raise Damaged(f"a repair does not mend {layout.ROSTER}", path=directory.path, hint=found[0].hint or None)


def check_not_copied(directory: Directory, found: Sequence[Finding]) -> None:
    """Raise Fenced for damage in a backup whose primary can be read: a repair would make a history of its own of it."""
    primary = primary_of_copy(directory)
    if primary is not None and any(one.name not in (layout.SETTINGS, layout.SETTINGS_COPY) for one in found):
        raise Fenced(
            f"this wheel is a backup of {primary}: it is not repaired, but copied from there",
            path=directory.path,
            hint=f"`filewheel -C {shlex.quote(primary)} backup verify` has the command",
        )


def primary_of_copy(directory: Directory) -> str | None:
    """Return the path of the primary of a backup; None for all other wheels, and when the primary cannot be read."""
    try:
        roster = read_roster(directory.disk, directory.path)
        if roster is None or roster.role != "backup":
            return None
        return find_primary(directory.path, directory.env)[0]
    except (FilewheelError, OSError):
        return None


def _check_keeper(directory: Directory, role: str) -> None:
    """Raise Locked while another process is the keeper."""
    lock = KeeperLock(directory)
    lock.take(role, wait=False)
    lock.release()
