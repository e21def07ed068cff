"""The seam to Kafka on confluent-kafka (librdkafka).

Owns what only a node has: transactions side by side, and the questions about its logs.
Invariant: a consumer is used by one thread, or under a lock; nothing is read from an assigned partition before `start`;
no offset is committed automatically.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from filewheel.errors import ClusterError, MissingTopic
from filewheel.kafka.client.clients import GroupClients
from filewheel.kafka.client.follower import ConfluentFollower
from filewheel.kafka.client.group import GroupSource, membership
from filewheel.kafka.client.log_watcher import LogWatcher
from filewheel.kafka.client.shared_sink import SharedSink
from filewheel.kafka.client.transaction_sink import TransactionSink
from filewheel.kafka.node.transport import Listener, Markers, Sink, Topics
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing

REFRESH_MS = 60_000
"""How soon a member of the group learns of added partitions."""
TRANSACTION_MS = 30_000
TRANSACTIONS = 16
"""Transactions side by side."""


class ConfluentTransport(GroupClients):
    """A cluster, for one delay topic and one node.

    `config` is handed to each client: the address, encryption, the user. Raises BadArgument when confluent-kafka is not
    installed.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        policy: Policy,
        *,
        group: str,
        node: str,
        exactly_once: bool = False,
        session_s: float = 10.0,
    ) -> None:
        self.topic = policy.topic
        self.cursor = policy.marker_topic
        self._init = f"`filewheel kafka init --bootstrap {config.get('bootstrap.servers', '')} --topic {self.topic}`"
        needed = dict.fromkeys((self.topic, self.cursor, policy.dead_letter_topic), self._init)
        super().__init__({"client.id": node, **config}, group, needed, [self.topic], markers=self.cursor)
        self._node = node
        self._exactly_once = exactly_once
        self._session_s = session_s
        self._watcher: LogWatcher | None = None
        self._pool: ThreadPoolExecutor | None = None

    def check(self) -> Topics:
        """Return what the cluster has. Raises NoBroker, MissingTopic or NotAllowed, with the next command to try."""
        found = self.topics()
        partitions = len(found.topics[self.topic].partitions)
        markers = len(found.topics[self.cursor].partitions)
        if markers < partitions:
            raise MissingTopic(
                f"{self.cursor} has {markers} partitions, and {self.topic} has {partitions}",
                hint=f"{self._init} adds the missing ones",
            )
        if found.cluster_id is None:
            raise ClusterError(f"{self._address}: the brokers do not say which cluster they are", hint="call again")
        return Topics(found.cluster_id, self.ids()[self.topic], partitions)

    def source(self, listener: Listener[int]) -> GroupSource[int]:
        """Join the group."""
        config = membership(self._config, self._group, self._session_s)
        config["topic.metadata.refresh.interval.ms"] = REFRESH_MS
        return GroupSource(config, [self.topic], listener, lambda topic, number: number)

    def sink(self, partition: int) -> Sink:
        """Return a sink that is not opened yet."""
        barrier = Outgoing(self.cursor, b"%d.owner" % partition, self._node.encode(), (), partition)
        if not self._exactly_once:
            return SharedSink(self.producer, barrier)
        config = self.transactional(f"{self._group}.{self.topic}.{partition}", TRANSACTION_MS)
        config["queue.buffering.max.kbytes"] = 65_536
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(TRANSACTIONS, thread_name_prefix="filewheel-kafka-transaction")
            return TransactionSink(config, barrier, self._run)

    def markers(self) -> Markers:
        """Return the reader of markers."""
        return self.reader()

    def follower(self) -> ConfluentFollower:
        """Return a reader for the wheels of a standby."""
        return ConfluentFollower({**self._config, "group.id": self._group}, self.topic, self.cursor)

    def stamp(self) -> int | None:
        """Append a record to the topic of markers; return the broker's time of it, in ms. Raises ClusterError."""
        probe = Outgoing(self.cursor, b"clock." + self._node.encode(), b"", (), 0)
        return SharedSink(self.producer).stamp(probe)

    def range_of(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the one after the last that can be read. Raises ClusterError."""
        return self.reader().range_of(self.topic, partition)

    def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Return what `range_of` does for many partitions. Raises ClusterError."""
        found = self.reader().ranges([(self.topic, partition) for partition in partitions])
        return {partition: ends for (_, partition), ends in found.items()}

    def retention_ms(self) -> int | None:
        """Return how long the delay topic keeps a record; None: for ever, or this user may not ask."""
        return self._log_watcher().retention_ms()

    def first_at(self, partition: int, offset: int) -> LastRead:
        """Return the first record at or after an offset; one before it if the log is shorter. Raises ClusterError."""
        return self._log_watcher().first_at(partition, offset)

    def parted_at(self, partition: int, before: LastRead) -> int | None:
        """Return from which offset on a log without this record has others; None if it is not known."""
        return self._log_watcher().parted_at(partition, before)

    def timestamp_at(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset. Raises ClusterError."""
        return self._log_watcher().timestamp_at(partition, offset)

    def close(self) -> None:
        """Close all clients but the source. What was sent gets some seconds to arrive."""
        if self._pool is not None:
            self._pool.shutdown()
        super().close()
        if self._watcher is not None:
            self._watcher.close()

    def _run(self, call: Callable[[], None]) -> None:
        assert self._pool is not None
        self._pool.submit(call)

    def _log_watcher(self) -> LogWatcher:
        with self._lock:
            if self._watcher is None:
                self._watcher = LogWatcher({**self._config, "group.id": self._group}, self._admin, self.topic)
            return self._watcher
