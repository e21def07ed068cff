"""The clients of a member of a group: an administrator's, a reader without a group, and a producer that is shared.

Nodes, levels and workers have the same. Each client is made at its first use, so that a program that only declares
handlers opens nothing.
Owns the clients. Invariant: another client takes the place of one that failed for good.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from filewheel.env import pause
from filewheel.errors import MissingTopic
from filewheel.kafka.client.admin import ANSWER_S, Admin
from filewheel.kafka.client.reader import LogReader
from filewheel.kafka.client.shared_sink import SharedProducer
from filewheel.kafka.client.trouble import client, client_log, cluster_error, heard
from filewheel.kafka.node.transport import Place

NEW_TOPIC_S = (0.2, 0.5, 1.0, 3.0)
"""The waits before a missing topic is asked for again."""


class GroupClients:
    """The clients. Raises BadArgument when confluent-kafka is not installed."""

    def __init__(
        self,
        config: Mapping[str, Any],
        group: str,
        needed: Mapping[str, str],
        read: Sequence[str],
        *,
        markers: str = "",
        delivery_ms: int | None = None,
    ) -> None:
        """`needed` has each topic that must be there, and the command that makes it; `read` those that are read.

        `markers` is the topic of markers, and `delivery_ms` how long a record may take; None: librdkafka's default.
        """
        self._client = client()
        self._config = dict(config)
        self._group = group
        self._needed = needed
        self._read = read
        self._markers = markers
        self._sending = {} if delivery_ms is None else {"delivery.timeout.ms": delivery_ms}
        self._admin = Admin(self._config)
        self.answer_s = ANSWER_S
        """How long `topics` waits for a broker."""
        self._lock = threading.Lock()
        self._producer: SharedProducer | None = None
        self._reader: LogReader | None = None

    def topics(self) -> Any:
        """Return what the cluster has. A broker may not know a topic yet that was made a moment ago: it is asked again.

        Raises NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all needed topics are there.
        """
        for wait_s in (*NEW_TOPIC_S, 0.0):
            found = self._admin.topics(self._address, self.answer_s)
            if self._needed.keys() <= found.topics.keys():
                break
            pause(wait_s)
        for name, command in self._needed.items():
            if name not in found.topics:
                hint = f"{command} makes it, if your user may see it at all"
                raise MissingTopic(f"there is no topic {name}", hint=hint)
            if found.topics[name].error is not None:
                raise cluster_error(found.topics[name].error, name)
        return found

    def ids(self) -> dict[str, str]:
        """Return the cluster's id of each topic that is read. Raises ClusterError."""
        return self._admin.topic_ids(self._read)

    def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return where the logs of these partitions end, of those that are known. Raises ClusterError if none is."""
        return {place: end for place, (_, end) in self.reader().ranges(places).items()}

    def reader(self) -> LogReader:
        """Return the reader. It never joins the group: with its name it needs no right of its own."""
        with self._lock:
            if self._reader is None:
                self._reader = LogReader({**self._config, "group.id": self._group}, self._markers)
            return self._reader

    def producer(self) -> SharedProducer:
        """Return the present producer."""
        with self._lock:
            if self._producer is not None and self._producer.is_broken:
                self._producer.close(0.0)
                self._producer = None
            if self._producer is None:
                self._producer = SharedProducer({**self._sending, **producing(self._config)})
            return self._producer

    def transactional(self, name: str, timeout_ms: int) -> dict[str, Any]:
        """Return the settings of a producer with transactions; its records are given up before they time out."""
        times = {"transaction.timeout.ms": timeout_ms, "delivery.timeout.ms": timeout_ms // 3 * 2}
        return {**producing(self._config), "transactional.id": name, **times}

    def interrupt(self) -> None:
        """Let questions to the brokers end without an answer."""
        self._admin.interrupt()
        with self._lock:
            if self._reader is not None:
                self._reader.interrupt()

    def close(self) -> None:
        """Close all clients but the source. What was sent gets some seconds to arrive."""
        with self._lock:
            producer, self._producer = self._producer, None
            reader, self._reader = self._reader, None
        if producer is not None:
            producer.close(5.0)
        if reader is not None:
            reader.close()

    @property
    def _address(self) -> str:
        return str(self._config.get("bootstrap.servers", ""))


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
