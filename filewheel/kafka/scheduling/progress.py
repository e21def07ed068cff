"""How far one partition of the calls is done: its first offset that is not, and the done ones behind it.

Calls end in any order, and a slow one must not make its successors run again after a crash. So the offset that is
committed to the group carries the rest as its metadata: a bit for each offset from there on. That needs no topic of
its own, and the group hands it to the next owner. The metadata also names the topic's id: an offset of a topic that was
deleted says nothing of the next one with its name.
Invariant: an offset is called done only after `finish`, or if the log has no call there.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

WINDOW = 16_384
"""The most offsets from the first open one on: their bits fit into the 4096 bytes that brokers allow."""
_VERSION = "2"


class Committed(NamedTuple):
    """What is committed to the group for a partition."""

    offset: int
    metadata: str = ""


class Progress:
    """The progress of one partition since it was assigned."""

    def __init__(self, position: Committed | None, topic_id: str = "") -> None:
        """Begin where the group stands; None at the first record of the log."""
        self._topic_id = topic_id
        self.start = position.offset if position is not None else 0
        self._done_before = _unpack(position) if position is not None else frozenset()
        """Offsets from `start` on that an earlier owner finished."""
        self._open: dict[int, None] = {}
        """Offsets that are not done, ascending."""
        self._end = max((self.start, *(n + 1 for n in self._done_before)))
        """All offsets below it are done or open, or were not read yet and are in `_done_before`."""
        self._read = self.start
        self.is_owned = True
        """Whether this member still owns the partition."""

    def take(self, offset: int) -> bool:
        """Note a record that was read; return False if it is done, or was read before."""
        if offset < self._read:
            return False
        self._read = offset + 1
        self._end = max(self._end, self._read)
        if offset in self._done_before:  # mutant: kafka-done-runs-again
            return False
        self._open[offset] = None
        return True

    def advance(self, offset: int) -> None:
        """Note that the log has no record that was not read before this offset: its end was met there."""
        self._read = max(self._read, offset)
        self._end = max(self._end, offset)

    @property
    def read_to(self) -> int:
        """The offset after all that was read."""
        return self._read

    @property
    def has_read(self) -> bool:
        """Whether anything was read since the partition was assigned."""
        return self._read > self.start

    def finish(self, offset: int) -> None:
        """Note that a call is done."""
        self._open.pop(offset, None)

    def has_room(self, offset: int) -> bool:
        """Return whether the call at an offset may begin: its end can be noted."""
        return offset - self._first() < WINDOW

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read for now."""
        return self._read - self._first() >= WINDOW

    def position(self, also: frozenset[int] = frozenset()) -> Committed:
        """Return what to commit, as if the offsets `also` were done."""
        first = next((n for n in self._open if n not in also), self._read)
        bits = 0
        for offset in range(first, min(self._end, first + WINDOW)):
            is_done = offset in self._done_before or (offset < self._read and offset not in self._open)
            if is_done or offset in also:
                bits |= 1 << (offset - first)
        packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        return Committed(first, f"{_VERSION}:{self._topic_id}:{base64.b64encode(packed).decode()}")

    def _first(self) -> int:
        return next(iter(self._open), self._read)


def of_topic(position: Committed | None, topic_id: str) -> Committed | None:
    """Return a committed position; None for one of another topic with this name."""
    if position is not None and _fields(position)[0] not in ("", topic_id):  # mutant: kafka-position-of-another-topic
        return None
    return position


def is_done(position: Committed | None, offset: int) -> bool:
    """Return whether a committed position says that a call is done."""
    return position is not None and (offset < position.offset or offset in _unpack(position))


def _unpack(position: Committed) -> frozenset[int]:
    """Return the done offsets of a position; none for metadata of another program: those calls run again."""
    try:
        packed = base64.b64decode(_fields(position)[1], validate=True)
    except (ValueError, binascii.Error):
        return frozenset()
    bits = int.from_bytes(packed, "little")
    return frozenset(position.offset + n for n in range(bits.bit_length()) if bits >> n & 1)


def _fields(position: Committed) -> tuple[str, str]:
    """Return the topic's id, empty if unknown, and the packed bits."""
    version, _, rest = position.metadata.partition(":")
    if version != _VERSION:
        return "", rest if version == "1" else ""  # a release before named no topic
    topic_id, _, packed = rest.partition(":")
    return topic_id, packed
