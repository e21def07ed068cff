"""The way out at least once: one idempotent producer of the node, shared by all partitions.

Owns the producer and the thread that serves its answers. A unit's records are produced, then, after the last answer,
its marker. A crash in between leaves the records in their topics without a marker: the next owner produces them again.
Invariant: a marker is produced only after each record of its unit, or what took its place, is confirmed by all
in-sync replicas.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from filewheel.env import Event
from filewheel.errors import ClusterError, NoBroker, TooLarge
from filewheel.kafka.client.trouble import BY_SIZE, client, cluster_error, error_of, log, made, refusal_of
from filewheel.kafka.node.transport import Done, End, GroupCommit, Refusal, UnitOutcome
from filewheel.kafka.records.record import Outgoing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

SERVE_S = 0.1
OPEN_S = 30.0
"""How long one record of the topic of markers may take."""


class SharedProducer:
    """One producer, and the thread that serves its answers."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._client = client()
        self._producer = made(self._client.Producer, config)
        self._again: deque[Callable[[], None]] = deque()
        """Sends that found the queue full. The serving thread repeats them: each answer makes room."""
        self._ended = False
        self.is_broken = False
        """The producer met a fatal error: it sends nothing any more."""
        self._thread = threading.Thread(target=self._serve, name="filewheel-kafka-answers", daemon=True)
        self._thread.start()

    def produce(self, record: Outgoing, answer: Callable[[KafkaError | None, Message | None], None]) -> bool:
        """Queue a record; return False when the queue is full. `answer` is called on any thread, also on this one."""
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                -1 if record.partition is None else record.partition,
                on_delivery=answer,
                headers=list(record.headers),
            )
        except BufferError:
            return False
        except self._client.KafkaException as exc:
            answer(error_of(exc), None)
        return True

    def put(self, record: Outgoing, timeout_s: float) -> Message:
        """Produce one record and wait for its answer; return the message of the answer.

        Raises ClusterError, TooLarge.
        """
        answers: list[tuple[KafkaError | None, Message | None]] = []
        answered = Event()

        def answer(error: KafkaError | None, message: Message | None) -> None:
            answers.append((error, message))
            answered.set()

        if not self.produce(record, answer):
            raise ClusterError("the producer's queue is full", hint="wait until the brokers answer")
        if not answered.wait(timeout_s):
            raise NoBroker(
                f"{record.topic}: no answer after {timeout_s:g} s; it may be written later",
                hint="check whether the brokers run",
            )
        error, message = answers[0]
        if error is not None:
            self.note(error)
            if error.name() == BY_SIZE:
                raise TooLarge(f"{record.topic}: {error.str()}", hint="store the data elsewhere, and pass its id")
            raise cluster_error(error, f"{record.topic} cannot be written")
        assert message is not None
        return message

    def again(self, call: Callable[[], None]) -> None:
        """Call this on the serving thread, after the next answers."""
        self._again.append(call)

    def note(self, error: KafkaError) -> None:
        """Remember an error after which the producer is of no use."""
        self.is_broken = self.is_broken or error.fatal()

    def purge(self) -> None:
        """Drop what is queued and in flight: their answers say so. What is in flight may be in the log."""
        self._producer.purge()

    def close(self, timeout_s: float) -> None:
        """Wait for the answers of what was sent, at most for this time."""
        self._producer.flush(timeout_s)
        self._ended = True
        self._thread.join()

    def _serve(self) -> None:
        while not self._ended:
            try:
                self._producer.poll(0.005 if self._again else SERVE_S)
            except (self._client.KafkaException, SystemError) as exc:
                # A fatal error. The answers of what was sent still come, each with an error.
                log.error("the producer is finished: %s", error_of(exc).str())
                self.is_broken = True
            for _ in range(len(self._again)):
                self._again.popleft()()


