"""Reads the topic of markers, and asks how long a log is, without being in a group.

Owns one consumer under a lock.
Invariant: `read` has seen all that was committed before the barrier: the barrier is itself a record of that log, so no
report of the log's end is trusted. After a broker's restart such a report may be too small.
An administrator's client that failed asks nothing more: it may keep the old epoch of a partition's leader for good
(FENCED_LEADER_EPOCH, seen with librdkafka 2.16 after a broker was killed), and the partition would never be served.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from filewheel.errors import ClusterError, NoBroker
from filewheel.kafka.client.admin import ANSWER_S, Admin
from filewheel.kafka.client.group import READING
from filewheel.kafka.client.trouble import client, cluster_error, made

BACK = 64
"""How many offsets before the barrier the search begins; each next one reaches back 16 times as far."""
READ_S = 30.0


class LogReader:
    """Reads markers, and the ends of logs."""

    def __init__(self, config: Mapping[str, Any], admin: Admin, topic: str) -> None:
        self._client = client()
        self._consumer = made(self._client.Consumer, {**READING, **config, "auto.offset.reset": "earliest"})
        self._admin = admin
        self._topic = topic
        self._lock = threading.Lock()

    def read(self, partition: int, barrier: int) -> bytes | None:
        """Return the last committed marker of a partition before the barrier, packed. Raises ClusterError."""
        back = BACK
        with self._lock:
            while barrier:
                start = max(barrier - back, 0)
                found = self._last_between(partition, start, barrier)
                if found is not None or start == 0:
                    return found
                back *= 16
        return None

    def last(self, partition: int) -> bytes | None:
        """Return the last committed marker that can be seen now. Raises ClusterError."""
        return self.read(partition, self.range_of(self._topic, partition)[1])

    def range_of(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset, and the one after the last that a committed reader can have. Raises ClusterError."""
        where, what = self._client.TopicPartition(topic, partition), f"{topic} [{partition}]"
        spec = self._admin.words.OffsetSpec
        options = {"isolation_level": self._client.IsolationLevel.READ_COMMITTED, "request_timeout": ANSWER_S}
        first = self._admin.ask(what, lambda admin: admin.list_offsets({where: spec.earliest()}, **options))
        last = self._admin.ask(what, lambda admin: admin.list_offsets({where: spec.latest()}, **options))
        offsets = [self._admin.answer(what, asked[where]).offset for asked in (first, last)]
        if min(offsets) < 0:  # -1001 without an error: the answer says nothing  # mutant: kafka-unknown-end-believed
            raise ClusterError(f"{what}: the brokers do not say where it ends", hint="call again")
        return offsets[0], offsets[1]

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _last_between(self, partition: int, start: int, barrier: int) -> bytes | None:
        """Return the last marker from `start` on and before the barrier."""
        key = b"%d" % partition
        found: bytes | None = None
        self._consumer.assign([self._client.TopicPartition(self._topic, partition, start)])
        try:
            for _ in range(round(READ_S / 0.1)):
                for message in self._consumer.consume(1000, 0.1):
                    error = message.error()
                    if error is not None:
                        if error.name() != "_PARTITION_EOF":
                            raise cluster_error(error, f"{self._topic} [{partition}]")
                        if message.offset() >= barrier:
                            return found
                    elif message.offset() >= barrier:
                        return found
                    elif message.key() == key:
                        found = message.value()
        finally:
            self._consumer.unassign()
        raise NoBroker(
            f"{self._topic} [{partition}] was not read up to offset {barrier} after {READ_S:g} s",
            hint="check whether its broker runs",
        )
