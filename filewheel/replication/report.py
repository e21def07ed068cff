"""What a link says of itself, for people and for metrics.

Invariant: a report is a value; a link makes a new one when something has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class LinkReport:
    """How one backup is doing."""

    path: str
    wheel: str
    mode: str
    state: str
    """`"healing"`, `"following"`, `"unreachable"`, `"failed"`."""
    shipped: int = 0
    """Records that the link wrote to the backup from the primary's journals."""
    healed_puts: int = 0
    healed_drops: int = 0
    returned: int = 0
    """Messages that were given back to a damaged primary."""
    error: str = ""


Progress = Callable[[str, int, int], None]
"""Told (path of the backup, how many bytes of the primary the backup was compared with or given, bytes in all)."""
