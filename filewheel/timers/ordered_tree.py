"""An ordered tree of timers, the other form of scheme 3 beside the heap: that of nginx, Quartz and Linux's hrtimers.

A stopped timer leaves it at once, where a heap keeps a shell. The tree is a treap: in the order of due times from left
to right, and of weights from top to bottom. A weight is a hash of the timer's number, so the tree is balanced as one of
random insertions is, and the same starts make the same tree.
Invariant: the tree has the pending timers that are not overdue, and no other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from filewheel.timers.entry import Entry, Item
from filewheel.timers.scheme import Scheme


class OrderedTree(Scheme[Item]):
    """A balanced tree. start O(log n), stop O(log n), advance O(log n) and O(1) for each expired timer.

    Timers expire in the order of due times; those of one due in the order of starts.
    """

    def __init__(self, *, now: int = 0) -> None:
        """Start at a time. Raises BadArgument unless it is an integer."""
        super().__init__(now=now)
        self.root: TimerNode | None = None

    def _place(self, entry: Entry[Item]) -> None:
        before, after = _split(self.root, entry.due, entry.number)
        self.root = _merge(_merge(before, TimerNode(entry)), after)

    def _forget(self, entry: Entry[Item]) -> None:
        before, rest = _split(self.root, entry.due, entry.number - 1)
        self.root = _merge(before, _split(rest, entry.due, entry.number)[1])

    def _collect(self, now: int) -> None:
        due, self.root = _split(self.root, now, math.inf)
        for entry in _in_order(due):
            self._overdue.append(entry)

    def _next(self) -> int:
        return next(_in_order(self.root)).due

    def _waiting(self) -> Iterable[Entry[Item]]:
        return list(_in_order(self.root))


class TimerNode:
    """A timer in the tree."""

    __slots__ = ("entry", "left", "right", "weight")

    def __init__(self, entry: Entry[Any]) -> None:
        self.entry = entry
        self.weight = hash((entry.number,))
        self.left: TimerNode | None = None
        self.right: TimerNode | None = None


def _split(node: TimerNode | None, due: int, number: float) -> tuple[TimerNode | None, TimerNode | None]:
    """Return the tree up to a timer, and the tree behind it."""
    if node is None:
        return None, None
    if (node.entry.due, node.entry.number) <= (due, number):
        node.right, behind = _split(node.right, due, number)
        return node, behind
    before, node.left = _split(node.left, due, number)
    return before, node


def _merge(left: TimerNode | None, right: TimerNode | None) -> TimerNode | None:
    """Return one tree of two, of which one is before the other."""
    if left is None or right is None:
        return right if left is None else left
    if left.weight > right.weight:
        left.right = _merge(left.right, right)
        return left
    right.left = _merge(left, right.left)
    return right


def _in_order(node: TimerNode | None) -> Iterator[Entry[Any]]:
    """Yield the timers of a tree."""
    if node is not None:
        yield from _in_order(node.left)
        yield node.entry
        yield from _in_order(node.right)
