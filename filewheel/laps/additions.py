"""Bytes that one transaction appends to slot and lap files, above the lengths that the checkpoint covers, and to the
index of keys.

A deal appends records from journals, and those of a file that it deals anew.
The bytes count when a checkpoint covers them. A crash before leaves bytes that the next transaction cuts off.
Invariant: after `sync`, all appended bytes are durable, and so is the name of every new file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Set

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.flush import poisoned_by
from filewheel.format import layout
from filewheel.format.key_entries import BUCKET_BYTES_MAX, pack_entry

log = logging.getLogger(__name__)

SYNC_EACH_MAX = 16
"""With more files than these, all of the file system is flushed at once."""


class Additions:
    """The files of one transaction. Not thread-safe. Close it."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._dirty: dict[str, int] = {}
        """Each file, and its descriptor while it is open (else -1)."""
        self._was: dict[str, int] = {}
        """The covered length of each file before."""
        self._new_dirs: set[str] = set()
        self._touched_dirs: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether this transaction has written to a file."""
        return name in self._was

    def append(self, name: str, length: int, data: bytes) -> None:
        """Write to a file from `length` on, and cut off the bytes that were there. Raises OSError."""
        fd = self._dirty.get(name, -1)
        if fd < 0:
            fd = self._disk.open(name, "rw")
            self._was.setdefault(name, length)
            if len(self._dirty) < SYNC_EACH_MAX:
                self._dirty[name] = fd
        try:
            if self._disk.size(fd) > length:  # mutant: tail-kept appended-at-end
                self._disk.truncate(fd, length)
            self._disk.pwrite(fd, data, length)  # mutant: appended-at-end.2
        finally:
            if self._dirty.setdefault(name, -1) != fd:
                self._disk.close(fd)  # too many to keep open: all of them are flushed at once
        self._touched_dirs.add(name.rpartition("/")[0])

    def make_dir(self, name: str) -> None:
        """Make a directory, unless it is there."""
        if name in self._new_dirs:
            return
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(name)
        self._new_dirs.add(name)
        # Also one that is there: its maker may not have made the name durable.
        self._touched_dirs.add(name.rpartition("/")[0])  # mutant: lap-names-unflushed

    def enter_keys(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Add (hash of a key, id) to the index of keys. Raises OSError.

        U2: durable with the records. A file of the index that nothing can read is left alone: no key of it can be taken
        before a repair makes it anew from the messages.
        """
        by_bucket: dict[int, list[tuple[bytes, bytes]]] = {}
        for pair in pairs:
            by_bucket.setdefault(pair[0][0], []).append(pair)
        if by_bucket:
            self.make_dir(layout.KEYS)  # U3: also its own name  # mutant: key-directory-unflushed
        for bucket, some in by_bucket.items():
            name = layout.key_file(bucket)
            try:
                known, seed = self._disk.identity(name), self._dir.seed(name)
                size = 0 if known is None else known[1]
                data = b"".join([pack_entry(seed, hash_, id_) for hash_, id_ in some])
                if size + len(data) <= BUCKET_BYTES_MAX:
                    self.append(name, size, data)
                    continue
                why = "it is too long"
            except (ForeignFile, NotADirectoryError) as exc:
                why = str(exc.strerror)
            log.critical("%s: %s; no key of it can be taken. Try: filewheel repair", self._dir.place(name), why)

    def sync(self, unlinked_in: Set[str] = frozenset()) -> None:
        """Flush the files, their directories, and the directories in which something was unlinked (D6).

        Raises Poisoned: a flush that failed must not be tried again.
        """
        with poisoned_by("the records added to the laps", self._dir.path):
            if len(self._dirty) > SYNC_EACH_MAX:
                self._disk.sync_all()
                return
            for fd in self._dirty.values():
                self._disk.fdatasync(fd)  # mutant: slots-unflushed
            # mutant: slot-names-unflushed unlinks-unflushed
            for name in sorted(self._touched_dirs | unlinked_in, reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.sync_dir(name)

    def undo(self) -> None:
        """Free the appended bytes, as far as that works. No checkpoint covers them, so any that stay do no harm."""
        for name, length in self._was.items():
            with contextlib.suppress(OSError):  # bytes that stay are not covered
                if length == 0:
                    self._disk.unlink(name)
                    continue
                fd = self._disk.open(name, "rw")
                try:
                    self._disk.truncate(fd, length)
                finally:
                    self._disk.close(fd)
        with contextlib.suppress(OSError):
            self._disk.unlink(layout.CHECKPOINT_TMP)

    def close(self) -> None:
        """Close the files."""
        for fd in self._dirty.values():
            if fd >= 0:
                self._disk.close(fd)
        self._dirty.clear()
