"""A backup at a URL, as its replicator knows it: since when it cannot be reached and why, and how far it has come.

No other process asks such a backup: `backup list`, `health` and the metrics must answer at once, also when a connection
hangs. So the replicator leaves a note in the primary, once a second and after each change. It is not flushed, and no
promise rests on it.
Invariant: a note says at most what the backup had when it was written.
"""

from __future__ import annotations

import contextlib
from dataclasses import astuple, dataclass, field, replace

import msgpack

from filewheel.disk.directory import Directory
from filewheel.disk.replace import replace_file
from filewheel.env import Disk
from filewheel.format import layout
from filewheel.message import US_PER_S

FOLLOWED_US = 30 * US_PER_S
"""A replicator that left no note for this long does not run: longer than it waits for an answer."""
_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class FarNote:
    """The last note of a backup."""

    noted_us: int = 0
    """When the replicator left it."""
    error: str = ""
    """Why it cannot be reached or written; an empty string when it can."""
    since_us: int = 0
    """Since when there is this error, or none."""
    in_step_us: int = 0
    """When it had everything for the last time."""
    deal: int = 0
    keeper: str = ""
    """The keeper of its checkpoint."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Each of its files, with the length that counts."""
    clean: int = -1
    """It has no bytes that this deal has left out."""

    def failed(self, error: str, now_us: int) -> FarNote:
        """Return the note after a failure."""
        return replace(self, noted_us=now_us, error=error, since_us=self.since_us if self.error else now_us)


def read_note(disk: Disk, wheel: str) -> FarNote:
    """Return the note of a backup; an empty one if there is none. Raises OSError."""
    try:
        fd = disk.open(layout.far(wheel), "r")
    except (FileNotFoundError, NotADirectoryError):
        return FarNote()
    try:
        data = disk.pread(fd, min(_BYTES_MAX, disk.size(fd)), 0)
    finally:
        disk.close(fd)
    try:
        return FarNote(*msgpack.unpackb(data))
    except (ValueError, TypeError, msgpack.UnpackException):
        return FarNote()  # a power cut left a part of it


def write_note(directory: Directory, wheel: str, note: FarNote) -> None:
    """Replace the note of a backup. Not durable. Raises OSError."""
    disk = directory.disk
    make_far(disk)
    name = layout.far(wheel)
    replace_file(disk, name, f"{name}.tmp", msgpack.packb(astuple(note)), flush=False)


def make_far(disk: Disk) -> None:
    """Make the directory of the notes. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        disk.mkdir(layout.FAR)


def drop_note(directory: Directory, wheel: str) -> None:
    """Remove the note of a backup that was removed."""
    with contextlib.suppress(OSError):
        directory.disk.unlink(layout.far(wheel))
