"""The way out exactly once: what calls ended with, and the positions of these calls, are one transaction.

Owns one transactional producer and the thread that uses it. The transactional id is the worker's name, so a restarted
worker fences its predecessor and ends what that left open. Fencing between workers is the group's: a transaction
carries the member's generation, and the coordinator refuses the positions of an older one.
A broker that was killed may forget the end of a transaction in some partitions (transaction_sink.py). There, records
without an end keep readers waiting, and so does a position without an end: the group answers no question for positions
until it is decided. So a new producer first ends all that may be left: an aborted transaction that touches each
partition that this worker writes to, and the group's positions.
Invariant: an outcome that leaves a transaction undecided is reported only when a new producer has decided it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from filewheel.errors import ClusterError
from filewheel.kafka.client.transaction_sink import END_S, OPEN_S, TransactionSink
from filewheel.kafka.client.trouble import cluster_error, error_of
from filewheel.kafka.node.transport import Done, End, Outcome
from filewheel.kafka.records.record import Outgoing

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

log = logging.getLogger("filewheel.kafka.client")

PAUSE_S = 0.5
PAUSE_MAX_S = 10.0
FENCED_S = 10.0
"""How long a fenced worker waits: two of one name would fence each other without an end."""
TOUCH = "filewheel.touch"

Positions = Mapping[int, tuple[int, str]]
_Unit = tuple[Sequence[Outgoing], Positions, Any, Done]


class TransactionCallSink(TransactionSink):
    """The way out of one worker. One unit at a time."""

    exactly_once = True

    def __init__(self, config: dict[str, Any], calls: str, partitions: Callable[[], Sequence[tuple[str, int]]]) -> None:
        """`partitions` returns each partition that may be written to."""
        super().__init__(config, Outgoing(calls, None, None), lambda call: None)
        self._calls = calls
        self._partitions = partitions
        self._units: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="filewheel-kafka-transactions", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[Outgoing], positions: Positions, group: Any, done: Done) -> None:  # type: ignore[override]
        """Produce the records and commit the positions in one transaction. `group` is the member that read them."""
        self._units.put((records, positions, group, done))

    def close(self) -> None:
        """Report nothing more. An open transaction is aborted by the next producer of the name, or by its time-out."""
        self._closing.set()
        self._units.put(None)
        self._thread.join()
        super().close()

    def _work(self) -> None:
        while (unit := self._units.get()) is not None and not self._closing.is_set():
            records, positions, group, done = unit
            try:
                outcome = self._unit(records, positions, group)
            except Exception as exc:
                log.exception("a transaction failed")
                outcome = Outcome(End.UNDECIDED, frozenset(range(len(records))), reason=repr(exc))
            if outcome.end in (End.UNDECIDED, End.FENCED):
                self._drop()
                if outcome.end is End.FENCED:
                    log.error(
                        "another worker has this one's name, or its transaction took too long: %s", outcome.reason
                    )
                    self._closing.wait(FENCED_S)
                self._reopen(group)  # mutant: kafka-undecided-unfenced
            if not self._closing.is_set():
                done(outcome)

    def _unit(self, records: Sequence[Outgoing], positions: Positions, group: Any) -> Outcome:
        if self._producer is None:
            self._reopen(group)
        producer, every = self._producer, frozenset(range(len(records)))
        if producer is None:
            return Outcome(End.FAILED, every, reason="closed")
        failed = self._fill(producer, records, is_alone=len(records) == 1)
        if failed:
            return self._abort(producer, every, failed)
        offsets = self._offsets(positions)
        try:
            producer.send_offsets_to_transaction(offsets, group, END_S)
        except (self._client.KafkaException, SystemError) as exc:
            return self._abort(producer, every, {len(records): error_of(exc)})  # of an older generation, for one
        return self._commit(producer, every)

    def _offsets(self, positions: Positions) -> list[TopicPartition]:
        place = self._client.TopicPartition
        return [place(self._calls, p, offset, metadata) for p, (offset, metadata) in positions.items()]

    def _reopen(self, group: Any) -> None:
        """Make a producer that has decided all that its predecessors left; try until it works, or until the end."""
        pause_s = PAUSE_S
        while not self._closing.is_set():
            try:
                self._open_calls(group)
                return
            except ClusterError as exc:
                log.warning("%s; again in %g s", exc, pause_s)
                self._drop()
                self._closing.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _open_calls(self, group: Any) -> None:
        """Fence the predecessors, and abort what a broker may have forgotten of them. Raises ClusterError."""
        producer = self._client.Producer(self._config)
        try:
            producer.init_transactions(OPEN_S)
            touches = [Outgoing(t, None, None, ((TOUCH, b"aborted"),), p) for t, p in self._partitions()]
            failed = self._fill(producer, touches, is_alone=False)
            if failed:
                raise self._client.KafkaException(next(iter(failed.values())))
            # Whatever offset: it is aborted, and with it what is left of a forgotten transaction.
            producer.send_offsets_to_transaction([self._client.TopicPartition(self._calls, 0, 0)], group, END_S)
            producer.abort_transaction(END_S)  # mutant: kafka-left-positions-committed
        except (self._client.KafkaException, SystemError) as exc:
            producer.purge(blocking=False)
            raise cluster_error(error_of(exc), f"{self._calls}: no transaction") from exc
        self._producer = producer

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)
