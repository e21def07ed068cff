"""Scheme 4 of Varghese and Lauck: a wheel with one slot a tick. A timer's slot is its tick, modulo the slots.

Invariant: all timers of a slot have the same tick, the next at which the hand is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from filewheel.errors import TooLarge
from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import TickWheel, check_slots, slots_of


class SimpleWheel(TickWheel[Item]):
    """A wheel for delays up to its length. start O(1), stop O(1), advance O(1) a tick, at most O(slots).

    Timers expire in the order of ticks; those of one tick in the order of starts.
    """

    def __init__(self, slots: int = 512, *, tick: int = 1, now: int = 0) -> None:
        """Make a wheel for delays up to `slots` ticks, of `tick` units each. Raises BadArgument for other numbers."""
        super().__init__(tick=tick, now=now)
        # One more than the ticks of the longest delay: that of a timer started between two ticks is rounded up.
        self.slots: list[Slot[Item]] = slots_of(check_slots(slots) + 1)
        self.delay_max = slots * tick

    def _place(self, entry: Entry[Item]) -> None:
        if entry.due - self.now > self.delay_max:
            raise TooLarge(
                f"a delay of {entry.due - self.now} is over the {self.delay_max} of this wheel",
                hint="more slots, or a hashed or hierarchical wheel",
            )
        entry.tick = self._tick_of(entry.due)
        self.slots[entry.tick % len(self.slots)].append(entry)

    def _collect(self, now: int) -> None:
        end = now // self.tick
        for tick in range(self.hand + 1, min(end, self.hand + len(self.slots)) + 1):
            slot = self.slots[tick % len(self.slots)]
            while (entry := slot.pop()) is not None:
                self._overdue.append(entry)
        self.hand = end

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for slot in self.slots for entry in slot]
