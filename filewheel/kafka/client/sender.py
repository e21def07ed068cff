"""Sends records to the delay topic: one idempotent producer, and the thread that serves its answers.

Owns both. A record is answered exactly once: it is in the log on all in-sync replicas, or there is an error.
Invariant: after `close` each record was answered, and no thread is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from filewheel.env import SYSTEM_CLOCK, Clock, pause
from filewheel.errors import Closed, ClusterError, FilewheelError, MissingTopic, NoBroker, Reentered, TooLarge
from filewheel.kafka.client.trouble import client, client_log, cluster_error, error_of, heard, listed, made
from filewheel.kafka.records.record import Outgoing
from filewheel.message import US_PER_S

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

SERVE_S = 0.1
SLICE_S = 0.1
"""The longest wait inside of the client: Ctrl-C is noticed after it."""
ROOM_S = 0.01
QUEUE_KB = 65_536
_UNSENT = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT"})
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE"})

Answer = Callable[[tuple[int, int] | FilewheelError], None]
"""Gets partition and offset, or the error. Called on any thread; it must not block, and raises nothing."""


class TopicSender:
    """The way to one delay topic. Thread-safe."""

    def __init__(self, config: Mapping[str, Any], topic: str, *, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make the client; no broker is asked. Raises BadArgument: no confluent-kafka, or wrong settings."""
        self.topic = topic
        self.timeout_s = timeout_s
        self._address = str(config.get("bootstrap.servers", ""))
        self._clock = clock
        self._config = {
            "linger.ms": 2,
            "partitioner": "murmur2_random",  # that of Java's clients: a key has one partition, whoever sends it
            "queue.buffering.max.kbytes": QUEUE_KB,
            "topic.metadata.propagation.max.ms": 5000,
            **config,
            "enable.idempotence": True,
            "acks": "all",
            "delivery.timeout.ms": max(round(timeout_s * 1000), 1),
            "message.max.bytes": 1_000_000_000,  # the brokers decide
            "logger": client_log,
            "error_cb": heard,
        }
        self._client = client()
        self._lock = threading.RLock()
        self._producer = made(self._client.Producer, self._config)
        self._is_broken = False
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="filewheel-kafka-sender", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Return once the delay topic was found. Raises NoBroker, MissingTopic, NotAllowed, ClusterError."""
        found = listed(self._producer, self.topic, self._address, self.timeout_s)
        if self.topic not in found:
            raise self._missing(f"there is no topic {self.topic}")
        error = found[self.topic].error
        if error is not None:
            raise cluster_error(error, self.topic)

    def send(self, record: Outgoing, answer: Answer) -> bool:
        """Queue a record; return False when the queue is full. Raises Closed."""

        def answered(error: KafkaError | None, message: Message | None) -> None:
            answer(self._result(error, message))

        try:
            with self._lock:
                if self._ended:  # mutant: kafka-producer-sends-after-close
                    raise Closed("this producer was closed by another thread", hint="make another one")
                self._whole().produce(
                    record.topic, record.value, record.key, on_delivery=answered, headers=list(record.headers)
                )
        except BufferError:
            return False
        except self._client.KafkaException as exc:
            answered(error_of(exc), None)
        return True

    def send_within(self, record: Outgoing, answer: Answer) -> None:
        """Queue a record; wait for room while the queue is full. Raises NoBroker, Reentered."""
        if self.send(record, answer):
            return
        end = self.deadline_us()
        while not self.send(record, answer):
            if self._is_mine():
                raise Reentered("a callback of this producer found its queue full", hint="send from another thread")
            if self._clock.steady_us() >= end:
                raise self.full()
            pause(ROOM_S)

    def deadline_us(self) -> int:
        """Return when a wait that begins now has to end, in steady time."""
        return self._clock.steady_us() + round(self.timeout_s * US_PER_S)

    def full(self) -> NoBroker:
        """Return the error of a queue that stays full."""
        return NoBroker(
            f"{self._address}: the queue of unsent records is full, and no broker answered for {self.timeout_s:g} s",
            hint="check the address and whether the broker runs; nothing of this call was sent",
        )

    def flush(self, timeout_s: float) -> int:
        """Wait until each record was answered, at most for this time; return how many were not. Raises Reentered."""
        if self._is_mine():
            raise Reentered("a callback of this producer waits for its own answers", hint="flush from another thread")
        end = self._clock.steady_us() + round(timeout_s * US_PER_S)
        while True:
            left = int(self._producer.flush(SLICE_S))
            if not left or self._clock.steady_us() >= end:
                return left

    def close(self) -> None:
        """Give up what was not answered, and end the thread. Call it once."""
        if self._is_mine():
            raise Reentered("a callback of this producer closes it", hint="close it from another thread")
        with self._lock:
            self._ended = True
        self._thread.join()
        self._producer.purge()
        while self._producer.flush(SLICE_S):  # what is purged needs no broker
            pass

    def _is_mine(self) -> bool:
        return threading.current_thread() is self._thread

    def _whole(self) -> Any:
        """Return the producer; another one after an error that finished it. Called under the lock."""
        if self._is_broken:
            self._producer.purge()
            self._producer.flush(SLICE_S)  # answers what it had
            self._producer = made(self._client.Producer, self._config)
            self._is_broken = False
        return self._producer

    def _serve(self) -> None:
        while not self._ended:
            try:
                self._producer.poll(SERVE_S)
            except (self._client.KafkaException, SystemError) as exc:
                self._note(error_of(exc))

    def _note(self, error: KafkaError) -> None:
        self._is_broken = self._is_broken or error.fatal()

    def _result(self, error: KafkaError | None, message: Message | None) -> tuple[int, int] | FilewheelError:
        if error is None:
            assert message is not None
            partition, offset = message.partition(), message.offset()
            return (-1 if partition is None else partition, -1 if offset is None else offset)
        self._note(error)
        name = error.name()
        if name == "_MSG_TIMED_OUT":
            return NoBroker(
                f"{self._address}: {self.topic} did not answer within {self.timeout_s:g} s",
                hint="check whether the brokers run; the record may have arrived all the same",
            )
        if name in _UNSENT:
            return ClusterError(
                f"{self.topic}: the producer was closed before the broker answered",
                hint="the record may have arrived all the same",
            )
        if name in _TOO_LARGE:
            return TooLarge(
                f"{self.topic} takes no record of this size",
                hint="raise max.message.bytes of the topic, or send a reference",
            )
        found = cluster_error(error, self.topic)
        return self._missing(found.what) if isinstance(found, MissingTopic) else found

    def _missing(self, what: str) -> MissingTopic:
        init = f"`filewheel kafka init --bootstrap {self._address} --topic {self.topic}`"
        return MissingTopic(what, hint=f"{init} makes it, if your user may see it at all")