class Sending:
    """One unit under way. It ends with its marker; None for a unit without one."""

    def __init__(
        self, producer: SharedProducer, records: Sequence[Outgoing], marker: Outgoing | None, done: Done
    ) -> None:
        self._producer = producer
        self._records = records
        self._marker = marker
        self._done = done
        self._lock = threading.Lock()
        self._to_send = deque(range(len(records)))
        self._answers_left = len(records)
        self._failed: dict[int, KafkaError] = {}
        self._is_alone = False
        """Each record is sent after the answer of the one before: no other is in its batch."""

    def send(self) -> None:
        """Queue what is not queued yet. Goes on later when the queue is full."""
        if not self._records:
            self._send_marker()
            return
        while self._to_send:
            n = self._to_send.popleft()
            if not self._producer.produce(self._records[n], partial(self._answered, n)):
                self._to_send.appendleft(n)
                self._producer.again(self.send)
                return
            if self._is_alone:
                return

    def _answered(self, n: int, error: KafkaError | None, message: Message | None) -> None:
        with self._lock:
            if error is not None:
                self._failed[n] = error
            self._answers_left -= 1
            if self._answers_left:
                if self._is_alone:
                    self._producer.again(self.send)
                return
        self._all_answered()

    def _all_answered(self) -> None:
        if not self._failed:
            self._send_marker()
            return
        by_size = [n for n, error in sorted(self._failed.items()) if error.name() == BY_SIZE]
        if len(by_size) > 1 and not self._is_alone:
            # The batch was too large, which says nothing of one record: one after the other.
            self._is_alone = True
            for n in by_size:
                del self._failed[n]
            self._to_send.extend(by_size)
            self._answers_left = len(by_size)
            self._producer.again(self.send)
            return
        self._done(self._outcome())

    def _outcome(self) -> UnitOutcome:
        refused: dict[int, Refusal] = {}
        for n, error in self._failed.items():
            self._producer.note(error)
            refusal = refusal_of(error)
            if refusal is not None:
                refused[n] = refusal
        reason = next(iter(self._failed.values())).str()
        left = frozenset(self._failed)
        if self._producer.is_broken:
            return UnitOutcome(End.UNDECIDED, left, reason=reason)
        return UnitOutcome(End.REFUSED if refused else End.FAILED, left, refused, reason)

    def _send_marker(self) -> None:
        if self._marker is None:
            self._done(UnitOutcome(End.DELIVERED))
        elif not self._producer.produce(self._marker, self._marker_answered):
            self._producer.again(self._send_marker)

    def _marker_answered(self, error: KafkaError | None, message: Message | None) -> None:
        if error is None:
            self._done(UnitOutcome(End.DELIVERED))
            return
        self._producer.note(error)
        end = End.UNDECIDED if self._producer.is_broken else End.FAILED
        topic = self._marker.topic if self._marker is not None else ""
        self._done(UnitOutcome(end, frozenset(), reason=f"{topic}: {error.str()}"))


class SharedSink:
    """A way out through the shared producer: of a partition, of a level, or of a worker's calls."""

    exactly_once = False

    def __init__(self, producer: Callable[[], SharedProducer], barrier: Outgoing | None = None) -> None:
        """`producer` returns the present one: a fatal error ends a producer, and another takes its place."""
        self._producer = producer
        self._barrier = barrier
        self._is_closed = False

    def open(self) -> int:
        """Put the barrier into the topic of markers. It fences nobody: another sink's units may still arrive.

        Raises ClusterError.
        """
        return 0 if self._barrier is None else self._producer().put(self._barrier, OPEN_S).offset() or 0

    def stamp(self, probe: Outgoing) -> int | None:
        """Put a record into the log; return the broker's time of it, in ms; None if the topic has the producers'.

        Raises ClusterError.
        """
        kind, stamp_ms = self._producer().put(probe, OPEN_S).timestamp()
        return int(stamp_ms) if kind == client().TIMESTAMP_LOG_APPEND_TIME else None

    def publish(self, marker: Outgoing) -> None:
        """Put a marker into the log, alone. Raises ClusterError."""
        self._producer().put(marker, OPEN_S)

    def send(self, records: Sequence[Outgoing], marker: Outgoing | GroupCommit | None, done: Done) -> None:
        """Produce the records, then the marker. The source commits what a group keeps."""

        def done_unless_closed(outcome: UnitOutcome) -> None:
            if not self._is_closed:
                done(outcome)

        assert not isinstance(marker, GroupCommit)
        Sending(self._producer(), records, marker, done_unless_closed).send()

    def close(self) -> None:
        """Report nothing more. What was queued still goes out."""
        self._is_closed = True
