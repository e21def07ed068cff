"""Scheme 5 of Varghese and Lauck: a hashed wheel whose slots are sorted lists.

A tick looks at the head of one slot only. A small heap in each slot, as some texts have it, would make a start
O(log (n / slots)); a list keeps the stop at O(1).
Invariant: a timer is in the slot of its tick modulo the slots; no timer of a slot is due before the one in front of it.
"""

from __future__ import annotations

from filewheel.timers.entry import Entry, Item
from filewheel.timers.hashed_unordered import HashedUnordered


class HashedOrdered(HashedUnordered[Item]):
    """A hashed wheel with sorted slots. start O(1) on average for n < slots, at worst O(n); stop O(1); advance O(1) a
    tick, at most O(slots), and O(1) for each expired timer.

    Timers expire in the order of due times; those of one due in the order of starts.
    """

    is_ordered = True

    def _place(self, entry: Entry[Item]) -> None:
        entry.tick = self._tick_of(entry.due)
        self.slots[entry.tick % len(self.slots)].insert_sorted(entry)
