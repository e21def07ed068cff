"""The clients of a scheduler: a producer for enqueues and outcomes, a consumer for each member of the group.

Invariant: no client is made before it is needed, so that a program that only declares handlers opens nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from filewheel.env import Event, pause
from filewheel.errors import ClusterError, MissingTopic, NoBroker, TooLarge
from filewheel.kafka.client.admin import Admin
from filewheel.kafka.client.call_source import ConfluentCallSource
from filewheel.kafka.client.call_transaction import TransactionCallSink
from filewheel.kafka.client.confluent import producing
from filewheel.kafka.client.group import membership
from filewheel.kafka.client.reader import LogReader
from filewheel.kafka.client.shared_sink import Sending, SharedProducer
from filewheel.kafka.client.trouble import BY_SIZE, client, cluster_error
from filewheel.kafka.node.transport import Done, Listener, Place
from filewheel.kafka.records.record import Outgoing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

ANSWER_S = 30.0
DELIVERY_MS = 25_000
NEW_TOPIC_S = (0.2, 0.5, 1.0)
TRANSACTION_MS = 15_000
"""A dead worker's open transaction keeps its calls from the next owner for this long, or until it is back."""


class SharedCallSink:
    """The way out at least once: each outcome by itself, so that a refused one holds up no other."""

    exactly_once = False

    def __init__(self, producer: Callable[[], SharedProducer]) -> None:
        """`producer` returns the present one: a fatal error ends a producer, and another takes its place."""
        self._producer = producer
        self._is_closed = False

    def send(
        self, records: Sequence[Outgoing], positions: Mapping[int, object], group: Callable[[], Any], done: Done
    ) -> None:
        """Produce records. The source commits the positions."""
        Sending(self._producer(), records, None, lambda outcome: None if self._is_closed else done(outcome)).send()

    def close(self) -> None:
        """Report nothing more. What was queued still goes out."""
        self._is_closed = True


class ConfluentCalls:
    """A cluster, for one scheduler. Raises BadArgument when confluent-kafka is not installed."""

    def __init__(
        self,
        config: Mapping[str, Any],
        delay: str,
        calls: str,
        dead: str,
        *,
        group: str,
        worker: str | None,
        session_s: float,
    ) -> None:
        """`worker` names this worker's transactions; None for at least once."""
        self._client = client()
        self._config = dict(config)
        self._topics = (delay, calls, dead)
        self._admin = Admin(self._config)
        self._group = group
        self._worker = worker
        self._session_ms = round(session_s * 1000)
        self._lock = threading.Lock()
        self._producer: SharedProducer | None = None
        self._reader: LogReader | None = None

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed unless the cluster has all three topics."""
        found = self._listed()
        for name in self._topics:
            if name not in found:
                hint = (
                    "scheduler.make_topics() makes it"
                    if name != self._topics[0]
                    else f"`filewheel kafka init --topic {name}`"
                )
                raise MissingTopic(f"there is no topic {name}", hint=f"{hint}, if your user may see it at all")
            if found[name].error is not None:
                raise cluster_error(found[name].error, name)

    def ids(self) -> dict[str, str]:
        """Return the cluster's id of the topic of calls. Raises ClusterError."""
        return self._admin.topic_ids([self._topics[1]])

    def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return where the logs of these partitions end, of those that are known. Raises ClusterError if none is."""
        if self._reader is None:
            self._reader = LogReader({**self._config, "group.id": self._group}, "")
        return {place: end for place, (_, end) in self._reader.ranges(places).items()}

    def interrupt(self) -> None:
        """Let questions to the brokers that are under way end without an answer. Later ones have new clients."""
        self._admin.interrupt()
        reader, self._reader, self._admin = self._reader, None, Admin(self._config)
        if reader is not None:
            reader.interrupt()

    def _listed(self) -> Any:
        """Return all topics. A broker may not know one yet that was made a moment ago: then it is asked again."""
        for wait_s in (*NEW_TOPIC_S, 0.0):
            found = self._admin.topics(str(self._config["bootstrap.servers"]), ANSWER_S).topics
            if found.keys() >= set(self._topics):
                break
            pause(wait_s)
        return found

    def source(self, listener: Listener) -> ConfluentCallSource:
        """Join the group."""
        config = membership(self._config, self._group, self._session_ms / 1000)
        return ConfluentCallSource(config, self._topics[1], listener)

    def sink(self) -> SharedCallSink | TransactionCallSink:
        """Return the way out."""
        if self._worker is None:
            return SharedCallSink(self._shared)
        config = {
            **producing(self._config),
            "transactional.id": f"{self._group}.{self._worker}",
            "transaction.timeout.ms": TRANSACTION_MS,
            "delivery.timeout.ms": TRANSACTION_MS // 3 * 2,
        }
        return TransactionCallSink(config, self._topics[1], self._partitions)

    def _partitions(self) -> list[tuple[str, int]]:
        """Return each partition of the three topics."""
        found = self._listed()
        return [(name, p) for name in self._topics if name in found for p in found[name].partitions]

    def send(self, record: Outgoing) -> None:
        """Produce one record, and wait for all in-sync replicas. Raises ClusterError, TooLarge."""
        answers: list[KafkaError | None] = []
        answered = Event()
        producer = self._shared()

        def answer(error: KafkaError | None, message: Message | None) -> None:
            answers.append(error)
            answered.set()

        if not producer.produce(record, answer):
            raise ClusterError("the producer's queue is full", hint="wait until the brokers answer")
        if not answered.wait(ANSWER_S):
            raise NoBroker(
                f"{record.topic}: no answer after {ANSWER_S:g} s; the call may be enqueued later",
                hint="check whether the brokers run",
            )
        if (error := answers[0]) is not None:
            producer.note(error)
            if error.name() == BY_SIZE:
                raise TooLarge(f"{record.topic}: {error.str()}", hint="store the data elsewhere, and pass its id")
            raise cluster_error(error, record.topic)

    def close(self) -> None:
        """Close the producer. What was sent gets some seconds to arrive."""
        if self._reader is not None:
            self._reader.close()
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(5.0)

    def _shared(self) -> SharedProducer:
        with self._lock:
            if self._producer is not None and self._producer.is_broken:
                self._producer.close(0.0)
                self._producer = None
            if self._producer is None:
                # A call that was not confirmed in time is given up, so that it does not run after an error.
                self._producer = SharedProducer({"delivery.timeout.ms": DELIVERY_MS, **producing(self._config)})
            return self._producer
