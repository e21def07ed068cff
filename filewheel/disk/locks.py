"""Short kernel locks: those of unique keys that are taken, and those of ids that move or end.

A waiting call polls: a wait in the kernel has no time-out, and the holder may be stopped. The first use makes the
file of a lock; it is never removed.

The rules of ids (docs/adr/0028-one-move-wins.md):

V1 A call that moves or cancels a pending message holds the lock of its id from its check to its frame.
V2 The keeper puts messages back under these locks too, and never waits for one.
Locks of keys are taken before those of ids, and each kind in ascending order.
Format: docs/format.md, 13.
Invariants: at most one call for one id is between check and frame. A lock that is held has a `HeldLocks`, which
releases it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import UNWRITTEN, Locked, disk_error
from filewheel.format import layout

WAIT_S = 30.0
"""How long a producer waits for a lock."""
_PAUSE_S = 0.0005
_PAUSE_MAX_S = 0.02


def open_made(disk: Disk, name: str) -> int:
    """Make the directory of a file, if it is missing, and open the file for writing."""
    with contextlib.suppress(FileExistsError):
        disk.mkdir(name.rpartition("/")[0])
    return disk.open(name, "rw")


class HeldLocks:
    """Locks of files, in the order in which they were taken. Leaving its `with` releases them. Not thread-safe.

    A file is noted before its lock is taken, so an interrupt (Ctrl-C) leaves no lock that nobody releases. One that
    comes before `close` begins leaves them to the end of this object, which is that of the traceback.
    """

    def __init__(self, directory: Directory) -> None:
        self._files: list[tuple[int, str]] = []
        """Descriptor and name of each."""
        self._dir = directory
        self._disk = directory.disk

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, name: str, wait_s: float) -> bool:
        """Take the lock of a file; return False when it stays held for longer than `wait_s`. Raises DiskError."""
        disk = self._disk
        try:
            try:
                self._files.append((disk.open(name, "rw"), name))
            except FileNotFoundError:
                self._files.append((open_made(disk, name), name))
            fd = self._files[-1][0]
            waited_s, pause_s = 0.0, _PAUSE_S
            while not disk.lock(fd, wait=False):  # mutant: id-unlocked key-unlocked
                if waited_s >= wait_s:
                    del self._files[-1]
                    disk.close(fd)
                    return False
                disk.wait_hint(None, pause_s)
                waited_s += pause_s
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(name), undone=UNWRITTEN) from exc
        return True

    def close(self) -> None:
        """Release the locks, the last one first. Raises OSError."""
        try:
            while self._files:
                self._disk.close(self._files[-1][0])
                del self._files[-1]
        except BaseException:  # an interrupt (Ctrl-C) too
            files, self._files = self._files, []
            for n, (fd, name) in enumerate(reversed(files)):
                # The first of them may be closed already, and its number in use for another file.
                if n or self._has_open(fd, name):
                    self._disk.close(fd)
            raise

    def __del__(self) -> None:
        if getattr(self, "_files", None):  # it has none after an interrupt in `__init__`
            self.close()

    def _has_open(self, fd: int, name: str) -> bool:
        try:
            return self._disk.is_named(fd, name)
        except OSError as exc:
            if exc.errno != errno.EBADF:
                raise
            return False


def number_of(hash_: bytes) -> int:
    """Return the number of the lock of a key, by its hash."""
    return hash_[0] * layout.KEY_LOCKS >> 8


def take_keys(held: HeldLocks, hashes: Iterable[bytes], wait_s: float) -> frozenset[int]:
    """Take the locks of keys, by their hashes; return the numbers of those held by others: decide nothing about them.

    Cost: about 10 µs for each of at most 16 locks. Raises DiskError.
    """
    return frozenset([n for n in sorted({number_of(h) for h in hashes}) if not held.take(layout.key_lock(n), wait_s)])


def bucket_of(id_: bytes) -> int:
    """Return the number of an id's lock."""
    return id_[-1] % layout.ID_BUCKETS


def take_ids(held: HeldLocks, ids: Iterable[bytes], wait_s: float) -> frozenset[int]:
    """Take the locks of ids; return the buckets held by others: leave their ids unchanged.

    Cost: about 10 µs for each of at most 16 locks. Raises DiskError.
    """
    return frozenset([b for b in sorted({*map(bucket_of, ids)}) if not held.take(layout.id_lock(b), wait_s)])


def holding_ids(directory: Directory, ids: Iterable[bytes]) -> HeldLocks:
    """Take the locks of ids, for a `with`; raise Locked when another process holds one for half a minute."""
    held = HeldLocks(directory)
    try:
        if take_ids(held, ids, WAIT_S):
            raise Locked(
                "another process is in the middle of moving or cancelling a message, and does not go on",
                role="id",
                path=directory.path,
                hint="continue or kill the stopped process",
            )
    except BaseException:  # an interrupt (Ctrl-C) too
        held.close()
        raise
    return held
