"""Scheme 1 of Varghese and Lauck: an unordered list, of which every advance looks at each timer.

Invariant: the list has the pending timers in the order of their starts.
"""

from __future__ import annotations

from collections.abc import Iterable

from filewheel.timers.entry import Entry, Item, Slot
from filewheel.timers.scheme import Scheme


class UnorderedList(Scheme[Item]):
    """A list without order. start O(1), stop O(1), advance O(n).

    Timers of one advance expire in the order of starts.

    Source: Varghese and Lauck (1987), scheme 1.
    """

    def __init__(self, *, now: int = 0) -> None:
        """Start at a time. Raises BadArgument unless it is an integer."""
        super().__init__(now=now)
        self.list: Slot[Item] = Slot()

    def _place(self, entry: Entry[Item]) -> None:
        self.list.append(entry)

    def _collect(self, now: int) -> None:
        for entry in self.list:
            if entry.due <= now:
                self.list.remove(entry)
                self._overdue.append(entry)

    def _next(self) -> int:
        return min(entry.due for entry in self.list)  # O(n): that is this scheme

    def _waiting(self) -> Iterable[Entry[Item]]:
        return list(self.list)
