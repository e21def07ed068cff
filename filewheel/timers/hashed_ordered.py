"""Scheme 5 of Varghese and Lauck: a hashed wheel whose slots are sorted lists.

A tick looks at the head of one slot only.
Invariant: a timer is in the slot of its tick modulo the slots; no timer of a slot is due before the one in front of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import TickWheel, check_slots, slots_of


class HashedOrdered(TickWheel[Item]):
    """A hashed wheel with sorted slots. start O(1) on average for n < slots, at worst O(n); stop O(1); advance O(1) a
    tick, at most O(slots), and O(1) for each expired timer.

    Timers expire in the order of due times; those of one due in the order of starts.
    """

    def __init__(self, slots: int = 512, *, tick: int = 1, now: int = 0) -> None:
        """Make a wheel of slots, with `tick` units in a tick. Raises BadArgument for other numbers."""
        super().__init__(tick=tick, now=now)
        self.slots: list[Slot[Item]] = slots_of(check_slots(slots))

    def _place(self, entry: Entry[Item]) -> None:
        entry.tick = self._tick_of(entry.due)
        self.slots[entry.tick % len(self.slots)].insert_sorted(entry)

    def _collect(self, now: int) -> None:
        end = now // self.tick
        found: list[Entry[Item]] = []
        for tick in range(self.hand + 1, min(end, self.hand + len(self.slots)) + 1):
            slot = self.slots[tick % len(self.slots)]
            while (entry := slot.first) is not None and entry.tick <= end:
                slot.remove(entry)
                found.append(entry)
        if end - self.hand > len(self.slots):  # more than a lap: a slot gave the timers of several
            found.sort(key=lambda entry: (entry.due, entry.number))
        for entry in found:
            self._overdue.append(entry)
        self.hand = end

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for slot in self.slots for entry in slot]
