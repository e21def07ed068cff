"""The ballast: space that is reserved while there is some, and given up on a full disk so that acknowledgements fit.

It is made with the wheel, so that a disk that is full before the first keeper runs has one. A keeper makes one where
there is none, and a larger one when there is more room.
Format: docs/format.md, 13.
Invariant: nothing depends on it being there. A wheel without one works until its disk is full.
"""

from __future__ import annotations

import contextlib
import logging

from filewheel.env import Disk
from filewheel.format import layout

log = logging.getLogger(__name__)

BALLAST_BYTES = 2 << 20
_BALLAST_BYTES_MIN = 64 << 10
_BALLAST_BYTES_GOOD = 512 << 10  # XFS wants 256 KiB to make one file on a full disk
_BALLAST_SHARE = 16
_BALLAST_SHARE_MAX = 4


class Ballast:
    """The ballast of one wheel. Not thread-safe: one thread keeps it; giving it up twice does no harm."""

    def __init__(self, disk: Disk, path: str) -> None:
        """`path` is the wheel's, for messages."""
        self._disk = disk
        self._path = path
        self._bytes = 0
        self._was_refused = False
        """Room was asked for that is free, and not ours: a quota, or no room for a name. Not asked for again."""

    @property
    def is_there(self) -> bool:
        """Whether there is as much as there should be, or some, as far as is known."""
        return self._bytes > 0 or self._bytes >= BALLAST_BYTES

    def keep(self) -> None:
        """Reserve it: a sixteenth of what is free, at most BALLAST_BYTES. It grows when more is free.

        Where little is free it is half a mebibyte, or a quarter of it. Never raises OSError.
        """
        if self._bytes >= BALLAST_BYTES or self._was_refused:
            return
        try:
            free = self._disk.free_bytes()
            small = min(_BALLAST_BYTES_GOOD, free // _BALLAST_SHARE_MAX)
            size = min(BALLAST_BYTES, max(small, free // _BALLAST_SHARE))
            if size >= max(_BALLAST_BYTES_MIN, self._bytes + 1):
                self._bytes = self._reserve(size)
            elif not self._bytes:
                self.find()
        except OSError as exc:
            log.warning("%s: no ballast: %s", self._path, exc)
            self._was_refused = True

    def make(self) -> None:
        """Reserve it for a wheel that is made; say so where there is no room. Never raises OSError."""
        self.keep()
        if not self.is_there and not self._was_refused:
            log.warning(
                "%s: no room for a ballast: until there is, a full disk stops acknowledgements and messages fire again",
                self._path,
            )

    def _reserve(self, size: int) -> int:
        """Make the file as large as this, or leave it as it was; return how large it is."""
        fd = self._disk.open(layout.BALLAST, "w")
        try:
            had = self._disk.size(fd)
            if had < size:
                try:
                    self._disk.allocate(fd, size)
                except OSError:
                    with contextlib.suppress(OSError):  # some of it may have been given
                        self._disk.truncate(fd, had)  # mutant: ballast-half-given
                    raise
            return max(had, size)
        finally:
            self._disk.close(fd)

    def find(self) -> bool:
        """Look whether there is one. Raises OSError."""
        known = self._disk.identity(layout.BALLAST)
        self._bytes = 0 if known is None else known[1]
        return self._bytes > 0

    def give_up(self) -> bool:
        """Free its room; tell whether there was any. Never raises OSError."""
        try:
            was_there = self.find()
            if was_there:
                self._disk.unlink(layout.BALLAST)
        except OSError as exc:  # no room: the caller gets that error
            log.warning("%s: the ballast cannot be given up: %s", self._path, exc)
            was_there = False
        self._bytes = 0
        return was_there
