"""The entry of a mutant in the lists beside this file.

Imports nothing of the library: this is read before it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.crash.operations import Operation


@dataclass(frozen=True)
class Mutant:
    """One protection, switched off."""

    name: str
    rule: str
    operations: tuple[Operation, ...]
    """The first changes the statement with the mark NAME, the next those with NAME.2, NAME.3."""
    what: str
    """What the protection does."""
    killer: str
    states: int
    """How many states the search took to find it; 0 for a test."""


def m(name: str, rule: str, operations: Operation | Sequence[Operation], what: str, killer: str) -> Mutant:
    """Return a mutant; `killer` may end with "@" and a count of states."""
    killer, _, states = killer.partition(" @")
    each = (operations,) if isinstance(operations, Operation) else tuple(operations)
    return Mutant(name, rule, each, what, killer, int(states or 0))
