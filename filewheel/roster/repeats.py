"""Says whether a wheel's files may hold one message twice, so that a count from frame headers would be too high.

A wheel that is in no set gets each message once, from the writer that made its id. It may get a message again where
wheels copy from each other: producers, a replicator and heals write to a backup, and a heal returns messages that a
primary lost. A wheel whose checkpoint cannot be read may also get messages again, and one that takes in a log, of which
it may read a part twice. A wheel knows that it is, or was, in a set; in all other cases there is a mark, an empty file
that is never removed.
Invariant: the mark, or the membership that replaces it, is durable before the files hold a message twice.
"""

from __future__ import annotations

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.roster.roster import read_roster, was_in_set


def may_repeat(directory: Directory) -> bool:
    """Return whether the files of this wheel may hold a message twice. Cost: some stats, and one read of the roster."""
    disk = directory.disk
    if disk.identity(layout.REPEATS) is not None or disk.identity(layout.FOLLOWS) is not None:
        return True
    try:
        roster = read_roster(disk, directory.path)
    except (FilewheelError, OSError):
        return True  # it is in a set, in an unknown role
    if roster is None:
        return was_in_set(disk)
    # The first primary of a set without any promotion has only messages of its own producers.
    return roster.role != "primary" or roster.epoch > 1


def note_repeats(disk: Disk) -> None:
    """Mark a wheel before it may get a message again. Durable on return. Raises OSError."""
    if disk.identity(layout.REPEATS) is None:
        disk.close(disk.open(layout.REPEATS, "w"))
    disk.sync_dir("")  # also when the mark exists: a crash may have come before its flush
