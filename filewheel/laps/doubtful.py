"""Frames with unique keys of which the entries in the index may not be durable, and who sees to them.

The index lies behind this folder: whoever makes a ledger hands it in (keys/lost.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from filewheel.format.frame import Frame

Doubtful = Mapping[str, Sequence[Frame]]
"""writer → frames with puts that may have keys, and that nothing calls durable."""


class KeyIndex(Protocol):
    """What a deal asks of the index of unique keys."""

    gone: Collection[str]
    """Writers that had ended when this keeper began: the power may have been cut since they wrote."""

    def enter(self, doubtful: Doubtful) -> set[str]:
        """Enter what is missing of the writers that had gone; return those of which not all could be entered.

        What was written is durable after `flush`.
        """

    def flush(self) -> None:
        """Make the entries of all that was doubtful durable. Raises OSError."""
