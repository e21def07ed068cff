"""Kafka's timing wheel: levels made on demand, each level's tick the span of the one below.

Slots in use wait in a queue, and time jumps from one to the next: a wheel with one timer that is due in a year has
nothing to do until then. A slot of a higher level expires at its first tick; its timers are put in again and land
lower.
Source: org.apache.kafka.server.util.timer.TimingWheel.
Invariants: a slot that has a timer is in the queue, once; it expires at its timers' ticks or before them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import TickWheel, check_slots, slots_of


class Growing(TickWheel[Item]):
    """A wheel of as many levels as its timers need. start O(levels), and O(log slots in use) for the first timer of a
    slot; stop O(1); advance O(log slots in use) for each slot that expired, and nothing for empty ticks. A timer is put
    in again at most once for each level. A slot whose timers were all stopped waits until its expiry.

    Timers expire in the order of ticks; those of one tick in no order.
    """

    def __init__(self, slots: int = 20, *, tick: int = 1, now: int = 0) -> None:
        """Make the first level, with this many slots as each further one, and `tick` units in its tick.

        Raises BadArgument for other numbers.
        """
        super().__init__(tick=tick, now=now)
        self.size = check_slots(slots, least=2)
        self.levels: list[list[Slot[Item]]] = [slots_of(self.size, 1)]
        self._in_use: list[tuple[int, int, int, Slot[Item]]] = []
        """A heap of slots by their expiry; no two are equal before the slot."""

    def _place(self, entry: Entry[Item]) -> None:
        entry.tick = self._tick_of(entry.due)
        self._put(entry)

    def _put(self, entry: Entry[Item]) -> None:
        """Put an entry into the lowest level that reaches its tick, which is after the hand."""
        span, number = 1, 0
        while entry.tick // span - self.hand // span >= self.size:
            span, number = span * self.size, number + 1
            if number == len(self.levels):
                self.levels.append(slots_of(self.size, number + 1))
        slot = self.levels[number][entry.tick // span % self.size]
        slot.append(entry)
        if not slot.is_in_use:
            slot.is_in_use = True
            slot.expiry = entry.tick // span * span
            heapq.heappush(self._in_use, (slot.expiry, slot.level, slot.index, slot))

    def _collect(self, now: int) -> None:
        end = now // self.tick
        while self._in_use and self._in_use[0][0] <= end:
            self._empty(heapq.heappop(self._in_use)[3])
        self.hand = end

    def _empty(self, slot: Slot[Item]) -> None:
        """Expire or demote the timers of a slot that left the queue."""
        slot.is_in_use = False
        self.hand = max(self.hand, slot.expiry)
        for _ in range(slot.count):
            entry = slot.pop()
            assert entry is not None
            if entry.tick <= self.hand:
                self._overdue.append(entry)
            else:
                self._put(entry)

    def _next(self) -> int:
        return self._in_use[0][0] * self.tick

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for level in self.levels for slot in level for entry in slot]
