"""Counts the waiting records of a partition by blocks of offsets, for `low`: the offset that a rebuild starts from.

The counts are in memory only. A walk over the ids in the wheel makes them after each opening, in the order of the ids
and a part at a time, while records come and go. Until it has ended, nobody asks for `low`.
Cost: 100 bytes for each block of 4,096 offsets that has a waiting record.
Invariant: once the walk has ended, a block without a waiting record is not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from filewheel.kafka.records.fate import offset_of
from filewheel.message import ID_MIN

BLOCK_BITS = 12


class Waiting:
    """The counts of one partition. Not thread-safe: the partition's lock guards it."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._blocks: list[int] = []
        """A heap of the blocks in `_counts`, and of some that are no longer."""
        self._walk_below = 0
        """The walk counts the records before this offset; those that come later are counted as they come."""
        self.walked = ID_MIN
        """Records before `_walk_below` are counted up to this id."""
        self.is_walking = False
        self.is_complete = False
        self.total = 0

    def start(self, ingested: int) -> None:
        """Begin a walk; everything before this offset has been taken in."""
        self.__init__()  # type: ignore[misc]
        self._walk_below = ingested
        self.is_walking = True

    def walk(self, ids: Iterable[bytes], upto: bytes, *, ends: bool) -> None:
        """Count the ids that the walk found, from `walked` to below `upto`; `ends` says that there are no more."""
        for id_ in ids:
            offset = offset_of(id_)
            if offset < self._walk_below:
                self._add(offset >> BLOCK_BITS, 1)
        self.walked = upto
        if ends:
            self.is_walking, self.is_complete = False, True

    def add_run(self, first: int, count: int) -> None:
        """Count records that are taken in, at consecutive offsets."""
        if not (self.is_walking or self.is_complete):
            return
        end = first + count
        while first < end:
            block = first >> BLOCK_BITS
            upto = min(end, (block + 1) << BLOCK_BITS)
            self._add(block, upto - first)
            first = upto

    def _add(self, block: int, count: int) -> None:
        if block not in self._counts:
            self._counts[block] = 0
            heapq.heappush(self._blocks, block)
        self._counts[block] += count
        self.total += count

    def remove(self, ids: Iterable[bytes]) -> None:
        """Stop counting records that were dropped. One that the walk has yet to pass was not counted."""
        if not (self.is_walking or self.is_complete):
            return
        counts = self._counts
        for id_ in ids:
            offset = offset_of(id_)
            # mutant: kafka-unwalked-removed
            if self.is_walking and offset < self._walk_below and id_ >= self.walked:
                continue
            block = offset >> BLOCK_BITS
            left = counts[block] - 1
            self.total -= 1
            if left:
                counts[block] = left
            else:
                del counts[block]

    def low(self, ingested: int) -> int:
        """Return an offset before which no record waits; `ingested` if none waits at all. Only when it is complete."""
        while self._blocks and self._blocks[0] not in self._counts:
            heapq.heappop(self._blocks)
        return min(ingested, self._blocks[0] << BLOCK_BITS) if self._blocks else ingested
