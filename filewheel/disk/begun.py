"""The file `begun`: it makes a keeper and a cancelling call see each other (docs/format.md, 13).

A call that cancels, moves or replaces a message writes its drop, then a new *mark* at the start of this file, then
reads the *table* after the mark. A keeper writes a message's id into the table before it begins the
message, then reads the mark. If the mark has not changed since its last ingest, there was no cancel. So a begin costs
a write and a read of 16 bytes. At least one of the two sees the other: both write the file before they read it, and
the kernel serializes writes to one file.

The keeper holds the lock of this file while the table is complete: it has every message that has begun and is not
settled. If the keeper cannot write the table (full disk), it releases the lock, and a cancel reports an unknown
outcome. A slot of the table is reused only after two sweeps have found its message settled. Each sweep first changes
the *generation*, so a reader that saw at most one sweep has missed nothing.
The call reads the generation before it looks for its messages, too. Only a living keeper counts: while the lock is
free, the keeper's own lock shows whether there is one.
Invariant: a drop is in its journal before the mark changes, and every drop has its own mark. An id is in the table
before the mark is read, and stays there until its message is settled. A message reported as stopped does not begin; one
reported as begun may have begun at that very moment. After a crash the file is not needed.
"""

from __future__ import annotations

import enum
import logging
import struct
import threading
from collections.abc import Collection, Container, Mapping, Sequence

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.keeper_lock import holder
from filewheel.env import Disk
from filewheel.errors import FULL, FilewheelError, disk_error
from filewheel.format import layout
from filewheel.message import MessageId

log = logging.getLogger(__name__)

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
_SAFE_SWEEPS = 2
"""A keeper's first sweeps, before which no slot is written twice."""
_FEW = 16


