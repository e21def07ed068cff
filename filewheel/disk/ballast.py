"""The ballast: reserved space that is freed on a full disk, so that acknowledgements can be written.

`create` makes it with the wheel, because the disk may be full before the first keeper runs. A keeper makes a missing
one, and enlarges it when more space is free.
Format: docs/format.md, 13.
Invariant: nothing depends on its existence. A wheel without a ballast works until its disk is full.
"""

from __future__ import annotations

import contextlib
import logging

from filewheel.env import Disk
from filewheel.format import layout

log = logging.getLogger(__name__)

BALLAST_BYTES = 2 << 20
_BALLAST_BYTES_MIN = 64 << 10
_BALLAST_BYTES_GOOD = 512 << 10  # XFS needs 256 KiB to make one file on a full disk
_LENT_BYTES = 256 << 10
_BALLAST_SHARE = 16
_BALLAST_SHARE_MAX = 4


class Ballast:
    """The ballast of one wheel. Not thread-safe: one thread maintains it; giving it up twice is harmless."""

    def __init__(self, disk: Disk, path: str) -> None:
        """`path` is the wheel's, for messages."""
        self._disk = disk
        self._path = path
        self._most = BALLAST_BYTES
        self._bytes = 0
        self._was_refused = False
        """The file system refused free space: a quota, or no room for a name. No second attempt."""

    def limit(self, most: int) -> None:
        """Reserve at most so many bytes from now on, and free what is more. Raises OSError."""
        self._most = most
        if self.find() and self._bytes > most:
            fd = self._disk.open(layout.BALLAST, "w")
            try:
                self._disk.truncate(fd, most)
            finally:
                self._disk.close(fd)
            self._bytes = most

    def keep(self) -> None:
        """Reserve a sixteenth of the free space, at most what is wanted. It grows when more is free.

        If little is free, reserve half a mebibyte, or a quarter of that. Never raises OSError.
        """
        if self._bytes >= self._most or self._was_refused:
            return
        try:
            free = self._disk.free_bytes()
            small = min(_BALLAST_BYTES_GOOD, free // _BALLAST_SHARE_MAX)
            size = min(self._most, max(small, free // _BALLAST_SHARE))
            if size >= max(_BALLAST_BYTES_MIN, self._bytes + 1):
                self._bytes = self._reserve(size)
            elif not self._bytes:
                self.find()
        except OSError as exc:
            log.warning("%s: no ballast: %s", self._path, exc)
            self._was_refused = True

    def make(self) -> None:
        """Reserve it for a new wheel; log a warning if there is no room. Never raises OSError."""
        self.keep()
        if self._bytes == 0 < self._most and not self._was_refused:
            log.warning(
                "%s: no room for a ballast: until there is, a full disk stops acknowledgements and messages fire again",
                self._path,
            )

    def _reserve(self, size: int) -> int:
        """Extend the file to this size, or leave it unchanged; return its size."""
        fd = self._disk.open(layout.BALLAST, "w")
        try:
            had = self._disk.size(fd)
            if had < size:
                try:
                    self._disk.allocate(fd, size)
                except OSError:
                    with contextlib.suppress(OSError):  # a part may have been allocated
                        self._disk.truncate(fd, had)
                    raise
            return max(had, size)
        finally:
            self._disk.close(fd)

    def find(self) -> bool:
        """Check whether the file exists. Raises OSError."""
        known = self._disk.identity(layout.BALLAST)
        self._bytes = 0 if known is None else known[1]
        return self._bytes > 0

    def lend(self) -> bool:
        """Free a part of its space for a small file, and leave most for acknowledgements; return whether it did.

        A keeper that counts on the ballast still finds one. Never raises OSError.
        """
        try:
            known = self._disk.identity(layout.BALLAST)
            if known is None or not known[1]:
                return False
            fd = self._disk.open(layout.BALLAST, "r+")
            try:
                self._disk.truncate(fd, known[1] - min(_LENT_BYTES, known[1] // 2))
            finally:
                self._disk.close(fd)
        except OSError as exc:
            log.warning("%s: nothing of the ballast can be freed: %s", self._path, exc)
            return False
        return True

    def give_up(self) -> bool:
        """Free its space; return whether there was any. Never raises OSError."""
        try:
            was_there = self.find()
            if was_there:
                self._disk.unlink(layout.BALLAST)
        except OSError as exc:  # no room: the caller gets that error
            log.warning("%s: the ballast cannot be given up: %s", self._path, exc)
            was_there = False
        self._bytes = 0
        return was_there
