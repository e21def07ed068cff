"""The broker, the topics and the load of a measure, the same for every side.

A record's value begins with its due in milliseconds and its number, so that what arrives can be judged whatever way it
took. Times are the broker's: a target stamps a record when it is appended, by the clock that the dues were made with.
Invariant: a measure has fresh topics; the broker is gone when the rig is closed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filewheel.kafka import Policy, level_for, make_level_topics, make_topics, parse_levels
from tests.bench.load import percentile
from tests.kafka.cluster import Cluster

BYTES = 100
"""The payload of a record."""
PARTITIONS = 4
ANSWER_S = 60.0
BROKER = ("-Xms512m", "-Xmx1g", "-XX:TieredStopAtLevel=4")
"""A broker for tests compiles little, to start quickly; this one is measured."""


class Failed(Exception):
    """A measure did not come to its end."""


@dataclass(frozen=True)
class Names:
    """The topics of one measure."""

    delay: str
    target: str
    levels: str = ""
    """Of a side without wheels: its delays. A record then goes to the topic of the next longer one."""

    @property
    def policy(self) -> Policy:
        """What the topics are made by."""
        return Policy(self.delay)


@dataclass
class Arrived:
    """What stands in a target."""

    late_ms: list[float]
    """Of each record: when it was appended, less its due."""
    appended_ms: list[int]
    due_ms: list[int]
    missing: int
    twice: int

    @property
    def early(self) -> int:
        """How many came before their due."""
        return sum(late < 0 for late in self.late_ms)

    def late(self, share: float) -> float:
        """Return the lateness that this share of the records does not exceed, in ms."""
        return percentile(self.late_ms, share)


class Rig:
    """One broker, and what a measure does with it."""

    def __init__(self, folder: Path, bootstrap: str = "") -> None:
        """Start a broker in a folder; with an address, use the one there, which then is not ended."""
        from confluent_kafka.admin import AdminClient

        self._cluster = None if bootstrap else Cluster(folder, 1, java=BROKER).start()
        self.bootstrap = bootstrap if self._cluster is None else self._cluster.bootstrap
        self.config = {"bootstrap.servers": self.bootstrap}
        self._admin = AdminClient({**self.config, "log_level": 0})

    def close(self) -> None:
        """End the broker, and delete its data."""
        if self._cluster is not None:
            self._cluster.kill()
            self._cluster.wipe()

    def topics(self, partitions: int = PARTITIONS, *, levels: str = "") -> Names:
        """Make the topics of a measure; return when each partition has a leader."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        name = f"b-{uuid.uuid4().hex[:8]}"
        names = Names(name, f"{name}-target", levels)
        make_topics(self.config, names.policy, partitions=partitions, replication=1)
        if levels:
            make_level_topics(self.config, name, parse_levels(levels), partitions=partitions, replication=1)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        new = NewTopic(names.target, partitions, 1, config=stamped)
        for made in self._admin.create_topics([new], operation_timeout=ANSWER_S).values():
            made.result(ANSWER_S)
        return names

    def drop(self, names: Names) -> None:
        """Delete the topics of a measure, so that the next one finds the disk and the page cache free."""
        policy = names.policy
        every = [names.delay, names.target, policy.marker_topic, policy.dead_letter_topic]
        every += [level.topic(names.delay) for level in parse_levels(names.levels)] if names.levels else []
        for done in self._admin.delete_topics(every, operation_timeout=ANSWER_S).values():
            done.result(ANSWER_S)

    def produce(self, names: Names, dues_ms: Iterable[int], partitions: int = PARTITIONS) -> int:
        """Produce a record for each due, as fast as it goes; return how many, once all are confirmed."""
        producer = self.producer()
        count = 0
        for due_ms in dues_ms:
            send(producer, names, due_ms, count, count % partitions)
            count += 1
        finish(producer)
        return count

    def producer(self) -> Any:
        """Return a producer of a client program."""
        from confluent_kafka import Producer

        return Producer({
            **self.config, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        })  # fmt: skip

    def arrived(self, names: Names, expected: int, partitions: int = PARTITIONS) -> Arrived:
        """Read the target, which must be at rest, and judge it."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            **self.config, "group.id": uuid.uuid4().hex, "enable.partition.eof": True,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        })  # fmt: skip
        consumer.assign([TopicPartition(names.target, p, 0) for p in range(partitions)])
        found: list[tuple[int, int, int]] = []
        ended: set[int] = set()
        give_up = time.monotonic() + ANSWER_S
        while len(ended) < partitions and time.monotonic() < give_up:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    ended.add(message.partition() or 0)
                    continue
                due_ms, number = numbers_of(message.value())
                found.append((int(due_ms), int(number), message.timestamp()[1]))
        consumer.close()
        if len(ended) < partitions:
            raise Failed(f"{names.target} was not read to its end after {ANSWER_S:g} s")
        numbers = {number for _, number, _ in found}
        return Arrived(
            [at - due for due, _, at in found], [at for _, _, at in found], [due for due, _, _ in found],
            expected - len(numbers), len(found) - len(numbers),
        )  # fmt: skip

    def end_of(self, names: Names, partitions: int = PARTITIONS) -> int:
        """Return how many offsets the target has: its records, and the ends of transactions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(names.target, p): latest for p in range(partitions)}
        return sum(found.result(ANSWER_S).offset for found in self._admin.list_offsets(asked).values())

    def bytes_on_disk(self, names: Names, others: Sequence[str] = ()) -> int:
        """Return the size of the logs of all topics whose names begin as those of this measure.

        Of a broker that somebody else started nothing is known: 0.
        """
        if self._cluster is None:
            return 0
        data = self._cluster.nodes[1].folder / "data"
        begins = (names.delay, *others)
        return sum(
            log.stat().st_size for folder in data.iterdir() if folder.name.startswith(begins)
            for log in folder.glob("*.log")
        )  # fmt: skip


def send(producer: Any, names: Names, due_ms: int, number: int, partition: int) -> None:
    """Produce one delayed record; wait while the queue is full."""
    value = b"%d %d " % (due_ms, number)
    headers = [("filewheel-due-ms", b"%d" % due_ms), ("scheduler-target-topic", names.target.encode())]
    topic = names.delay
    if names.levels:
        topic = level_for(parse_levels(names.levels), (due_ms - now_ms()) / 1000).topic(topic)
        del headers[0]  # the topic says how long it waits
    while True:
        try:
            producer.produce(topic, value.ljust(BYTES, b"."), None, partition, headers=headers)
            break
        except BufferError:
            producer.poll(0.1)
    if not number % 1024:
        producer.poll(0)


def numbers_of(value: bytes | None) -> tuple[bytes, bytes]:
    """Return the due and the number of a record that arrived."""
    due_ms, number = (value or b"")[:24].split()[:2]
    return due_ms, number


def finish(producer: Any) -> None:
    """Return once all is confirmed. Raises Failed."""
    left = producer.flush(ANSWER_S)
    if left:
        raise Failed(f"{left} records were not confirmed after {ANSWER_S:g} s")


def now_ms() -> int:
    """Return the time by which dues are made."""
    return time.time_ns() // 1_000_000
