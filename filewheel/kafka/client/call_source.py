"""The source of a worker: a member of the group of workers, whose committed positions count.

Owns one consumer, used by one thread. It differs from the source of a node in where it starts (at the committed
position, which only `committed` asks for), and in how quickly it returns a first record.
Invariant: positions are committed with their metadata, and only when the worker says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from filewheel.kafka.client.group import GroupSource
from filewheel.kafka.client.trouble import error_of, log
from filewheel.kafka.node.transport import Listener

if TYPE_CHECKING:
    from confluent_kafka import Message

COMMITTED_S = 5.0
"""How long a question for committed positions may take; while a transaction is open it has no answer."""


class ConfluentCallSource(GroupSource):
    """A member of the group of workers."""

    def __init__(self, config: Mapping[str, Any], topic: str, listener: Listener) -> None:
        super().__init__(dict(config), topic, listener)

    def _consume(self, limit: int, timeout_s: float) -> list[Message]:
        """Return the first record at once: `consume` alone waits for `limit` of them, or the whole time-out."""
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [first, *self._consumer.consume(limit - 1, 0)]

    def committed(self, partitions: Sequence[int]) -> dict[int, tuple[int, str] | None] | None:
        """Return the committed positions and their metadata; None when the group did not answer."""
        place = self._client.TopicPartition
        try:
            found = self._consumer.committed([place(self._topic, p) for p in partitions], timeout=COMMITTED_S)
        except self._client.KafkaException as exc:
            log.warning("%s: no committed positions: %s", self._topic, error_of(exc).str())
            return None
        if any(each.error is not None for each in found):
            return None
        return {p.partition: (p.offset, p.metadata or "") if p.offset >= 0 else None for p in found}

    def commit_positions(self, positions: Mapping[int, tuple[int, str]], *, wait: bool = False) -> None:
        """Commit positions with their metadata."""
        place = self._client.TopicPartition
        offsets = [place(self._topic, p, offset, metadata) for p, (offset, metadata) in positions.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=not wait)
        except self._client.KafkaException as exc:
            log.warning("%s: positions were not committed: %s", self._topic, error_of(exc).str())

    def group(self) -> Any:
        """Return this member and its generation."""
        return self._consumer.consumer_group_metadata()
