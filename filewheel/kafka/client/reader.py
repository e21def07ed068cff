"""Reads the topic of markers, and asks how long a log is, without being in a group.

Owns one consumer under a lock.
Invariant: `read` has seen all that was committed before the barrier: the barrier is itself a record of that log, so no
report of the log's end is trusted. After a broker's restart such a report may be too small.
The consumer asks for the ends, and no administrator's client: that one connects again and again to a leader that is
down, without a pause, and takes a processor core (librdkafka 2.16). A client that failed may keep the old epoch of a
leader for good (FENCED_LEADER_EPOCH, seen after a broker was killed), so another takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.admin import ANSWER_S
from filewheel.kafka.client.group import READING
from filewheel.kafka.client.trouble import client, cluster_error, error_of, made
from filewheel.message import US_PER_S

BACK = 64
"""How many offsets before the barrier the search begins; each next one reaches back 16 times as far."""
READ_S = 30.0
RANGE_S = 2.0
"""How long the ends of one log may take, of many."""
SLICE_S = 1.0
"""How long the first try of a question waits, and each next one twice as long: an interruption is seen in between."""


class LogReader:
    """Reads markers, and the ends of logs."""

    def __init__(self, config: Mapping[str, Any], topic: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client()
        self._config = {**READING, **config, "auto.offset.reset": "earliest"}
        self._consumer = made(self._client.Consumer, self._config)
        self._topic = topic
        self._clock = clock
        self._lock = threading.Lock()
        self._is_interrupted = Event()
        self._silent: set[tuple[str, int]] = set()
        """Partitions that had no answer when `ranges` asked last. They are asked for after the others."""

    def interrupt(self) -> None:
        """Let questions about ends of logs end with NoBroker within some seconds. From any thread."""
        self._is_interrupted.set()

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

    def range_of(self, topic: str, partition: int, limit_s: float = ANSWER_S) -> tuple[int, int]:
        """Return the first offset, and the one after the last that a committed reader can have. From any thread.

        Waits up to `limit_s`. Raises ClusterError.
        """
        where, what = self._client.TopicPartition(topic, partition), f"{topic} [{partition}]"
        end_us = self._clock.steady_us() + round(limit_s * US_PER_S)
        slice_s, consumer = SLICE_S, self._consumer
        while True:
            left_s = max((end_us - self._clock.steady_us()) / US_PER_S, 0.1)
            try:
                first, end = consumer.get_watermark_offsets(where, timeout=min(slice_s, left_s))
                break
            except self._client.KafkaException as exc:
                error = error_of(exc)
                is_slow = error.name() == "_TIMED_OUT" and slice_s < left_s
                if not is_slow or self._is_interrupted.is_set():  # mutant: kafka-end-asked-on
                    raise self._failed(cluster_error(error, what), consumer) from exc
            slice_s *= 2
            self._find_leader(consumer, topic, left_s)
        if min(first, end) < 0:  # -1001 without an error: the answer says nothing  # mutant: kafka-unknown-end-believed
            raise ClusterError(f"{what}: the brokers do not say where it ends", hint="call again")
        return first, end

    def ranges(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return what `range_of` does for each of these that is known. One thread asks at a time.

        Waits up to ANSWER_S for all of them together, and RANGE_S for one. Raises ClusterError if none is known.
        """
        found: dict[tuple[str, int], tuple[int, int]] = {}
        failed: ClusterError | None = None
        end_us = self._clock.steady_us() + round(ANSWER_S * US_PER_S)
        for place in sorted(places, key=self._silent.__contains__):
            if self._clock.steady_us() >= end_us:
                break
            try:
                found[place] = self.range_of(*place, RANGE_S)
                self._silent.discard(place)
            except ClusterError as exc:
                failed = exc
                self._silent.add(place)
        if failed is not None and not found:
            raise failed
        return found

    def _find_leader(self, consumer: Any, topic: str, timeout_s: float) -> None:
        """Let the client ask who leads: by itself it waits for the leader that it knows. Raises ClusterError."""
        try:
            consumer.list_topics(topic, timeout=timeout_s)  # mutant: kafka-old-leader-asked-on
        except self._client.KafkaException as exc:
            raise cluster_error(error_of(exc), topic) from exc

    def _failed(self, error: ClusterError, consumer: Any) -> ClusterError:
        """Let the next question go to another client, if that may help. A question under way keeps the old one."""
        if not isinstance(error, (NoBroker, NotAllowed)):
            with self._lock:
                if self._consumer is consumer:
                    self._consumer = made(self._client.Consumer, self._config)  # mutant: kafka-failed-client-kept
        return error

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
