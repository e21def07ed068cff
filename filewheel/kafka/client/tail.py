"""Reads the last records of a topic, without a group: for the dead letters.

Owns one consumer for the time of a call.
Invariant: nothing is committed or changed; the call ends, with what was read or with an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import MissingTopic, NoBroker
from filewheel.kafka.client.group import READING, record_of
from filewheel.kafka.client.trouble import client, cluster_error, error_of, listed, made
from filewheel.kafka.records.record import Record
from filewheel.message import US_PER_S

ANSWER_S = 10.0
READ_S = 60.0


def last_records(
    config: Mapping[str, Any], topic: str, limit: int, *, group: str, clock: Clock = SYSTEM_CLOCK
) -> list[Record]:
    """Return the last records of a topic by their timestamps, the oldest first.

    Needs the rights to read the topic and to describe the group, which it does not join.

    Cost: a read of up to `limit` records of each partition. Raises NoBroker, MissingTopic, NotAllowed, ClusterError.
    """
    words = client()
    consumer = made(words.Consumer, {**READING, **config, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        found = listed(consumer, topic, str(config.get("bootstrap.servers", "")), ANSWER_S)
        try:
            if topic not in found:
                raise MissingTopic(
                    f"there is no topic {topic}",
                    hint="check --topic, the delay topic, and whether your user may see it",
                )
            left: set[int] = set()
            places = []
            for partition in found[topic].partitions:
                where = words.TopicPartition(topic, partition)
                first, end = consumer.get_watermark_offsets(where, timeout=ANSWER_S)
                if end > first:
                    places.append(words.TopicPartition(topic, partition, max(first, end - limit)))
                    left.add(partition)
        except words.KafkaException as exc:
            raise cluster_error(error_of(exc), topic) from exc
        consumer.assign(places)
        records = _read(consumer, topic, left, clock.steady_us() + round(READ_S * US_PER_S), clock)
    finally:
        consumer.close()
    records.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
    return records[-limit:]


def _read(consumer: Any, topic: str, left: set[int], end_us: int, clock: Clock) -> list[Record]:
    """Read until the end of each partition."""
    records: list[Record] = []
    while left:
        if clock.steady_us() >= end_us:
            raise NoBroker(f"{topic} was not read to its end within {READ_S:g} s", hint="check whether its broker runs")
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is None:
                records.append(record_of(message))
            elif error.name() == "_PARTITION_EOF":
                left.discard(message.partition())
            else:
                raise cluster_error(error, topic)
    return records
