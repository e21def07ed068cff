"""Replace a small file atomically: write a temporary file, flush it, rename it, flush the directory.

All small files that change are written here: settings, roster, checkpoint, counters, metrics.
Invariant: a reader finds the old file or the new one, never a part; a crash leaves one of the two, and perhaps the
temporary file, which the next call overwrites.
"""

from __future__ import annotations

from filewheel.env import Disk


def write_aside(disk: Disk, aside: str, data: bytes, *, flush: bool = True) -> None:
    """Write a temporary file, to be renamed later. On return it is durable if `flush`. Raises OSError."""
    fd = disk.open(aside, "w")
    try:
        disk.truncate(fd, 0)  # a crash may have left one
        disk.pwrite(fd, data, 0)
        if flush:  # mutant: roster-unflushed
            disk.fdatasync(fd)
    finally:
        disk.close(fd)


def put_in_place(disk: Disk, aside: str, name: str, *, flush: bool = True) -> None:
    """Rename the file. On return the name is durable if `flush`. After an error either file may be in place."""
    disk.rename(aside, name)
    if flush:  # mutant: roster-name-unflushed
        disk.sync_dir(name.rpartition("/")[0])


def replace_file(disk: Disk, name: str, aside: str, data: bytes, *, flush: bool = True) -> None:
    """Replace a file by these bytes. On return they are durable if `flush`. Raises OSError."""
    write_aside(disk, aside, data, flush=flush)
    put_in_place(disk, aside, name, flush=flush)
