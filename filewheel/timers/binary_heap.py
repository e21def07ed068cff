"""Scheme 3 of Varghese and Lauck, a tree of timers: the binary heap of asyncio, `sched` and java.util.

A stopped timer cannot leave the middle of a heap cheaply. It stays as a shell until it is on top, or until the shells
are more than the pending timers: then one pass takes all of them out.
Invariant: at most max(64, pending timers) shells are in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from filewheel.timers.entry import EXPIRED, PENDING, Entry, Item
from filewheel.timers.scheme import Scheme

SHELLS_FREE = 64


class BinaryHeap(Scheme[Item]):
    """A heap. start O(log n), stop O(1) on average, advance O(log n) for each expired timer.

    Timers expire in the order of due times; those of one due in the order of starts.
    """

    def __init__(self, *, now: int = 0) -> None:
        """Start at a time. Raises BadArgument unless it is an integer."""
        super().__init__(now=now)
        self.heap: list[tuple[int, int, Entry[Item]]] = []
        self._shells = 0

    def first(self) -> Entry[Item] | None:
        """Return the pending timer that is due first; None when there is none."""
        if self._overdue.first is not None:
            return self._overdue.first
        while self.heap and self.heap[0][2].state is not PENDING:
            heapq.heappop(self.heap)
            self._shells -= 1
        return self.heap[0][2] if self.heap else None

    def pop(self) -> Entry[Item]:
        """Expire the timer that is due first, and return it. There is one."""
        entry = self.first()
        assert entry is not None
        if entry.slot is None:
            heapq.heappop(self.heap)
        else:
            entry.slot.remove(entry)
        entry.state = EXPIRED
        self._pending -= 1
        return entry

    def _place(self, entry: Entry[Item]) -> None:
        heapq.heappush(self.heap, (entry.due, entry.number, entry))

    def _collect(self, now: int) -> None:
        while self.heap and self.heap[0][0] <= now:
            entry = heapq.heappop(self.heap)[2]
            if entry.state is PENDING:
                self._overdue.append(entry)
            else:
                self._shells -= 1

    def _forget(self, entry: Entry[Item]) -> None:
        self._shells += 1
        if self._shells > max(SHELLS_FREE, len(self.heap) - self._shells):
            self.heap = [one for one in self.heap if one[2].state is PENDING]
            heapq.heapify(self.heap)
            self._shells = 0

    def _next(self) -> int:
        first = self.first()
        assert first is not None
        return first.due

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for _, _, entry in self.heap if entry.state is PENDING]
