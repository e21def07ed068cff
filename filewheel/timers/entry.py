"""A started timer, and the list of timers that a slot is.

Varghese and Lauck keep the timers of a slot in a doubly linked list, so that STOP_TIMER is O(1) with the entry at hand.
Each entry carries its own links: a slot owns no other memory for it.
Invariant: an entry is in at most one slot, and only while it is PENDING; its state changes once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Generic, TypeVar

Item = TypeVar("Item")


class TimerState(Enum):
    """The states of a timer. PENDING becomes EXPIRED or STOPPED, and neither changes again."""

    PENDING = "pending"
    EXPIRED = "expired"
    STOPPED = "stopped"


PENDING, EXPIRED, STOPPED = TimerState.PENDING, TimerState.EXPIRED, TimerState.STOPPED


class Entry(Generic[Item]):
    """A timer of a scheme: `.due` as it was started, `.item` for its expiry, `.state`, and its `.slot` while in one."""

    __slots__ = ("after", "before", "due", "item", "number", "scheme", "slot", "state", "tick")

    def __init__(self, due: int, item: Item, number: int, scheme: object) -> None:
        self.due = due
        self.item = item
        self.number = number  # counts the starts of the scheme
        self.scheme = scheme
        self.state = PENDING
        self.tick = 0  # of a wheel: the tick at which it expires
        self.slot: Slot[Item] | None = None
        self.before: Entry[Item] | None = None
        self.after: Entry[Item] | None = None

    def __repr__(self) -> str:
        return f"<Entry due {self.due} {self.state.value}>"


class Slot(Generic[Item]):
    """A doubly linked list of entries: append, insert, remove and pop in O(1)."""

    __slots__ = ("count", "expiry", "first", "index", "is_in_use", "last", "level")

    def __init__(self, level: int = 0, index: int = 0) -> None:
        self.level = level
        self.index = index
        self.expiry = 0  # of a growing wheel: the tick at which the slot is emptied
        self.is_in_use = False  # of a growing wheel: it waits for its expiry
        self.count = 0
        self.first: Entry[Item] | None = None
        self.last: Entry[Item] | None = None

    def append(self, entry: Entry[Item]) -> None:
        """Put an entry at the end."""
        self.insert_after(self.last, entry)

    def insert_after(self, before: Entry[Item] | None, entry: Entry[Item]) -> None:
        """Put an entry behind another of this slot; None puts it first."""
        after = self.first if before is None else before.after
        entry.slot, entry.before, entry.after = self, before, after
        if before is None:
            self.first = entry
        else:
            before.after = entry
        if after is None:
            self.last = entry
        else:
            after.before = entry
        self.count += 1

    def insert_sorted(self, entry: Entry[Item]) -> None:
        """Put an entry behind the last one that is not due later: O(entries due later)."""
        before = self.last
        while before is not None and before.due > entry.due:
            before = before.before
        self.insert_after(before, entry)

    def remove(self, entry: Entry[Item]) -> None:
        """Take an entry of this slot out."""
        before, after = entry.before, entry.after
        if before is None:
            self.first = after
        else:
            before.after = after
        if after is None:
            self.last = before
        else:
            after.before = before
        entry.slot = entry.before = entry.after = None
        self.count -= 1

    def pop(self) -> Entry[Item] | None:
        """Take the first entry out and return it; None when there is none."""
        entry = self.first
        if entry is not None:
            self.remove(entry)
        return entry

    def __iter__(self) -> Iterator[Entry[Item]]:
        """Yield the entries, first to last. The one that was yielded last may be removed."""
        entry = self.first
        while entry is not None:
            after = entry.after
            yield entry
            entry = after

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<Slot {self.index} of level {self.level}: {self.count} timers>"
