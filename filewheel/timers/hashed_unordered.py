"""Scheme 6 of Varghese and Lauck: a hashed wheel whose slots have no order, and whose timers have rounds.

It is the wheel of Netty and of Akka. The paper counts the rounds of a timer down at each visit. Here a timer keeps its
tick, which is the same without a write: it has no round left when its tick is not after the hand's.
Invariant: a timer is in the slot of its tick modulo the slots.
"""

from __future__ import annotations

from collections.abc import Iterable

from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import TickWheel, check_slots, slots_of


class HashedUnordered(TickWheel[Item]):
    """A hashed wheel with rounds. start O(1), stop O(1), advance O(n / slots) a tick on average, at worst O(n).

    Timers expire in the order of ticks; those of one tick in the order of starts.
    """

    is_ordered = False
    """Whether no timer of a slot is due before the one in front of it."""

    def __init__(self, slots: int = 512, *, tick: int = 1, now: int = 0) -> None:
        """Make a wheel of slots, with `tick` units in a tick. Raises BadArgument for other numbers."""
        super().__init__(tick=tick, now=now)
        self.slots: list[Slot[Item]] = slots_of(check_slots(slots))

    def rounds_of(self, entry: Entry[Item]) -> int:
        """Return how many times the hand passes a waiting timer before it expires."""
        return (entry.tick - self.hand - 1) // len(self.slots)

    def _place(self, entry: Entry[Item]) -> None:
        entry.tick = self._tick_of(entry.due)
        self.slots[entry.tick % len(self.slots)].append(entry)

    def _collect(self, now: int) -> None:
        hand, end, slots = self.hand, now // self.tick, self.slots
        count = len(slots)
        is_over_a_lap = end - hand > count
        found: list[Entry[Item]] = []
        for tick in range(hand + 1, (hand + count if is_over_a_lap else end) + 1):
            slot = slots[tick % count]
            entry = slot.first
            while entry is not None:
                after = entry.after
                if entry.tick <= end:  # no round is left
                    slot.remove(entry)
                    found.append(entry)
                elif self.is_ordered:
                    break
                entry = after
        if is_over_a_lap:  # a slot gave the timers of several
            found.sort(key=lambda entry: (entry.due if self.is_ordered else entry.tick, entry.number))
        for entry in found:
            self._overdue.append(entry)
        self.hand = end

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for slot in self.slots for entry in slot]
