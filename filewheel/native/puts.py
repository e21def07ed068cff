"""The puts of a deal: gathered from many frames, sorted once, and cut into the frames of other files.

In Python, over a list of records. `_puts.c` has the same in C, without an object for each put; `compiled.py` chooses.
Invariant: both versions return the same bytes and refuse the same input (tests/native/test_loops.py compares them).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from filewheel.native.loops import ID, PUT_PREFIX, part, seal_frame


class PutTable:
    """A table of puts. All methods but `add` and `extend` require it sorted. Not thread-safe."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: list[bytes] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, body: bytes, first: bytes, last: bytes, /) -> list[bytes]:
        """Add the puts of a frame's body; return its drops. Raises ValueError as `part`, with nothing added."""
        puts, drops = part(body, first, last)
        self._records += puts
        return drops

    def extend(self, records: list[bytes], /) -> None:
        """Add single puts."""
        if not all(r[:4] == PUT_PREFIX and len(r) > ID.stop for r in records):
            raise ValueError("not a put")
        self._records += records

    def sort(self) -> None:
        """Sort the puts by id."""
        self._records.sort()

    def find(self, id_: bytes, at: int, /) -> int:
        """Return the first index, from `at` on, of a put with this id or a greater one."""
        return bisect_left(self._records, PUT_PREFIX + id_, max(at, 0))

    def id(self, at: int, /) -> bytes:
        """Return the id of the put at an index."""
        if at < 0:
            raise IndexError("no put there")
        return self._records[at][ID]

    def having(self, ids: Iterable[bytes], /) -> set[bytes]:
        """Return those of these ids that the table has."""
        return {r[ID] for r in self._records}.intersection(ids)

    def remove(self, ids: Iterable[bytes], /) -> None:
        """Remove the puts with these ids."""
        gone = set(ids)
        self._records = [r for r in self._records if r[ID] not in gone]

    def unique(self) -> None:
        """Remove all but the last put of each id."""
        last = {r[ID]: r for r in self._records}
        if len(last) < len(self._records):
            self._records = list(last.values())

    def size_bytes(self) -> int:
        """Return the total size of the puts. Cost: nothing in C."""
        return sum(map(len, self._records))

    def full_at(self, count: int, size_bytes: int, /) -> int:
        """Return the index of the put that reaches this count or this size; the end if none does."""
        at = size = 0
        for at, record in enumerate(self._records):
            size += len(record)
            if at + 1 >= count or size >= size_bytes:
                return at
        return len(self._records)

    def keep(self, count: int, /) -> None:
        """Keep the first `count` puts, and free the memory of the others."""
        self._check(0, count)
        del self._records[count:]

    def ids(self) -> list[bytes]:
        """Return the ids."""
        return [r[ID] for r in self._records]

    def records(self) -> list[bytes]:
        """Return the records."""
        return self._records.copy()

    def cut(self, start: int, end: int, /) -> None:
        """Remove the puts of a range."""
        self._check(start, end)
        del self._records[start:end]

    def frames(self, start: int, end: int, seed: int, offset: int, number: int, limit: int, /) -> bytes:
        """Return the puts of a range as frames for `offset`, each of at most `limit` bytes or of one put."""
        self._check(start, end)
        out = []
        while start < end:
            upto, size = start + 1, len(self._records[start])
            while upto < end and size + len(self._records[upto]) <= limit:
                size += len(self._records[upto])
                upto += 1
            some = self._records[start:upto]
            frame = seal_frame(b"".join(some), seed, offset, number, 0, len(some), 0, some[0][ID], some[-1][ID])
            out.append(frame)
            offset += len(frame)
            start = upto
        return b"".join(out)

    def _check(self, start: int, end: int) -> None:
        if not 0 <= start <= end <= len(self._records):
            raise IndexError("no such range of puts")
