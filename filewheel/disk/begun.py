"""The file `begun`: a keeper and a call that cancels find out about each other (docs/format.md, 13).

A call that cancels, moves or replaces a message writes its drop, then a new *mark* at the start of this file, then
reads the *table* behind it (cancelled.py). A keeper writes the id of a message into the table before it begins it, then
reads the mark. If the mark is still that of its last look at the journals, nothing was cancelled since. So a begin
costs a write and a read of 16 bytes. At least one of the two sees the other: both write into one file before they read
it, and the kernel lets one write into a file at a time.

The keeper holds the lock of this file while the table has each message that has begun and is not settled. If it cannot
write the table, on a full disk, it releases the lock; then a cancel reports that it does not know. A slot of the table
is written again only after two sweeps have found its message settled. Each sweep changes the *generation* first, so a
reader that saw one sweep at most has missed nothing.
Invariant: a drop is in its journal before the mark changes, and no two drops have one mark. An id is in the table
before the mark is read, and stays there while its message is in hand. After a crash nothing in the file is needed.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Container, Sequence

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import disk_error, disk_errors
from filewheel.format import layout

MARK_BYTES = 16
GENERATION_AT = MARK_BYTES
GENERATION_BYTES = 16
"""The keeper's name for itself (8 random bytes) and the number of its sweeps (8 bytes, little-endian)."""
TABLE_AT = GENERATION_AT + GENERATION_BYTES
SLOT_BYTES = 16
LIFE_BYTES = 8
_EMPTY = bytes(SLOT_BYTES)
_SLOTS_MIN = 512
_TRIES = 100
_PAUSE_S = 0.001
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DONE = "this call is done, but a keeper may begin what it ended for as long as it does not look at the journals"


class Begun:
    """The keeper's end. Thread-safe: a coroutine asks while a thread is in the middle of a claim."""

    def __init__(self, disk: Disk, in_hand: Container[bytes], life: bytes) -> None:
        """Replace the former keeper's table by an empty one.

        `in_hand` holds the claimed ids; `life` is bytes that no other keeper has.
        """
        self._disk = disk
        self._in_hand = in_hand
        self._life = life
        self._lock = threading.RLock()
        self._fd: int | None = None
        """Open, and its lock held, while the table is whole. Without it there is no mark, and each begin looks."""
        self._mark: bytes | None = None
        """The mark before the last look that has ended."""
        self._ids: list[bytes] = []
        """The table."""
        self._free: list[int] = []
        """Slots to write next, in order."""
        self._settled: list[int] = []
        """Slots whose message was settled when the last sweep came by."""
        self._sweeps = 0
        self._announce()

    @property
    def is_public(self) -> bool:
        """Whether the table is whole, and its lock held."""
        return self._fd is not None

    def publish(self, ids: Sequence[bytes]) -> None:
        """Enter messages that are claimed, before the mark is read. Cost: one write. Never raises OSError."""
        with self._lock:
            if len(self._free) < len(ids):
                self._sweep(len(ids))
            slots = self._free[: len(ids)]
            del self._free[: len(ids)]
            for slot, id_ in zip(slots, ids, strict=True):
                self._ids[slot] = id_
            if self._fd is None:
                self._announce()
            elif slots:
                self._write(slots[0], slots[-1] + 1)

    def retract(self, ids: Sequence[bytes]) -> None:
        """Remove messages that do not begin after all. Cost: 20 ns a slot."""
        gone = set(ids)
        with self._lock:
            slots = [slot for slot, id_ in enumerate(self._ids) if id_ in gone]
            for slot in slots:
                self._ids[slot] = _EMPTY
            if slots:
                self._write(slots[0], slots[-1] + 1)

    def _sweep(self, count: int) -> None:
        """Find slots for so many ids: those settled two sweeps ago, and new ones."""
        ids, in_hand = self._ids, self._in_hand
        free = sorted(self._free + self._settled)  # mutant: slot-written-soon
        known = set(free)
        self._settled = [slot for slot, id_ in enumerate(ids) if id_ not in in_hand and slot not in known]
        missing = max(count, _SLOTS_MIN, len(ids) // 4) - len(free)
        if missing > 0:
            free += range(len(ids), len(ids) + missing)
            ids += [_EMPTY] * missing
        self._free = free
        self._sweeps += 1
        if self._fd is not None:
            try:  # before a slot is written again
                self._disk.pwrite(self._fd, self._generation(), GENERATION_AT)
            except OSError:
                self.close()

    def _generation(self) -> bytes:
        return self._life + self._sweeps.to_bytes(8, "little")

    def _write(self, start: int, end: int) -> None:
        if self._fd is not None:
            try:
                self._disk.pwrite(self._fd, b"".join(self._ids[start:end]), TABLE_AT + start * SLOT_BYTES)
            except OSError:
                self.close()  # mutant: table-half-counts

    def _announce(self) -> None:
        """Write the whole table, and hold the lock from then on; do nothing if that fails."""
        disk = self._disk
        try:
            fd = self._fd = disk.open(layout.BEGUN, "rw")
            disk.pwrite(fd, bytes(GENERATION_BYTES), GENERATION_AT)  # the old table counts for nothing from here on
            if not self._take(fd):
                self.close()
                return
            disk.truncate(fd, TABLE_AT)
            if self._ids:
                self._write(0, len(self._ids))
            if self._fd is not None:
                disk.pwrite(fd, self._generation(), GENERATION_AT)
        except OSError:
            self.close()

    def _take(self, fd: int) -> bool:
        """Take the lock; readers that test it hold it shared for a moment."""
        disk = self._disk
        for _ in range(_TRIES):
            if disk.lock(fd, wait=False):
                return True
            if not disk.is_free(fd):
                return False
            disk.wait_hint(None, _PAUSE_S)
        return False

    def mark(self) -> bytes | None:
        """Return the mark, to be read before a look; None when none can be read. Cost: one read."""
        with self._lock:
            try:
                return None if self._fd is None else self._disk.pread(self._fd, MARK_BYTES, 0)
            except OSError:
                self.close()
                return None

    def looked(self, mark: bytes | None) -> None:
        """Note that a look at the journals has ended that began after this mark was read."""
        self._mark = mark

    def is_known(self, mark: bytes | None) -> bool:
        """Tell whether a look has ended that began after this mark was written."""
        return mark is not None and mark == self._mark  # mutant: begun-unlooked

    def is_old(self) -> bool:
        """Tell whether nothing was cancelled since the last look. Cost: one read."""
        return self.is_known(self.mark())

    def close(self) -> None:
        """Release the file and its lock: begins from now on are unknown to others."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                self._disk.close(fd)


class Marks:
    """The other side: a journal that cancels. Thread-safe."""

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
                disk.pwrite(fd, mark, 0)  # mutant: cancel-unmarked
            elif disk.size(fd) < MARK_BYTES:
                disk.pwrite(fd, bytes(MARK_BYTES), 0)
        except OSError as exc:
            # A file without room for a mark is one without a mark: the keeper looks each time.
            if exc.errno not in _FULL or disk.size(fd) >= MARK_BYTES:
                raise
        finally:
            disk.close(fd)
