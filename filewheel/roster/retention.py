"""Keeps covered segments of a primary's journals until every backup has read them.

The deal moves them from journal/ to retained/: a rename needs no room, and a reader that has one open can go on. They
are kept up to a size. Above it, a counter is raised first and then they are removed, so a backup that misses a segment
finds the counter changed, and heals. A segment keeps the seed of the name that it was written under.

Not thread-safe: the store's lock guards it. Another process may release segments at the same time.
Invariant: a segment given to `keep` is in journal/, in retained/, was released, or the counter has changed since. If
the disk takes neither the rename nor the counter, the roster records the loss (`on_overflow`), and the next segment
tries the counter again. If the roster cannot be written either, the segment stays in journal/.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import zlib
from collections.abc import Callable, Iterable

from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_unreadable
from filewheel.disk.replace import replace_file
from filewheel.errors import FULL, Damaged
from filewheel.format import layout

log = logging.getLogger(__name__)

_BLOCK_BYTES = 4096
"""The least size to count for a segment: short-lived producers leave many small ones, and each takes a block."""
_COUNTER_BYTES_MAX = 64
_COUNTER_END = 1 << 62
_AFRESH = 1 << 48
"""A counter that cannot be read is replaced by a random one above this."""


class Retention:
    """The segments in retained/. Makes the directory with the first segment."""

    def __init__(self, directory: Directory, *, limit_bytes: int) -> None:
        self._dir = directory
        self._disk = directory.disk
        self.limit_bytes = limit_bytes
        self.on_overflow: Callable[[], bool] | None = None
        """Called before segments are removed that a backup may not have read; returns whether the roster records it.

        It must not raise.
        """
        self._size_bytes: int | None = None
        self._made = False
        self._owes = False
        """Segments were removed while the counter could not be raised."""
        self._recorded = False
        """The roster records the last removal."""

    # -- segments --------------------------------------------------------------------------------------------

    def keep(self, name: str) -> None:
        """Move a segment to retained/; above the size limit, remove all of them. A missing segment is ignored.

        Raises OSError with the segment in journal/, or with all segments still kept.
        """
        known = self._disk.identity(name)
        if known is None:
            return
        if self._owes:  # mutant: overflow-not-owed
            self._raise()
        self._make()
        size_bytes = self.size_bytes
        # A crash before this leaves the segment in journal/, where the next keeper finds that it is covered; so does a
        # power cut that undoes the rename.
        self._disk.rename(name, layout.retained(name))
        self._size_bytes = size_bytes + _room(known[1])
        if self._size_bytes > self.limit_bytes:
            self._size_bytes = None  # counted again: some may have been released  # mutant: retained-not-recounted
            if self.size_bytes > self.limit_bytes:
                self.give_up()

    def give_up(self) -> None:
        """Raise the counter, and then remove every kept segment; do nothing when there is none. Raises OSError."""
        gone = self.names()
        if not gone and not self._owes:
            return
        self._owes = True
        self._recorded = self.on_overflow is not None and self.on_overflow()
        log.warning(
            "%s: %d journal segments are removed before every backup has read them; a backup that misses them heals",
            self._dir.path,
            len(gone),
        )
        self._raise()  # mutant: retained-first
        # A crash from here on leaves segments that no backup has to read.
        self.release(gone)

    def forgo(self) -> bool:
        """Give up all, including a segment that could not be kept; return whether the counter or the roster records it.

        If not, that segment must stay. Never raises OSError.
        """
        owed, self._owes, self._recorded = self._owes, True, False
        try:
            self.give_up()
        except OSError as exc:
            log.critical("%s: the segments kept for backups cannot be removed: %s", self._dir.path, exc)
            if self._owes and not self._recorded:
                self._owes = owed
                return False
        return True

    def release(self, names: Iterable[str]) -> None:
        """Remove segments that every backup has read, given by the last part of their names. Raises OSError."""
        self._size_bytes = None
        for last in names:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(f"{layout.RETAINED}/{last}")

    def names(self) -> list[str]:
        """Return the last parts of the names of the kept segments, sorted."""
        try:
            return sorted(n for n in self._disk.listdir(layout.RETAINED) if layout.parse_segment(n) is not None)
        except (FileNotFoundError, NotADirectoryError):
            return []

    @property
    def size_bytes(self) -> int:
        """The room that they take, in whole blocks, as far as this handle knows. Cost: a listing the first time."""
        if self._size_bytes is None:
            found = (self._disk.identity(f"{layout.RETAINED}/{last}") for last in self.names())
            self._size_bytes = sum(_room(known[1]) for known in found if known is not None)
        return self._size_bytes

    def _make(self) -> None:
        if not self._made:
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(layout.RETAINED)
            self._disk.sync_dir("")  # mutant: retained-name-unflushed
            self._made = True

    # -- the counter -----------------------------------------------------------------------------------------

    def overflow(self) -> int:
        """Return the counter of `read_overflow`."""
        return read_overflow(self._dir)

    def _raise(self) -> None:
        """Change the counter, durably. Raises OSError."""
        self._make()
        try:
            number = read_overflow(self._dir) + 1
        except Damaged:
            number = 0
        if number <= 0:
            number = _AFRESH + int.from_bytes(self._dir.env.entropy(5), "big")  # mutant: overflow-from-one
        try:
            self._write(number)
        except OSError as exc:
            if exc.errno not in FULL:  # mutant: overflow-needs-room
                raise
            self._spoil()
        self._owes = False

    def _write(self, number: int) -> None:
        replace_file(self._disk, layout.OVERFLOW, layout.OVERFLOW_TMP, _pack(number))

    def _spoil(self) -> None:
        """Change the counter on a full disk: a file that is no counter counts as changed, and a rename fits."""
        with contextlib.suppress(OSError):
            self._disk.unlink(layout.OVERFLOW_TMP)
        names = self.names()
        if not names:
            raise OSError(errno.ENOSPC, "no room for the counter, and no file to replace it", layout.OVERFLOW)
        self._disk.rename(f"{layout.RETAINED}/{names[0]}", layout.OVERFLOW)
        self._size_bytes = None
        # Flush before the truncation: a power cut that undoes the rename would bring the segment back without frames.
        self._disk.sync_dir(layout.RETAINED)  # mutant: overflow-emptied-early
        fd = self._disk.open(layout.OVERFLOW, "rw")
        try:
            self._disk.truncate(fd, 0)
        finally:
            self._disk.close(fd)


def read_overflow(directory: Directory) -> int:
    """Return how often segments were removed too early; 0 if never.

    An unreadable counter gives a number below 0 that stays the same while the file does, and that no other state of the
    file gives, so it compares as changed. Raises Damaged when the name is not of a regular file, OSError when the file
    cannot be read at this moment.
    """
    disk = directory.disk
    try:
        fd = disk.open(layout.OVERFLOW, "r")
        try:
            number = _unpack(disk.pread(fd, _COUNTER_BYTES_MAX, 0))
        finally:
            disk.close(fd)
    except FileNotFoundError:
        return 0
    except OSError as exc:
        if not is_unreadable(exc):
            raise
        number = None
    if number is not None:
        return number
    known = disk.identity(layout.OVERFLOW)
    if known is None:
        raise Damaged("not a regular file", path=directory.place(layout.OVERFLOW), hint="remove it")
    return -1 - int.from_bytes(hashlib.blake2b(repr(known).encode(), digest_size=7).digest(), "big")


def discard_retained(directory: Directory) -> None:
    """Remove retained/ and its content, which no backup needs any more. Raises OSError."""
    disk = directory.disk
    try:
        names = disk.listdir(layout.RETAINED)
    except (FileNotFoundError, NotADirectoryError):
        return
    ours = {layout.OVERFLOW.rpartition("/")[2], layout.OVERFLOW_TMP.rpartition("/")[2]}
    for last in names:
        if last in ours or layout.parse_segment(last) is not None:
            with contextlib.suppress(FileNotFoundError):
                disk.unlink(f"{layout.RETAINED}/{last}")
    with contextlib.suppress(OSError):  # it holds files that are not ours
        disk.rmdir(layout.RETAINED)


def _room(size: int) -> int:
    return max(1, -(-size // _BLOCK_BYTES)) * _BLOCK_BYTES  # mutant: retained-by-bytes


def _pack(number: int) -> bytes:
    digits = b"%d" % number
    return digits + b" %d\n" % zlib.crc32(digits)


def _unpack(data: bytes) -> int | None:
    digits, _, rest = data.partition(b" ")
    if not digits.isdigit() or rest != b"%d\n" % zlib.crc32(digits):
        return None
    number = int(digits)
    return number if number < _COUNTER_END else None
