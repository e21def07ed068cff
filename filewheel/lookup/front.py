"""The messages of a wheel that are due first, kept in step with the journals.

A walk finds the first pending messages, and the id above which nothing is known: the horizon. After that, the frames
that journals gain are taken one by one, and only their records below the horizon count.
Invariant: at a cut of the journals, exactly the pending messages below the horizon are known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import Self

from filewheel.format.frame import Frame
from filewheel.format.record import ID, readable_records
from filewheel.laps.window import Budget
from filewheel.lookup.snapshot import DEAD_FLOOR, Filter, Snapshot
from filewheel.message import ID_MIN

COUNT_MAX = 256
"""A look for at most so many is remembered at once, others from a handle's second look on."""
PUTS_MAX = 4096
BYTES_MAX = 4 << 20
"""How much is remembered at most, but no fewer than were asked for."""


class Front:
    """The first messages of a wheel. Not thread-safe."""

    def __init__(self, puts: list[bytes], horizon: bytes, count: int) -> None:
        """Take all pending puts below the horizon, in order; `count` of them are wanted."""
        self._puts = {put[ID]: put for put in puts}
        self._ids = list(self._puts)
        """The same, in order."""
        self._bytes = sum(map(len, puts))
        self._count = count
        self._horizon = horizon
        self._gone: set[bytes] = set()
        """Dropped ids since the last cut: the put may be read later, from another journal."""

    @classmethod
    def of(cls, snapshot: Snapshot, count: int) -> Self:
        """Read the first messages of a snapshot, `count` or more. Raises DiskError."""
        puts: list[bytes] = []
        horizon, budget = ID_MIN, Budget(max(count, PUTS_MAX), BYTES_MAX)
        while horizon < DEAD_FLOOR and (len(puts) < count or not puts):
            window = snapshot.window(horizon, DEAD_FLOOR, budget)
            puts += window.puts
            horizon = window.hi
        return cls(puts, horizon, count)

    def _is_over(self, puts: int, size: int) -> bool:
        return len(self._puts) >= max(puts, self._count) or (self._bytes > size and len(self._puts) >= self._count)

    def has(self, count: int) -> bool:
        """Return whether the first `count` messages are known, or all there are."""
        return len(self._ids) >= count or self._horizon >= DEAD_FLOOR

    def first(self, which: Filter, limit: int | None) -> list[bytes] | None:
        """Return the packed puts of these messages, the first `limit`; None where more of them may be on disk."""
        ids = self._ids[bisect_left(self._ids, which.lo) : bisect_left(self._ids, which.hi)]
        puts = map(self._puts.__getitem__, ids)
        is_range = which.topic is None and which.error is None
        found = list(islice(puts if is_range else filter(which.fits, puts), limit))
        return found if len(found) == limit or which.hi <= self._horizon else None

    def take(self, frame: Frame) -> None:
        """Take a new frame of a journal, whose puts have new ids."""
        if frame.first >= self._horizon:
            return
        puts, drops = readable_records(frame)
        for drop in drops:
            id_ = drop[ID]
            if id_ in self._puts:
                self._bytes -= len(self._puts.pop(id_))
                del self._ids[bisect_left(self._ids, id_)]
            else:
                self._gone.add(id_)
        for put in puts:
            id_ = put[ID]
            if id_ < self._horizon and id_ not in self._gone and id_ not in self._puts:
                self._puts[id_] = put
                self._bytes += len(put)
                insort(self._ids, id_)
        if self._is_over(2 * PUTS_MAX, 2 * BYTES_MAX):
            self._shrink()

    def _shrink(self) -> None:
        """Forget the latest messages, and lower the horizon to them."""
        while self._is_over(PUTS_MAX, BYTES_MAX) and len(self._ids) > self._count:
            self._horizon = self._ids.pop()
            self._bytes -= len(self._puts.pop(self._horizon))

    def is_at_a_cut(self) -> None:
        """Note that all journals were read up to one cut: a put that is read from now on is newer than each drop."""
        self._gone.clear()
