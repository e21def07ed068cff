"""Whether one message may stand twice in a wheel's files, so that a count by headers would count it twice.

A message comes once to a wheel that stands alone: by the writer that gave out its id. It may come a second time where
wheels copy from each other: a backup is written to by producers, a replicator and heals, and a primary is given back
what it lost. It may also come again to a wheel without a checkpoint that can be read. A wheel knows that it is, or was,
in such a set; for the rest there is a mark, an empty file, which is never removed.
Invariant: the mark, or what makes it needless, is durable before a file holds one message twice.
"""

from __future__ import annotations

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.roster.roster import read_roster, was_in_set


def may_repeat(directory: Directory) -> bool:
    """Tell whether a file of this wheel may hold a message twice. Cost: some stats, and a reading of the roster."""
    disk = directory.disk
    if disk.identity(layout.REPEATS) is not None or disk.identity(layout.FOLLOWS) is not None:
        return True
    try:
        roster = read_roster(disk, directory.path)
    except (FilewheelError, OSError):
        return True  # it is of a set, and nobody knows what it was there
    if roster is None:
        return was_in_set(disk)
    # A primary that was never promoted, in a set without any promotion, has only what its own producers wrote.
    return roster.role != "primary" or roster.epoch > 1


def note_repeats(disk: Disk) -> None:
    """Mark a wheel before a message may come to it again. Durable on return. Raises OSError."""
    if disk.identity(layout.REPEATS) is None:
        disk.close(disk.open(layout.REPEATS, "w"))
    disk.sync_dir("")  # also of one that is there: a crash may have come before this
