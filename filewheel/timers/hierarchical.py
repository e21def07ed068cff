"""Scheme 7 of Varghese and Lauck: a fixed number of wheels, each of whose ticks is the span of the one below.

A timer waits in the lowest level that reaches its tick. When the hand gets to a slot of a higher level, its timers are
put in again and land lower. A timer beyond the span waits in the highest level, and is put in again once a lap there.
Invariant: a timer's slot is emptied at its tick or before it; a slot that the hand has reached is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from filewheel.checks import check_items
from filewheel.errors import BadArgument
from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import TickWheel, check_slots, slots_of


class Hierarchical(TickWheel[Item]):
    """Wheels above each other. start O(levels), stop O(1), advance O(1) a tick; a timer is put in again at most
    once for each level, and once for each span that it is away.

    Timers expire in the order of ticks; those of one tick in no order.
    """

    def __init__(self, levels: Sequence[int] = (256, 64, 64, 64), *, tick: int = 1, now: int = 0) -> None:
        """Make a level for each count of slots, the lowest first, with `tick` units in a tick of the lowest.

        Raises BadArgument for other numbers, or no level.
        """
        super().__init__(tick=tick, now=now)
        counts = [check_slots(count, least=2) for count in check_items("levels", levels)]
        if not counts:
            raise BadArgument("levels are the slots of at least one level", hint="levels=(256, 64, 64, 64)")
        self.levels: list[list[Slot[Item]]] = [slots_of(count, level) for level, count in enumerate(counts, 1)]
        self.spans: list[int] = [1]
        """The ticks of a slot of each level, and at the end those of the whole wheel."""
        for count in counts:
            self.spans.append(self.spans[-1] * count)

    def _place(self, entry: Entry[Item]) -> None:
        entry.tick = self._tick_of(entry.due)
        self._put(entry)

    def _put(self, entry: Entry[Item]) -> None:
        """Put an entry into the lowest level that reaches its tick, which is after the hand."""
        for level, span in zip(self.levels, self.spans, strict=False):
            at = entry.tick // span
            if at - self.hand // span < len(level):
                level[at % len(level)].append(entry)
                return
        # Beyond the span: in the slot that the hand reaches last.
        level[(self.hand // span - 1) % len(level)].append(entry)

    def _collect(self, now: int) -> None:
        end = now // self.tick
        found: list[Entry[Item]] = []
        for level, span in zip(self.levels, self.spans, strict=False):
            first, last = self.hand // span + 1, end // span
            if last < first:
                break  # no higher hand moves either
            for at in range(first, min(last, first + len(level) - 1) + 1):
                slot = level[at % len(level)]
                while (entry := slot.pop()) is not None:
                    found.append(entry)
        self.hand = end
        found.sort(key=lambda entry: entry.tick)
        for entry in found:
            if entry.tick <= end:
                self._overdue.append(entry)
            else:
                self._put(entry)

    def _waiting(self) -> Iterable[Entry[Item]]:
        return [entry for level in self.levels for slot in level for entry in slot]
