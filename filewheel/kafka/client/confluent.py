"""The seam to Kafka on confluent-kafka (librdkafka).

Owns the clients of a node: a member of the group, a reader without a group, an administrator, and the producers.
Invariant: a consumer is used by one thread, or under a lock; nothing is read from an assigned partition before `start`;
no offset is committed automatically.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from filewheel.env import pause
from filewheel.errors import ClusterError, MissingTopic
from filewheel.kafka.client.admin import ANSWER_S, Admin
from filewheel.kafka.client.follower import ConfluentFollower
from filewheel.kafka.client.group import GroupSource, membership
from filewheel.kafka.client.log_watcher import LogWatcher
from filewheel.kafka.client.reader import LogReader
from filewheel.kafka.client.shared_sink import SharedProducer, SharedSink
from filewheel.kafka.client.transaction_sink import TransactionSink
from filewheel.kafka.client.trouble import client, client_log, cluster_error, heard
from filewheel.kafka.node.transport import Listener, Sink, Topics
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing

NEW_TOPIC_S = (0.2, 0.5, 1.0, 3.0)
"""The waits before a missing topic is asked for again."""
REFRESH_MS = 60_000
"""How soon a member of the group learns of added partitions."""
TRANSACTION_MS = 30_000
TRANSACTIONS = 16
"""Transactions side by side."""


class ConfluentTransport:
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
        self._client = client()
        self.topic = policy.topic
        self.cursor = policy.marker_topic
        self._dead_letter_topic = policy.dead_letter_topic
        self._group = group
        self._node = node
        self._exactly_once = exactly_once
        self._session_s = session_s
        self._config = {"client.id": node, **config}
        self._admin = Admin(self._config)
        self.answer_s = ANSWER_S
        """How long `check` waits for a broker."""
        self._lock = threading.Lock()
        self._producer: SharedProducer | None = None
        self._reader: LogReader | None = None
        self._watcher: LogWatcher | None = None
        self._pool: ThreadPoolExecutor | None = None

    def check(self) -> Topics:
        """Return what the cluster has. Raises NoBroker, MissingTopic or NotAllowed, with the next command to try."""
        found = self._listed()
        init = f"`filewheel kafka init --bootstrap {self._address} --topic {self.topic}`"
        for name in (self.topic, self.cursor, self._dead_letter_topic):
            if name not in found.topics:
                raise MissingTopic(f"there is no topic {name}", hint=f"{init} makes it, if your user may see it at all")
            error = found.topics[name].error
            if error is not None:
                raise cluster_error(error, name)
        partitions = len(found.topics[self.topic].partitions)
        markers = len(found.topics[self.cursor].partitions)
        if markers < partitions:
            raise MissingTopic(
                f"{self.cursor} has {markers} partitions, and {self.topic} has {partitions}",
                hint=f"{init} adds the missing ones",
            )
        if found.cluster_id is None:
            raise ClusterError(f"{self._address}: the brokers do not say which cluster they are", hint="call again")
        return Topics(found.cluster_id, self._admin.topic_ids([self.topic])[self.topic], partitions)

    def _listed(self) -> Any:
        """Return all topics. A broker may not know one yet that was made a moment ago: then it is asked again."""
        needed = {self.topic, self.cursor, self._dead_letter_topic}
        for wait_s in (*NEW_TOPIC_S, 0.0):
            found = self._admin.topics(self._address, self.answer_s)
            if needed <= found.topics.keys():
                break
            pause(wait_s)
        return found

    def source(self, listener: Listener) -> GroupSource:
        """Join the group."""
        config = membership(self._config, self._group, self._session_s)
        return GroupSource({**config, "topic.metadata.refresh.interval.ms": REFRESH_MS}, self.topic, listener)

    def sink(self, partition: int) -> Sink:
        """Return a sink that is not opened yet."""
        barrier = Outgoing(self.cursor, b"%d.owner" % partition, self._node.encode(), (), partition)
        if not self._exactly_once:
            return SharedSink(self._shared_producer(), barrier)
        config = {
            **producing(self._config),
            "transactional.id": f"{self._group}.{self.topic}.{partition}",
            "transaction.timeout.ms": TRANSACTION_MS,
            "delivery.timeout.ms": TRANSACTION_MS // 3 * 2,
            "queue.buffering.max.kbytes": 65_536,
        }
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(TRANSACTIONS, thread_name_prefix="filewheel-kafka-transaction")
            return TransactionSink(config, barrier, self._run)

    def markers(self) -> LogReader:
        """Return the reader of markers."""
        return self._log_reader()

    def follower(self) -> ConfluentFollower:
        """Return a reader for the wheels of a standby."""
        return ConfluentFollower(self._reading(), self.topic, self.cursor)

    def stamp(self) -> int | None:
        """Append a record to the topic of markers; return the broker's time of it, in ms. Raises ClusterError."""
        probe = Outgoing(self.cursor, b"clock." + self._node.encode(), b"", (), 0)
        return SharedSink(self._shared_producer(), probe).stamp()

    def range_of(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the one after the last that can be read. Raises ClusterError."""
        return self._log_reader().range_of(self.topic, partition)

    def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Return what `range_of` does for many partitions. Raises ClusterError."""
        found = self._log_reader().ranges([(self.topic, partition) for partition in partitions])
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

    def interrupt(self) -> None:
        """Let questions to the brokers end without an answer."""
        self._admin.interrupt()
        with self._lock:
            if self._reader is not None:
                self._reader.interrupt()

    def close(self) -> None:
        """Close all clients but the source. What was sent gets some seconds to arrive."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._producer is not None:
            self._producer.close(5.0)
        if self._reader is not None:
            self._reader.close()
        if self._watcher is not None:
            self._watcher.close()

    def _run(self, call: Callable[[], None]) -> None:
        assert self._pool is not None
        self._pool.submit(call)

    @property
    def _address(self) -> str:
        return str(self._config.get("bootstrap.servers", ""))

    def _shared_producer(self) -> SharedProducer:
        with self._lock:
            if self._producer is not None and self._producer.is_broken:
                self._producer.close(0.0)
                self._producer = None
            if self._producer is None:
                self._producer = SharedProducer(producing(self._config))
            return self._producer

    def _log_reader(self) -> LogReader:
        with self._lock:
            if self._reader is None:
                self._reader = LogReader(self._reading(), self.cursor)
            return self._reader

    def _log_watcher(self) -> LogWatcher:
        with self._lock:
            if self._watcher is None:
                self._watcher = LogWatcher(self._reading(), self._admin, self.topic)
            return self._watcher

    def _reading(self) -> dict[str, Any]:
        """Return the settings of a reader. It never joins the group: with its name it needs no right of its own."""
        return {**self._config, "group.id": self._group}


def producing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a producer."""
    return {
        "linger.ms": 1,
        "partitioner": "murmur2_random",  # the one of Java's clients: a key goes where they expect it
        "topic.metadata.propagation.max.ms": 5000,
        **config,
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": 1_000_000_000,  # the brokers decide
        "logger": client_log,
        "error_cb": heard,
    }
