"""Scheme 4 of Varghese and Lauck: a wheel with one slot a tick. A timer's slot is its tick, modulo the slots.

Invariant: all timers of a slot have the same tick, the next at which the hand is there.
"""

from __future__ import annotations

from filewheel.errors import TooLarge
from filewheel.timers.entry import Entry, Item
from filewheel.timers.hashed_unordered import HashedUnordered
from filewheel.timers.scheme import check_slots


class SimpleWheel(HashedUnordered[Item]):
    """A wheel for delays up to its length: none has rounds. start O(1), stop O(1), advance O(1) a tick, at most
    O(slots).

    Timers expire in the order of ticks; those of one tick in the order of starts.
    """

    def __init__(self, slots: int = 512, *, tick: int = 1, now: int = 0) -> None:
        """Make a wheel for delays up to `slots` ticks, of `tick` units each. Raises BadArgument for other numbers."""
        # One more than the ticks of the longest delay: that of a timer started between two ticks is rounded up.
        super().__init__(check_slots(slots) + 1, tick=tick, now=now)
        self.delay_max = slots * tick

    def check_delay(self, delay: int) -> None:
        """Raise TooLarge for a delay over `delay_max`."""
        if delay > self.delay_max:
            raise TooLarge(
                f"a delay of {delay} is over the {self.delay_max} of this wheel",
                hint="more slots, or a hashed or hierarchical wheel",
            )

    def _place(self, entry: Entry[Item]) -> None:
        if entry.due - self.now > self.delay_max:
            self.check_delay(entry.due - self.now)
        entry.tick = self._tick_of(entry.due)
        self.slots[entry.tick % len(self.slots)].append(entry)
