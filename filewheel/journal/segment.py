"""One segment of a writer's journal: a file that is created, appended to, and released.

It is created under a temporary name, locked, and only then renamed to its own name (E1), so a keeper never finds it
unlocked while it is in use. The name is durable before anything in the segment is acknowledged (E2). The writer
appends frames, and may write zeros ahead of them.
Format: docs/format.md, 8.
Invariants: the kernel lock is held from before the name appears until `release`; after a write failed, nothing more is
written to the segment.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from filewheel.disk.directory import Directory
from filewheel.errors import UNWRITTEN, disk_error
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES
from filewheel.message import MessageId
from filewheel.native.compiled import Pen

FILL_BYTES = 1 << 20


def no_pen(due_us: int, enqueued_us: int, tail: bytes, payload: bytes, /) -> MessageId | None:
    """Write nothing: no pen is out."""
    return None


class Segment:
    """A journal file in use. Not thread-safe: the appender's lock guards it."""

    def __init__(self, directory: Directory, writer: str, n: int) -> None:
        """Create the file. Raises DiskError, and leaves nothing behind."""
        self._disk = directory.disk
        self._clock = directory.env.clock
        self.name = layout.segment(writer, n)
        self.place = directory.place(self.name)
        self.n = n
        self.seed = directory.seed(self.name)
        self.offset = 0
        """The end of the last frame."""
        self.filled = 0
        """The end of the zeros that were written ahead."""
        self.failed = False
        """A write failed: nothing more is written here."""
        try:
            self.fd = self._create(layout.segment_tmp(writer, n))
        except OSError as exc:
            raise disk_error(exc, self.place, undone=UNWRITTEN) from exc

    def _create(self, tmp: str) -> int:
        disk = self._disk
        if disk.identity(self.name) is not None:  # mutant: same-name
            raise OSError(errno.EEXIST, "another writer drew the same name")
        tries = 3
        while True:
            tries -= 1
            fd, at = disk.open(tmp, "x"), tmp
            try:
                # E1: locked before it has its name, or the keeper takes it for a dead writer's and removes it.
                # A sweeping keeper (K5) may hold the lock for a moment; it has removed the temporary name then.
                disk.lock(fd, wait=True)  # mutant: lock-late no-lock lock-no-wait
                disk.rename(tmp, self.name)
                at = self.name
                # E2: the name is durable before anything in the segment is acknowledged.
                disk.sync_dir(layout.JOURNAL)  # mutant: no-name-flush
                return fd  # mutant: lock-let-go
            except BaseException as exc:  # mutant: interrupted-segment-held
                # Also after Ctrl-C: a file that stays locked counts as a live writer's until this process ends.
                disk.close(fd)
                if tries and at == tmp and isinstance(exc, FileNotFoundError):
                    continue
                # After Ctrl-C in the rename it may have its name: it is empty and unlocked, so the keeper removes it.
                self._remove(at)
                raise

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the keeper removes unlocked leftovers
            self._disk.unlink(name)

    def append(self, frame: bytes) -> None:
        """Write a frame at the end. Raises DiskError; the segment is finished then."""
        # Set first, because an interrupt (Ctrl-C) may also end the write.
        self.failed = True  # mutant: write-after-failure
        try:
            self._disk.pwrite(self.fd, frame, self.offset)
        except OSError as exc:
            self.fail()
            raise disk_error(exc, self.place, undone=UNWRITTEN) from exc
        self.offset += len(frame)
        self.failed = False

    def take_back(self, pen: Pen) -> tuple[int, int]:
        """End a pen; return the next place in the writer's sequence and the number of the last frame."""
        seq, self.offset, number, has_failed = pen.end()  # mutant: stored-over
        if has_failed:  # mutant: pen-failure-unseen
            self.fail()
        return seq, number

    def fail(self) -> None:
        """End the segment after a write that failed.

        An unknown part of the frame is in the file, and the keeper may have read all of it. The rest of the file is cut
        off if possible, and nothing is ever written there again.
        """
        self.failed = True
        self.cut_off()  # mutant: failure-not-cut-off

    def fill(self, size: int, limit: int) -> bool:
        """Write zeros ahead, so that later flushes need not commit a new file size; False when there is no room."""
        start = max(self.filled, self.offset)
        size = min(size, limit + HEADER_BYTES - start)
        if size <= 0:
            return False
        try:
            self._write_zeros(start, size)
        except OSError:
            return False
        return True

    def reserve(self, size: int) -> None:
        """Make room for frames of this total size. Raises DiskError."""
        start, end = max(self.filled, self.offset), self.offset + size
        if start < end:
            if size > FILL_BYTES:  # in steps: each growth of the file makes the next flush dearer
                end = -(-end // FILL_BYTES) * FILL_BYTES
            try:
                self._write_zeros(start, end - start)
            except OSError as exc:
                raise disk_error(exc, self.place) from exc

    def _write_zeros(self, start: int, size: int) -> None:
        try:
            self._disk.pwrite(self.fd, bytes(size), start)
        except OSError:
            self.filled = 0
            self.cut_off()  # frees the blocks of the zeros
            raise
        self.filled = start + size

    def cut_off(self) -> None:
        """Cut the file off behind the last frame, if possible."""
        with contextlib.suppress(OSError):
            self._disk.truncate(self.fd, self.offset)

    def flush(self, on_flush: Callable[[int], None] | None = None) -> None:
        """Make everything written durable; call `on_flush` with its microseconds. Raises OSError."""
        start_us = 0 if on_flush is None else self._clock.steady_us()
        self._disk.fdatasync(self.fd)  # mutant: no-flush
        if self._disk.is_removed(self.fd):  # mutant: removed-confirmed
            # The frames to confirm were removed with the file; the flush of an unlinked file succeeds.
            raise OSError(errno.ENOENT, "the file was removed while it was in use")
        if on_flush is not None:
            on_flush(self._clock.steady_us() - start_us)

    def release(self) -> None:
        """Unlock and close; an empty segment is removed."""
        self._disk.close(self.fd)
        if self.offset == 0:
            self._remove(self.name)