class Begun:
    """The keeper's side. Thread-safe: a coroutine may call it during a claim in another thread."""

    def __init__(self, disk: Disk, in_hand: Container[bytes], life: bytes) -> None:
        """Replace the previous keeper's table by an empty one.

        `in_hand` holds the claimed ids; `life` is unique to this keeper.
        """
        self._disk = disk
        self._in_hand = in_hand
        self._life = life
        self._lock = threading.RLock()
        self._fd: int | None = None
        """Open and locked while the table is complete. None: no mark can be read, so each begin ingests first."""
        self._mark: bytes | None = None
        """The mark that was read before the last completed ingest."""
        self._ids: list[bytes] = []
        """The table."""
        self._free: list[int] = []
        """Slots to write next, in order."""
        self._settled: list[int] = []
        """Slots whose message the last sweep found settled."""
        self._sweeps = 0
        self._announce()

    @property
    def life(self) -> bytes:
        """The keeper's name for itself."""
        return self._life

    @property
    def is_public(self) -> bool:
        """Whether the table is complete and its lock held."""
        return self._fd is not None

    def publish(self, ids: Sequence[bytes]) -> None:
        """Enter claimed messages, before the mark is read. Cost: one write. Never raises OSError."""
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
        """Remove claimed messages that will not begin. Cost: 20 ns a slot."""
        gone = set(ids)
        with self._lock:
            slots = [slot for slot, id_ in enumerate(self._ids) if id_ in gone]
            for slot in slots:
                self._ids[slot] = _EMPTY
            if slots:
                self._write(slots[0], slots[-1] + 1)

    def _sweep(self, count: int) -> None:
        """Find slots for `count` ids: those settled two sweeps ago, and new ones."""
        ids, in_hand = self._ids, self._in_hand
        free = sorted(self._free + self._settled)
        known = set(free)
        self._settled = [slot for slot, id_ in enumerate(ids) if id_ not in in_hand and slot not in known]
        missing = max(count, _SLOTS_MIN, len(ids) // 4) - len(free)
        if missing > 0:
            free += range(len(ids), len(ids) + missing)
            ids += [_EMPTY] * missing
        self._free = free
        self._sweeps += 1
        if self._fd is not None:
            try:  # before a slot is reused
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
                self.close()

    def _announce(self) -> None:
        """Write the whole table and take the lock; do nothing if that fails."""
        disk = self._disk
        try:
            fd = self._fd = disk.open(layout.BEGUN, "rw")
            disk.pwrite(fd, bytes(GENERATION_BYTES), GENERATION_AT)  # from here on the old table is invalid
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
        """Take the lock; retry, because readers that test it share it for a moment."""
        disk = self._disk
        for _ in range(_TRIES):
            if disk.lock(fd, wait=False):
                return True
            if not disk.is_free(fd):
                return False
            disk.wait_hint(None, _PAUSE_S)
        return False

    def mark(self) -> bytes | None:
        """Return the mark, read before an ingest; None when it cannot be read. Cost: one read."""
        with self._lock:
            try:
                return None if self._fd is None else self._disk.pread(self._fd, MARK_BYTES, 0)
            except OSError:
                self.close()
                return None

    def looked(self, mark: bytes | None) -> None:
        """Note the end of an ingest that started after this mark was read."""
        self._mark = mark

    def is_known(self, mark: bytes | None) -> bool:
        """Return whether an ingest that started after this mark was written has ended."""
        return mark is not None and mark == self._mark

    def is_old(self) -> bool:
        """Return whether nothing was cancelled since the last ingest. Cost: one read."""
        return self.is_known(self.mark())

    def close(self) -> None:
        """Release the file and its lock: other processes no longer see begins."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                self._disk.close(fd)


def read_table(disk: Disk, *, whole: bool = True) -> bytes:
    """Return the generation, and the table behind it if `whole`; nothing when no living keeper holds a table.

    Without `whole` the lock is not tested. Raises OSError.
    """
    try:
        fd = disk.open(layout.BEGUN, "r")
    except (FileNotFoundError, ForeignFile):
        return b""
    try:
        if not whole:
            return disk.pread(fd, GENERATION_BYTES, GENERATION_AT)
        if disk.is_free(fd):
            return b""
        table = disk.pread(fd, max(0, disk.size(fd) - TABLE_AT), TABLE_AT)
        # Last: until it changes, no slot is written again.
        generation = disk.pread(fd, GENERATION_BYTES, GENERATION_AT)
    finally:
        disk.close(fd)
    return generation + table if len(generation) == GENERATION_BYTES and any(generation) else b""


class Marks:
    """The other side: a journal that cancels. Thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self.upto = 0
        """The ticket up to which drops are marked; it only grows."""
        self._is_made = False

    def make(self) -> None:
        """Make the file, with room for a mark, before a drop is written. Cost: nothing from the second call on.

        So the call fails before it has changed anything. Raises DiskError.
        """
        if not self._is_made:
            try:
                self._write(None)
            except OSError as exc:
                raise disk_error(exc, self._dir.place(layout.BEGUN)) from exc
            self._is_made = True

    def note(self, mark: bytes, ticket: int) -> bool:
        """Change the mark for the drops up to this ticket, at most once. Cost: 10 µs.

        Return whether it is written. The drops are: a failure is logged, and the next call tries again.
        """
        with self._lock:
            if ticket > self.upto:
                try:
                    self._write(mark)
                except OSError as exc:
                    why = disk_error(exc, self._dir.place(layout.BEGUN))
                    log.warning("%s; a keeper sees the change with its next claim, within half a second", why)
                    return False
                self.upto = ticket
        return True

    def _write(self, mark: bytes | None) -> None:
        """Write a mark; without one, make room for it."""
        disk = self._dir.disk
        try:
            fd = disk.open(layout.BEGUN, "rw")
        except OSError as exc:
            if exc.errno in FULL:
                return  # no file: the keeper ingests each time
            raise
        try:
            if mark is not None:
                disk.pwrite(fd, mark, 0)
            elif disk.size(fd) < MARK_BYTES:
                disk.pwrite(fd, bytes(MARK_BYTES), 0)
        except OSError as exc:
            # A file without room for a mark has no mark: the keeper ingests each time.
            if exc.errno not in FULL or disk.size(fd) >= MARK_BYTES:
                raise
        finally:
            disk.close(fd)


class Cancelled(enum.StrEnum):
    """The result of a cancel. True except NOT_FOUND: the message was pending, and is not offered again.

    Each equals its text, also in `str`, f-strings and JSON.
    """

    STOPPED = "stopped"
    """In time: it had not begun, and does not begin."""
    BEGUN = "begun"
    """It had begun, or was just about to: it may go on to its end, and is not tried again."""
    MAYBE_BEGUN = "maybe begun"
    """Not known which: too many calls were beginning at once, the keeper is an older version, or a read failed."""
    NOT_FOUND = "not found"
    """Nothing was pending under this id or key: it fired, was cancelled, or moved, and goes on under a new id."""

    def __bool__(self) -> bool:
        return self is not Cancelled.NOT_FOUND


class CancelledIds(set[MessageId]):
    """The ids of the messages that a call cancelled, with the outcome of each."""

    def __init__(self, outcomes: Mapping[MessageId, Cancelled]) -> None:
        super().__init__(outcomes)
        self.outcomes = dict(outcomes)
        """STOPPED, BEGUN or MAYBE_BEGUN, for each id of the set."""

    def outcome(self, id_: MessageId) -> Cancelled:
        """Return the outcome for an id; NOT_FOUND for one that is not in the set."""
        return self.outcomes.get(id_, Cancelled.NOT_FOUND)


class BegunLook:
    """One call's two reads of the file; construction does the first, before the call looks for its messages."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        try:
            self._before = read_table(directory.disk, whole=False)
        except OSError:
            self._before = b""

    def outcomes(self, ids: Collection[MessageId]) -> dict[MessageId, Cancelled]:
        """Return the outcomes for messages that were pending, once their drops and the mark are written. Never raises.

        Cost: 20 µs, and 1 µs an id.
        """
        if not ids:
            return {}
        try:
            data = read_table(self._dir.disk)
            if not data:
                alive = holder(self._dir) is not None
                return dict.fromkeys(ids, Cancelled.MAYBE_BEGUN if alive else Cancelled.STOPPED)
        except (OSError, FilewheelError):
            return dict.fromkeys(ids, Cancelled.MAYBE_BEGUN)
        generation, table = data[:GENERATION_BYTES], data[GENERATION_BYTES:]
        other = Cancelled.STOPPED if self._misses_nothing(generation) else Cancelled.MAYBE_BEGUN
        begun = begun_of(table, ids)
        return {id_: Cancelled.BEGUN if id_ in begun else other for id_ in ids}

    def _misses_nothing(self, generation: bytes) -> bool:
        """Return whether the second read finds everything that was in the table at the first, or has begun since."""
        sweeps, before = _sweeps(generation), _sweeps(self._before)
        return sweeps <= _SAFE_SWEEPS or (generation[:LIFE_BYTES] == self._before[:LIFE_BYTES] and sweeps - before <= 1)


def _sweeps(generation: bytes) -> int:
    return int.from_bytes(generation[LIFE_BYTES:], "little")


def begun_of(table: bytes, ids: Collection[MessageId]) -> Collection[bytes]:
    """Return which of these ids are in a table; for many ids, all that are in it."""
    if len(ids) > _FEW:
        whole = len(table) // SLOT_BYTES * SLOT_BYTES
        return {id_ for (id_,) in struct.iter_unpack(f"{SLOT_BYTES}s", table[:whole])}
    return [id_ for id_ in ids if _stands_in(table, id_)]


def _stands_in(table: bytes, id_: bytes) -> bool:
    at = table.find(id_)
    while at % SLOT_BYTES and at >= 0:  # across two slots
        at = table.find(id_, at + 1)
    return at >= 0
