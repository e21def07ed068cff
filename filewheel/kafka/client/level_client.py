"""The seam of the levels on confluent-kafka: one consumer for the topics of all levels, and one producer.

Owns both. Offsets are committed by the loop only. Invariant: a record is returned only of a partition that is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from filewheel.env import pause
from filewheel.errors import MissingTopic
from filewheel.kafka.client.admin import Admin
from filewheel.kafka.client.group import READING, SERIOUS, membership, record_of
from filewheel.kafka.client.reader import LogReader
from filewheel.kafka.client.shared_sink import Sending, SharedProducer
from filewheel.kafka.client.trouble import client, client_log, cluster_error, error_of, heard, made
from filewheel.kafka.levels.seam import LevelListener, PolledLevels
from filewheel.kafka.node.transport import Done, Place
from filewheel.kafka.records.record import Outgoing, Record

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

ANSWER_S = 10.0
SESSION_S = 10.0
NEW_TOPIC_S = (0.2, 0.5, 1.0)
"""The waits before a missing topic is asked for again."""
_GONE = frozenset({"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"})


class ConfluentLevels:
    """A cluster, for the topics of some levels. Raises BadArgument when confluent-kafka is not installed."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        dead_letter_topic: str,
        *,
        group: str,
        node: str,
        init: str,
    ) -> None:
        """`init` is the command that makes the topics."""
        self._client = client()
        self._config = {"client.id": node, **config}
        self._admin = Admin(self._config)
        self._topics = list(topics)
        self._dead_letter_topic = dead_letter_topic
        self._group = group
        self._init = init
        self._reader: LogReader | None = None
        self.answer_s = ANSWER_S
        """How long `check` waits for a broker."""

    def check(self) -> None:
        """Return when all topics are there. Raises NoBroker, MissingTopic, NotAllowed."""
        needed = [*self._topics, self._dead_letter_topic]
        for wait_s in (*NEW_TOPIC_S, 0.0):
            found = self._admin.topics(str(self._config.get("bootstrap.servers", "")), self.answer_s).topics
            missing = [name for name in needed if name not in found]
            if not missing:
                break
            pause(wait_s)
        if missing:
            raise MissingTopic(f"there is no topic {', '.join(missing)}", hint=f"`{self._init}` makes the topics")
        for name in needed:
            if found[name].error is not None:
                raise cluster_error(found[name].error, name)

    def ids(self) -> dict[str, str]:
        """Return the cluster's id of each level's topic. Raises ClusterError."""
        return self._admin.topic_ids(self._topics)

    def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        """Return where the logs of these partitions end, of those that are known. Raises ClusterError if none is."""
        if self._reader is None:
            self._reader = LogReader({**self._config, "group.id": self._group}, "")
        return {place: end for place, (_, end) in self._reader.ranges(places).items()}

    def interrupt(self) -> None:
        """Let questions to the brokers end without an answer."""
        self._admin.interrupt()
        if self._reader is not None:
            self._reader.interrupt()

    def source(self, listener: LevelListener, ids: Mapping[str, str]) -> ConfluentLevelSource:
        """Join the group. `ids`: the cluster's id of each topic."""
        config = {
            **READING,
            **membership(self._config, self._group, SESSION_S),
            "queued.max.messages.kbytes": 4096,
        }
        return ConfluentLevelSource(config, ids, listener)

    def sender(self) -> LevelSender:
        """Return the way out."""
        return LevelSender(
            {
                "linger.ms": 1,
                "partitioner": "murmur2_random",
                "topic.metadata.propagation.max.ms": 5000,
                **self._config,
                "enable.idempotence": True,
                "acks": "all",
                "message.max.bytes": 1_000_000_000,
                "logger": client_log,
                "error_cb": heard,
            }
        )


