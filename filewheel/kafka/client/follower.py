"""Reads partitions and their markers outside of the group, for the wheels of a standby.

Owns one consumer, used by one thread. Each followed partition is read from its offset on, and its markers from the
first one that compaction left.
Invariant: markers are returned in the order of their log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from filewheel.kafka.client.group import READING, last_read_of, record_of
from filewheel.kafka.client.trouble import client, cluster_error, error_of, made
from filewheel.kafka.node.transport import Polled
from filewheel.kafka.records.record import Record


class ConfluentFollower:
    """Follows some partitions."""

    def __init__(self, config: Mapping[str, Any], topic: str, cursor: str) -> None:
        self._client = client()
        self._consumer = made(self._client.Consumer, {**READING, **config, "auto.offset.reset": "error"})
        self._topic = topic
        self._cursor = cursor
        self._followed: set[int] = set()

    def follow(self, starts: Mapping[int, tuple[int, int]]) -> None:
        """Follow exactly these partitions, each new one from its offset and epoch on."""
        place = self._client.TopicPartition
        gone = [place(topic, p) for p in self._followed - starts.keys() for topic in (self._topic, self._cursor)]
        new = starts.keys() - self._followed
        if gone:
            self._consumer.incremental_unassign(gone)
        if new:
            self._consumer.incremental_assign(
                [place(self._topic, p, starts[p][0], leader_epoch=starts[p][1]) for p in new]
                + [place(self._cursor, p, self._client.OFFSET_BEGINNING) for p in new]
            )
        self._followed = set(starts)

    def poll(self, limit: int, timeout_s: float) -> tuple[Polled[int], Sequence[tuple[int, bytes]]]:
        """Return records, and packed markers with their partitions. Raises ClusterError."""
        records: dict[int, list[Record]] = {}
        markers: list[tuple[int, bytes]] = []
        ends: dict[int, int] = {}
        gone: list[int] = []
        errors: list[str] = []
        try:
            messages = self._consumer.consume(limit, timeout_s)
        except self._client.KafkaException as exc:
            raise cluster_error(error_of(exc), self._topic) from exc
        for message in messages:
            partition, error = message.partition(), message.error()
            if partition not in self._followed:
                continue
            if error is not None:
                if error.name() == "_AUTO_OFFSET_RESET":
                    gone.append(partition)
                elif error.name() != "_PARTITION_EOF":
                    errors.append(f"{message.topic()}: {error.str()}")
                elif message.topic() == self._topic:
                    ends[partition] = message.offset()
            elif message.topic() == self._topic:
                records.setdefault(partition, []).append(record_of(message))
            elif message.key() == b"%d" % partition:
                markers.append((partition, message.value()))
        read = last_read_of([m for m in messages if m.topic() == self._topic], self._followed)
        return Polled(records, ends, gone, errors, read), markers

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
