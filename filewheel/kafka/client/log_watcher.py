"""Asks for the retention of the delay topic, and for single records of its log.

Owns a consumer that is made at the first question. One thread asks at a time.
Invariant: what the brokers do not know now is None, never 0.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from filewheel.bridges.extra import need
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import NoBroker, NotAllowed
from filewheel.kafka.client.admin import ANSWER_S, Admin
from filewheel.kafka.client.group import READING, last_read
from filewheel.kafka.client.trouble import client, cluster_error, error_of, log, made
from filewheel.kafka.records.last_read import NO_EPOCH, LastRead
from filewheel.message import US_PER_S

RECORD_S = 5.0
"""How long a record may take to come."""
POLL_S = 0.1
RETENTION_S = 60.0
_ONE_RECORD = {
    "queued.max.messages.kbytes": 1024,
    "max.partition.fetch.bytes": 4096,
    "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 10,
}
"""One record is asked for; a broker sends at least one batch, whatever its size. A client that has its one record
fetches none for `fetch.queue.backoff.ms` (1 s), also of the next partition."""


class LogWatcher:
    """Asks about the logs of one topic, without being in its group."""

    def __init__(
        self,
        config: Mapping[str, Any],
        admin: Admin,
        topic: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client()
        self._words: Any = need("confluent_kafka.admin", "kafka")
        self._reading = {**READING, **config, "auto.offset.reset": "earliest", **_ONE_RECORD}
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._may_ask = True
        self._retention_ms: int | None = None
        self._known_until_us = 0

    def retention_ms(self) -> int | None:
        """Return how long the topic keeps a record; None: for ever, or this user may not ask. Raises ClusterError.

        The answer is at most RETENTION_S old.
        """
        now_us = self._clock.steady_us()
        if not self._may_ask or now_us < self._known_until_us:
            return self._retention_ms
        # The question goes to the controller. A client that knows an old one waits for it, and takes a core meanwhile.
        self._admin.topics(self._topic)
        resource = self._words.ConfigResource(self._words.ResourceType.TOPIC, self._topic)
        (asked,) = self._admin.ask(
            self._topic, lambda admin: admin.describe_configs([resource], request_timeout=ANSWER_S)
        ).values()
        try:
            value = int(self._admin.answer(self._topic, asked)["retention.ms"].value)
        except NotAllowed as exc:
            self._may_ask, self._retention_ms = False, None
            log.info("%s; so nothing is said when the retention is too short", exc)
            return None
        self._retention_ms = value if value >= 0 else None
        self._known_until_us = now_us + round(RETENTION_S * US_PER_S)
        return self._retention_ms

    def timestamp_at(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset, in ms. Raises ClusterError."""
        message, _ = self._first(partition, offset)
        return None if message is None else int(message.timestamp()[1])

    def first_at(self, partition: int, offset: int) -> LastRead:
        """Return the first record at or after an offset; one before it if the log is shorter. Raises ClusterError.

        Waits up to RECORD_S. A record was read at this offset before, so a log without one is an error.
        """
        message, _ = self._first(partition, offset)
        if message is None:
            raise self._silent(partition, offset)
        return last_read(message)

    def parted_at(self, partition: int, before: LastRead) -> int | None:
        """Return the offset at which the log diverged from one with this record; None if the brokers do not know it.

        The client asks for the end of the record's epoch, and goes there (KIP-320). One that has read of the partition
        does not go there (seen with librdkafka 2.16), so this takes a new one. Raises ClusterError.
        """
        with self._lock:
            self._forget()
        message, is_end = self._first(partition, before.offset + 1, before.epoch)
        if message is None and not is_end:
            raise self._silent(partition, before.offset)
        return None if message is None or message.offset() > before.offset else int(message.offset())

    def _silent(self, partition: int, offset: int) -> NoBroker:
        return NoBroker(
            f"{self._topic} [{partition}] does not show its record at offset {offset}, where one was read before",
            hint="check whether its broker runs",
        )

    def _first(self, partition: int, offset: int, epoch: int = NO_EPOCH) -> tuple[Any, bool]:
        """Return the first record at or after an offset; or None, and whether the log ends there: it may be slow.

        Of an offset that the log does not have the client goes to the log's beginning.
        """
        with self._lock:
            if self._consumer is None:
                self._consumer = made(self._client.Consumer, self._reading)
            self._consumer.assign([self._client.TopicPartition(self._topic, partition, offset, leader_epoch=epoch)])
            try:
                for _ in range(round(RECORD_S / POLL_S)):
                    message = self._consumer.poll(POLL_S)
                    if message is None:
                        continue
                    error = message.error()
                    if error is None:
                        return message, False
                    if error.name() == "_PARTITION_EOF":
                        return None, True
                    raise cluster_error(error, f"{self._topic} [{partition}]")
            except self._client.KafkaException as exc:
                raise cluster_error(error_of(exc), f"{self._topic} [{partition}]") from exc
            finally:
                self._consumer.unassign()
        return None, False

    def close(self) -> None:
        """Close the consumer."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
