"""The file `begun`: how a keeper hears of a cancel before it begins what it claimed a while ago.

A call that cancels, moves or replaces a message writes its drop, and then a new mark into this file. The keeper reads
the mark, looks at the journals, and reads the mark again before each begin: while it is the same, no such call has
returned since that look. So a begin costs a read of 16 bytes, not a look at every journal.
Invariant: a drop is in its journal before the mark changes, and no two drops have one mark. After a crash nothing in
the file is needed.
"""

from __future__ import annotations

import errno
import threading

from filewheel import layout
from filewheel.directory import Directory
from filewheel.disk import Disk
from filewheel.errors import disk_error, disk_errors

MARK_BYTES = 16
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DONE = "this call is done, but a keeper may begin what it ended for as long as it does not look at the journals"


class Begun:
    """The keeper's end. The ledger's lock guards it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fd: int | None = None
        self._mark: bytes | None = None
        """The mark before the last look."""

    def is_new(self) -> bool:
        """Tell whether something may have been cancelled since this was asked last; then it is time to look.

        Cost: one read. Raises OSError.
        """
        mark = self._read()
        if mark is not None and mark == self._mark:
            return False
        self._mark = mark
        return True

    def is_old(self) -> bool:
        """Tell whether nothing was cancelled since `is_new` was asked. Cost: one read. Raises OSError."""
        fd = self._fd
        return fd is not None and self._mark is not None and self._disk.pread(fd, MARK_BYTES, 0) == self._mark

    def _read(self) -> bytes | None:
        if self._fd is None:
            try:
                self._fd = self._disk.open(layout.BEGUN, "rw")
                if self._disk.size(self._fd) < MARK_BYTES:  # from now on a mark needs no room
                    self._disk.pwrite(self._fd, bytes(MARK_BYTES), 0)
            except OSError as exc:
                self.close()
                if exc.errno in _FULL:
                    return None  # looked at each time
                raise
        return self._disk.pread(self._fd, MARK_BYTES, 0)

    def forget(self) -> None:
        """Have the next begin look: a look failed."""
        self._mark = None

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)


class Marks:
    """The other end: that of a journal that cancels. Thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self._upto = 0
        self._is_made = False

    def make(self) -> None:
        """Make the file, with room for a mark, before a drop is written. Cost: nothing from the second call on.

        So a file that cannot be had is an error of a call that has changed nothing. Raises DiskError.
        """
        if not self._is_made:
            with disk_errors(self._dir.place(layout.BEGUN)):
                self._write(None)
            self._is_made = True

    def note(self, mark: bytes, ticket: int) -> None:
        """Change the mark for the drops up to this ticket, unless that was done. Cost: 10 µs. Raises DiskError."""
        with self._lock:
            if ticket <= self._upto:
                return
            try:
                self._write(mark)
            except OSError as exc:
                raise disk_error(exc, self._dir.place(layout.BEGUN), undone=_DONE) from exc
            self._upto = ticket

    def _write(self, mark: bytes | None) -> None:
        """Write a mark; without one, see that there is room for it."""
        disk = self._dir.disk
        try:
            fd = disk.open(layout.BEGUN, "rw")
        except OSError as exc:
            if exc.errno in _FULL:
                return  # it is not there, so the keeper looks each time
            raise
        try:
            if mark is not None:
                disk.pwrite(fd, mark, 0)
            elif disk.size(fd) < MARK_BYTES:
                disk.pwrite(fd, bytes(MARK_BYTES), 0)
        except OSError as exc:
            # A file without room for a mark is one without a mark: the keeper looks each time.
            if exc.errno not in _FULL or disk.size(fd) >= MARK_BYTES:
                raise
        finally:
            disk.close(fd)
