"""One segment of a writer's journal: a file that is made, appended to, and let go.

It is made under a temporary name, locked, and only then given its own name (E1), so that a keeper never meets it
unlocked while it is in use; its name is durable before anything in it is acknowledged (E2). Whoever holds it writes
frames at its end, and may write zeros ahead.
Invariants: the kernel lock is held from before the name appears until `release`; nothing is written where a write
failed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.disk.directory import Directory
from filewheel.errors import UNWRITTEN, disk_error
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES
from filewheel.message import MessageId
from filewheel.native.compiled import Pen


def no_pen(due_us: int, enqueued_us: int, tail: bytes, payload: bytes, /) -> MessageId | None:
    """Put nothing: no pen is lent."""
    return None


class Segment:
    """A journal file in use. Not thread-safe: the journal's lock guards it."""

    def __init__(self, directory: Directory, writer: str, n: int) -> None:
        """Make the file. Raises DiskError, with nothing left behind."""
        self._disk = directory.disk
        self.name = layout.segment(writer, n)
        self.place = directory.place(self.name)
        self.n = n
        self.seed = directory.seed(self.name)
        self.offset = 0
        """Where the next frame goes."""
        self.filled = 0
        """Up to where zeros were written ahead."""
        self.failed = False
        """A write failed: nothing more is written here."""
        try:
            self.fd = self._create(layout.segment_tmp(writer, n))
        except OSError as exc:
            raise disk_error(exc, self.place, undone=UNWRITTEN) from exc

    def _create(self, tmp: str) -> int:
        disk = self._disk
        if disk.identity(self.name) is not None:
            raise OSError(errno.EEXIST, "another writer drew the same name")
        for last_try in (False, False, True):
            fd = disk.open(tmp, "x")
            try:
                # E1: locked before it has its name, or the keeper takes it for a dead writer's and removes it.
                # A keeper that sweeps (K5) may hold it for a moment, and then has removed the name.
                disk.lock(fd, wait=True)
                disk.rename(tmp, self.name)
            except FileNotFoundError:
                disk.close(fd)
                if last_try:
                    raise
                continue
            except OSError:
                disk.close(fd)
                self._remove(tmp)
                raise
            break
        try:
            # E2: named for good before anything in it is acknowledged.
            disk.sync_dir(layout.JOURNAL)
        except OSError:
            disk.close(fd)
            self._remove(self.name)
            raise
        return fd

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the keeper sweeps unlocked leftovers
            self._disk.unlink(name)

    def append(self, frame: bytes) -> None:
        """Write a frame at the end. Raises DiskError; the segment is finished then."""
        # Failed until it is known to be whole: an interrupt (Ctrl-C) may also get out of the write.
        self.failed = True
        try:
            self._disk.pwrite(self.fd, frame, self.offset)
        except OSError as exc:
            self.fail()
            raise disk_error(exc, self.place, undone=UNWRITTEN) from exc
        self.offset += len(frame)
        self.failed = False

    def take_back(self, pen: Pen) -> tuple[int, int]:
        """End a pen; return the next place in the writer's sequence, and the number of its last frame."""
        seq, self.offset, number, has_failed = pen.end()
        if has_failed:
            self.fail()
        return seq, number

    def fail(self) -> None:
        """End the segment after a write that failed.

        How much of the frame is in the file is unknown, and the keeper may have read it whole. It is cut off if that
        can be, and nothing is ever written there again.
        """
        self.failed = True
        self.cut_off()

    def fill(self, size: int, limit: int) -> bool:
        """Write zeros ahead, so that coming flushes need not commit a new file size; False when there is no room."""
        start = max(self.filled, self.offset)
        size = min(size, limit + HEADER_BYTES - start)
        if size <= 0:
            return False
        try:
            self._disk.pwrite(self.fd, bytes(size), start)
        except OSError:
            self.filled = 0
            self.cut_off()  # the zeros are given back
            return False
        self.filled = start + size
        return True

    def reserve(self, size: int) -> bool:
        """See to it that frames of this size in all find room here; tell whether they do."""
        missing = self.offset + size - max(self.filled, self.offset)
        return missing <= 0 or self.fill(missing, self.offset + size)

    def cut_off(self) -> None:
        """Give back what lies behind the last frame, if that can be."""
        with contextlib.suppress(OSError):
            self._disk.truncate(self.fd, self.offset)

    def flush(self, told: Callable[[int], None] | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make what was written durable, and tell how many microseconds that took. Raises OSError."""
        start_us = 0 if told is None else clock.steady_us()
        self._disk.fdatasync(self.fd)
        if self._disk.is_removed(self.fd):
            # Whoever deleted it took with it what is about to be confirmed; the flush of a nameless file succeeds.
            raise OSError(errno.ENOENT, "the file was removed while it was in use")
        if told is not None:
            told(clock.steady_us() - start_us)

    def release(self) -> None:
        """Unlock and close; an empty segment is removed."""
        self._disk.close(self.fd)
        if self.offset == 0:
            self._remove(self.name)
