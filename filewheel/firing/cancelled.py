"""The result of a cancel: stopped in time, begun, or not found.

A call that cancels, moves or replaces messages reads the file `begun` (disk/begun.py): its generation before it looks
for the messages, its table after it has written its drop and the mark. Only a living keeper counts. While the lock of
the file is held, the table is complete; while it is free, the keeper's own lock shows whether there is a keeper.
Invariant: a message reported as stopped does not begin. One reported as begun may have begun at that very moment.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Mapping

from filewheel.disk.begun import GENERATION_BYTES, LIFE_BYTES, SLOT_BYTES, read_table
from filewheel.disk.directory import Directory
from filewheel.disk.keeper_lock import holder
from filewheel.errors import FilewheelError
from filewheel.message import MessageId

_SAFE_SWEEPS = 2
"""A keeper's first sweeps, before which no slot is written twice."""
_FEW = 16


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