class ConfluentLevelSource:
    """A member of the group of all levels."""

    def __init__(self, config: dict[str, Any], ids: Mapping[str, str], listener: LevelListener) -> None:
        self._client = client()
        self._listener = listener
        self._ids = ids
        self._own: set[Place] = set()
        self._errors: list[str] = []
        self._gone: list[Place] = []
        self._consumer = made(self._client.Consumer, config)
        self._consumer.subscribe(list(ids), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def poll(self, limit: int, timeout_s: float) -> PolledLevels:
        """Return up to `limit` records. Raises ClusterError."""
        try:
            messages = self._consumer.consume(limit, timeout_s)
        except (self._client.KafkaException, SystemError) as exc:
            raise cluster_error(error_of(exc), "the topics of the levels") from exc
        records: list[tuple[str, Record]] = []
        ends: dict[Place, int] = {}
        for message in messages:
            error = message.error()
            if error is None:
                if (message.topic(), message.partition()) in self._own:
                    records.append((str(message.topic()), record_of(message)))
            elif error.name() == "_PARTITION_EOF":
                ends[str(message.topic()), message.partition() or 0] = message.offset() or 0
            elif error.name() in _GONE:
                self._over_gap((str(message.topic()), message.partition() or 0))
            elif error.fatal() or error.name() in SERIOUS:
                raise cluster_error(error, str(message.topic() or "the topics of the levels"))
            else:
                self._errors.append(f"{message.topic() or 'the client'}: {error.str()}")
        errors, self._errors = self._errors, []
        gone, self._gone = self._gone, []
        return PolledLevels(records, gone, ends, errors)

    def pause(self, place: Place) -> None:
        """Fetch nothing of this partition; what was fetched already may still come."""
        if place in self._own:
            self._consumer.pause([self._client.TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        """Fetch again."""
        if place in self._own:
            self._consumer.resume([self._client.TopicPartition(*place)])

    def commit(self, offsets: Mapping[Place, int], *, wait: bool) -> None:
        """Tell the group from which offsets the next owner reads."""
        # With the id of its topic: an offset of one that was deleted says nothing of the next with that name.
        positions = [self._client.TopicPartition(*p, offset, self._ids[p[0]]) for p, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=positions, asynchronous=not wait)
        except self._client.KafkaException as exc:
            self._errors.append(f"offsets were not committed, these records may be doubled: {error_of(exc).str()}")

    def close(self) -> None:
        """Leave the group. Calls the listener for what is owned."""
        self._consumer.close()

    # Callbacks, on the thread that polls.

    def _assigned(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        places = _places(partitions)
        self._own.update(places)
        consumer.incremental_assign(self._with_starts(consumer, partitions))
        self._listener.assigned(places)

    def _with_starts(self, consumer: Any, partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Return the partitions with their committed offsets, or the beginning where nothing was committed."""
        try:
            found: list[TopicPartition] = consumer.committed(list(partitions), ANSWER_S)
        except self._client.KafkaException as exc:
            # The client asks for itself; a new partition then counts as a gap, and begins at its first offset too.
            self._errors.append(f"the committed offsets are not known: {error_of(exc).str()}")
            return partitions
        for where in found:
            if where.offset < 0 or (where.metadata or self._ids[where.topic]) != self._ids[where.topic]:
                where.offset = self._client.OFFSET_BEGINNING
        return found

    def _over_gap(self, place: Place) -> None:
        """Go on with the first record that the log still has. What was deleted before it was forwarded is lost."""
        if place not in self._own:
            return
        self._gone.append(place)
        where = self._client.TopicPartition(*place, self._client.OFFSET_BEGINNING)
        self._consumer.incremental_unassign([where])
        self._consumer.incremental_assign([where])

    def _revoked(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        places = _places(partitions)
        self._listener.revoked(places)
        self._own.difference_update(places)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        places = _places(partitions)
        self._listener.lost(places)
        self._own.difference_update(places)
        consumer.incremental_unassign(partitions)


class LevelSender:
    """The way out: an idempotent producer, made again when it met a fatal error."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._producer = SharedProducer(config)

    def send(self, records: Sequence[Outgoing], done: Done) -> None:
        """Produce records; `done` is called once each was confirmed or failed."""
        if self._producer.is_broken:
            self._producer.close(0.0)
            self._producer = SharedProducer(self._config)
        Sending(self._producer, records, None, done).send()

    def close(self) -> None:
        """Wait some seconds for what was sent."""
        self._producer.close(5.0)


def _places(partitions: Sequence[TopicPartition]) -> list[Place]:
    return [(partition.topic, partition.partition) for partition in partitions]
