"""Every scheme, as the tests make it: small wheels, so that a few timers reach each level and each lap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from filewheel.timers import (
    BinaryHeap,
    Growing,
    HashedOrdered,
    HashedUnordered,
    Hierarchical,
    OrderedList,
    OrderedTree,
    Scheme,
    SimpleWheel,
    UnorderedList,
)

SPAN = 40
"""The longest delay of the simple wheel, in ticks."""
MAKERS: dict[str, Callable[..., Scheme[Any]]] = {
    "unordered list": lambda tick=1, now=0: UnorderedList(now=now),
    "ordered list": lambda tick=1, now=0: OrderedList(now=now),
    "ordered tree": lambda tick=1, now=0: OrderedTree(now=now),
    "binary heap": lambda tick=1, now=0: BinaryHeap(now=now),
    "simple wheel": lambda tick=1, now=0: SimpleWheel(SPAN, tick=tick, now=now),
    "hashed ordered": lambda tick=1, now=0: HashedOrdered(7, tick=tick, now=now),
    "hashed unordered": lambda tick=1, now=0: HashedUnordered(5, tick=tick, now=now),
    "hierarchical": lambda tick=1, now=0: Hierarchical((4, 3, 5), tick=tick, now=now),
    "growing": lambda tick=1, now=0: Growing(3, tick=tick, now=now),
}
BY_DUE = {"ordered list", "ordered tree", "binary heap", "hashed ordered"}
"""They expire timers in the order of due times, then of starts."""
BY_TICK_AND_START = {"simple wheel", "hashed unordered"}
BY_TICK = {"hierarchical", "growing"}
