"""A cache with a bounded weight: the values that were not used for longest are removed first.

Invariant: `weight` is the sum of the weights of the values that are in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values by key, in the order of their last use. Not thread-safe."""

    def __init__(self) -> None:
        self._items: dict[K, tuple[V, int]] = {}
        self.weight = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def values(self) -> Iterator[V]:
        """Yield the values, the least recently used first."""
        return (value for value, _ in self._items.values())

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used; None when it is not there."""
        item = self._items.pop(key, None)
        if item is None:
            return None
        self._items[key] = item
        return item[0]

    def put(self, key: K, value: V, weight: int) -> None:
        """Add a value, or replace it, as the last one used."""
        before = self._items.pop(key, None)
        self._items[key] = value, weight
        self.weight += weight - (0 if before is None else before[1])

    def pop(self, key: K) -> V | None:
        """Remove and return a value; None when it is not there."""
        item = self._items.pop(key, None)
        if item is None:
            return None
        self.weight -= item[1]
        return item[0]

    def shrink(self, limit: int) -> list[V]:
        """Remove and return the least recently used until the rest weighs at most `limit`, or one value is left."""
        removed: list[V] = []
        while self.weight > limit and len(self._items) > 1:
            value, weight = self._items.pop(next(iter(self._items)))
            self.weight -= weight
            removed.append(value)
        return removed
