"""Knows which offsets of a partition wait, for `low`: the offset that a rebuild starts from.

It is exact: retention may delete a record one offset before a waiting one, and a rebuild must not be refused for it.
It is in memory only. A walk over the ids in the wheel makes it after each opening, in the order of the ids and a part
at a time, while records come and go. Until it has ended, nobody asks for `low`.
Cost: for each block of 4,096 offsets that has a waiting record 200 bytes, up to 64 records; 700 bytes with more; 100
with all (docs/adr/0049-a-node-stops-rather-than-guesses.md).
Invariant: once the walk has ended, an offset is held if and only if its record waits.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable

from filewheel.kafka.records.fate import offset_of
from filewheel.message import ID_MIN

BLOCK_BITS = 12
_BLOCK = 1 << BLOCK_BITS
_FULL = (1 << _BLOCK) - 1
"""The bits of a block whose records all wait: one object for all of them."""
_FEW = 64
"""Up to so many offsets of a block are a list; with more, a bit for each of its offsets."""


class WaitingOffsets:
    """The waiting offsets of one partition. Not thread-safe: the partition's lock guards it."""

    def __init__(self) -> None:
        self._held: dict[int, int | array[int]] = {}
        """Block → the places in it that wait, as bits, or as a list of a few."""
        self._blocks: list[int] = []
        """A heap of the blocks in `_held`, and of some that are no longer."""
        self._walk_below = 0
        """The walk notes the records before this offset; those that come later are noted as they come."""
        self.walked = ID_MIN
        """Records before `_walk_below` are noted up to this id."""
        self.is_walking = False
        self.is_complete = False
        self.total = 0

    def start(self, ingested: int) -> None:
        """Begin a walk; everything before this offset has been taken in."""
        self.__init__()  # type: ignore[misc]
        self._walk_below = ingested
        self.is_walking = True

    def walk(self, ids: Iterable[bytes], upto: bytes, *, ends: bool) -> None:
        """Note the ids that the walk found, from `walked` to below `upto`; `ends` says that there are no more."""
        for id_ in ids:
            offset = offset_of(id_)
            if offset < self._walk_below:
                self._add(offset >> BLOCK_BITS, offset & (_BLOCK - 1), 1)
        self.walked = upto
        if ends:
            self.is_walking, self.is_complete = False, True

    def add_run(self, first: int, count: int) -> None:
        """Note records that are taken in, at consecutive offsets."""
        if not (self.is_walking or self.is_complete):
            return
        end = first + count
        while first < end:
            block = first >> BLOCK_BITS
            upto = min(end, (block + 1) << BLOCK_BITS)
            self._add(block, first & (_BLOCK - 1), upto - first)
            first = upto

    def _add(self, block: int, place: int, count: int) -> None:
        held = self._held.get(block)
        if held is None:
            heapq.heappush(self._blocks, block)
            held = array("H")
        if isinstance(held, array):
            if len(held) + count <= _FEW:
                new = [n for n in range(place, place + count) if n not in held]
                held.extend(new)
                self._held[block] = held
                self.total += len(new)
                return
            self.total -= len(held)
            bits = sum(1 << n for n in held)
        else:
            self.total -= held.bit_count()
            bits = held
        bits |= ((1 << count) - 1) << place
        self._held[block] = _FULL if bits == _FULL else bits
        self.total += bits.bit_count()

    def remove(self, ids: Iterable[bytes]) -> None:
        """Forget records that were dropped. One that the walk has yet to pass was not noted. Cost: 0.8 µs each."""
        if not (self.is_walking or self.is_complete):
            return
        for id_ in ids:
            offset = offset_of(id_)
            self._take(offset >> BLOCK_BITS, offset & (_BLOCK - 1))

    def _take(self, block: int, place: int) -> None:
        held = self._held.get(block)
        if held is None:
            return
        if isinstance(held, array):
            if place not in held:
                return
            held.remove(place)
            if not held:
                del self._held[block]
        else:
            bit = 1 << place
            if not held & bit:
                return
            held ^= bit
            is_few = held.bit_count() <= _FEW // 2
            self._held[block] = array("H", [n for n in range(_BLOCK) if held >> n & 1]) if is_few else held
        self.total -= 1

    def low(self, ingested: int, without: Iterable[bytes] = ()) -> int:
        """Return the first offset that waits, beside these ids; `ingested` if none does. Only when it is complete.

        Cost: 0.2 µs for each of the ids.
        """
        while self._blocks and self._blocks[0] not in self._held:
            heapq.heappop(self._blocks)
        left_out: dict[int, int] = {}
        for offset in map(offset_of, without):
            block = offset >> BLOCK_BITS
            left_out[block] = left_out.get(block, 0) | 1 << (offset & (_BLOCK - 1))
        blocks = sorted(self._held) if self._blocks and self._blocks[0] in left_out else self._blocks[:1]
        for block in blocks:
            held = self._held[block]
            bits = sum(1 << n for n in held) if isinstance(held, array) else held
            bits &= ~left_out.get(block, 0)
            if bits:
                return min(ingested, (block << BLOCK_BITS) + (bits & -bits).bit_length() - 1)
        return ingested
