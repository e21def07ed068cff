"""Says whether a wheel's files may hold one message twice, so that a count from frame headers would be too high.

A wheel gets each message once, from the writer that made its id. It may get one again where messages are given back:
to a primary that lost them, or to a new primary from an old one. So may a wheel whose checkpoint cannot be read, and
one that takes in a log, of which it may read a part twice. Before that a wheel gets the mark, an empty file that is
never removed and that its copies have too.
Invariant: the mark is durable before the files hold a message twice.
"""

from __future__ import annotations

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.format import layout


def may_repeat(directory: Directory) -> bool:
    """Return whether the files of this wheel may hold a message twice. Cost: two stats."""
    disk = directory.disk
    # The second is of a former backup of filewheel 0.2, which has no mark.
    return disk.identity(layout.REPEATS) is not None or disk.identity(layout.FOLLOWS) is not None


def note_repeats(disk: Disk) -> None:
    """Mark a wheel before it may get a message again. Durable on return. Raises OSError."""
    if disk.identity(layout.REPEATS) is None:
        disk.close(disk.open(layout.REPEATS, "w"))
    disk.sync_dir("")  # also when the mark exists: a crash may have come before its flush
