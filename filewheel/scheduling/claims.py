"""What the dispatcher needs of a keeper: the keeper of a wheel has it, and a member of a consumer group (kafka/).

Invariant: a message that was claimed is held until it is acknowledged or settled, or belongs to another keeper.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from filewheel.format.settings import Sync
from filewheel.journal.settlement import Settlement
from filewheel.message import Message, MessageId


class Claims(Protocol):
    """Hands out due messages, and takes their outcomes. One thread claims and settles; any may begin and wake."""

    def now_us(self) -> int:
        """Return the time that this keeper fires by."""

    def check_may_fire(self) -> None:
        """Raise Fenced or Locked when another keeper fires."""

    def claim(self, limit: int, *, at_most: Mapping[str, int], begun: bool) -> Collection[Message]:
        """Return up to `limit` due messages, of each of these topics at most so many."""

    def has_passed_over(self, topic: str) -> bool:
        """Return whether due messages of a topic wait because of `at_most`."""

    def begin(self, what: list[MessageId], /) -> set[bytes]:
        """Return the ids of those that must not begin; they are not held any more. Thread-safe."""

    def ack(self, what: list[MessageId], /) -> int:
        """Acknowledge messages."""

    def settle(self, settlements: Sequence[Settlement], /, *, sync: Sync) -> list[MessageId | None]:
        """Write outcomes; return for each the new id; None if it is acknowledged, or not held any more."""

    def holds(self, id_: bytes, /) -> bool:
        """Return whether a message is claimed, and not settled yet."""

    def wait(self, timeout_s: float, *, due: bool) -> bool:
        """Sleep until there may be work, at most this time; return whether a claim is worthwhile."""

    def wake(self) -> None:
        """End a `wait` in another thread. Thread-safe."""
