"""Scheme 2 of Varghese and Lauck: a list in the order of due times. A start pays for the sort.

Invariant: no timer of the list is due before the one in front of it.
"""

from __future__ import annotations

from filewheel.timers.entry import Entry, Item
from filewheel.timers.unordered_list import UnorderedList


class OrderedList(UnorderedList[Item]):
    """A sorted list. start O(n), O(1) for the latest due; stop O(1); advance O(1) and for each expired timer.

    Timers expire in the order of due times; those of one due in the order of starts.
    """

    def _place(self, entry: Entry[Item]) -> None:
        self.list.insert_sorted(entry)

    def _collect(self, now: int) -> None:
        while (entry := self.list.first) is not None and entry.due <= now:
            self.list.remove(entry)
            self._overdue.append(entry)

    def _next(self) -> int:
        assert self.list.first is not None
        return self.list.first.due
