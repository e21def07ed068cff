"""Asks how far the logs of the delay topic reach, how long they are kept, and when a record was written.

Owns an administrator's client and a consumer, both made at the first question; a client that failed is replaced, as in
reader.py. One thread asks at a time.
Invariant: an offset that the brokers do not know now is left out, never reported as 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from filewheel.bridges.extra import need
from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.admin import ANSWER_S, Admin
from filewheel.kafka.client.group import READING, last_read
from filewheel.kafka.client.trouble import client, cluster_error, error_of, log, made
from filewheel.kafka.records.last_read import NO_EPOCH, LastRead

RECORD_S = 5.0
"""How long a record may take to come."""
POLL_S = 0.1
_ONE_RECORD = {
    "queued.max.messages.kbytes": 1024, "max.partition.fetch.bytes": 4096, "queued.min.messages": 1,
    "fetch.queue.backoff.ms": 10,
}  # fmt: skip
"""One record is asked for; a broker sends at least one batch, whatever its size. A client that has its one record
fetches none for `fetch.queue.backoff.ms` (1 s), also of the next partition."""


class LogWatcher:
    """The logs of one topic, looked at from outside."""

    def __init__(self, config: Mapping[str, Any], admin: Admin, topic: str) -> None:
        self._client = client()
        self._words: Any = need("confluent_kafka.admin", "kafka")
        self._reading = {**READING, **config, "auto.offset.reset": "earliest", **_ONE_RECORD}
        self._admin = admin
        self._topic = topic
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._may_ask = True

    def ranges(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the first offset and the one after the last, of each partition that is known. Raises ClusterError."""
        starts = self._offsets(partitions, self._words.OffsetSpec.earliest())
        ends = self._offsets(partitions, self._words.OffsetSpec.latest())
        return {p: (start, ends[p]) for p, start in starts.items() if p in ends}

    def _offsets(self, partitions: Sequence[int], spec: Any) -> dict[int, int]:
        wanted = {self._client.TopicPartition(self._topic, partition): spec for partition in partitions}
        asked = self._asked(
            lambda admin: admin.list_offsets(
                wanted, isolation_level=self._client.IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S
            )
        )
        found = {}
        failed: ClusterError | None = None
        for where, answer in self._admin.answers(self._topic, asked).items():
            if isinstance(answer, ClusterError):
                failed = answer
            elif answer.offset >= 0:  # mutant: kafka-unknown-offset
                found[where.partition] = answer.offset
        if failed is not None and not found:
            raise failed
        return found

    def retention_ms(self) -> int | None:
        """Return how long the topic keeps a record; None: for ever, or this user may not ask. Raises ClusterError."""
        if not self._may_ask:
            return None
        resource = self._words.ConfigResource(self._words.ResourceType.TOPIC, self._topic)
        (asked,) = self._asked(lambda admin: admin.describe_configs([resource], request_timeout=ANSWER_S)).values()
        try:
            value = int(self._admin.answer(self._topic, asked)["retention.ms"].value)
        except NotAllowed as exc:
            self._may_ask = False
            log.info("%s; so nothing is said when the retention is too short", exc)
            return None
        return value if value >= 0 else None

    def _asked(self, ask: Callable[[Any], Any]) -> Any:
        return self._admin.ask(self._topic, ask)

    def timestamp_at(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset, in ms. Raises ClusterError."""
        message, _ = self._first(partition, offset)
        return None if message is None else int(message.timestamp()[1])

    def first_at(self, partition: int, offset: int) -> LastRead:
        """Return the first record at or after an offset; one before it if the log is shorter. Raises ClusterError.

        Waits up to RECORD_S. "No record" is no answer here: this one was read once.
        """
        message, _ = self._first(partition, offset)
        if message is None:
            raise self._silent(partition, offset)
        return last_read(message)

    def parted_at(self, partition: int, before: LastRead) -> int | None:
        """Return from which offset on a log without this record has others; None if the brokers do not know it.

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
