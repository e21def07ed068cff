"""The way out exactly once: a transactional producer for each partition.

A unit and its marker are one transaction. The transactional id belongs to the partition, so opening a sink fences the
one before it, on whichever node: its open transaction is aborted, and a commit that began is finished.
A broker that was killed may forget the end of a transaction in some of its partitions: its coordinator calls it aborted
and writes no control record there (seen with Kafka 4.4: `PrepareAbort`, `CompleteAbort`, and nothing in the log). What
is left there counts for the *next* transaction of this producer id, and a commit would publish it: a marker without its
records, or records a second time. So a new sink first ends what may be left by an abort of its own: in the topic of
markers before the barrier, and in each partition of a target before its first commit there.
Invariant: an outcome says that a unit is not in the log only after an abort that succeeded. Any other trouble with the
end of a transaction finishes the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from filewheel.errors import ClusterError, NoBroker
from filewheel.kafka.client.trouble import BY_SIZE, FENCED, client, cluster_error, error_of, made, refusal_of
from filewheel.kafka.node.transport import Done, End, Refusal, UnitOutcome
from filewheel.kafka.records.record import Outgoing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

log = logging.getLogger("filewheel.kafka")

OPEN_S = 30.0
TRIES = 4
END_S = 30.0
"""How long the end of a transaction may take."""


class TransactionSink:
    """The way out of one partition through transactions."""

    def __init__(self, config: dict[str, Any], barrier: Outgoing, run: Callable[[Callable[[], None]], None]) -> None:
        self._client = client()
        self._config = config
        self._barrier = barrier
        self._run = run
        self._producer: Any = None
        self._is_closed = False
        self._clean: set[tuple[str, int | None]] = {(barrier.topic, barrier.partition)}
        """Partitions in which an abort of this sink ended what a predecessor may have left."""

    def open(self) -> int:
        """Fence the predecessors, then put the barrier behind all that they wrote.

        Raises ClusterError.
        """
        producer = made(self._client.Producer, self._config)
        offsets: list[int] = []
        try:
            producer.init_transactions(OPEN_S)
            producer.begin_transaction()
            self._produce(producer, self._barrier, lambda error, message: None)
            producer.flush(END_S)
            producer.abort_transaction(END_S)  # mutant: kafka-left-marker-committed
            producer.begin_transaction()
            self._produce(producer, self._barrier, lambda error, message: offsets.append(message.offset() or 0))
            producer.commit_transaction(END_S)
        except self._client.KafkaException as exc:
            raise cluster_error(error_of(exc), f"{self._barrier.topic}: no transaction") from exc
        if not offsets:
            raise NoBroker(f"{self._barrier.topic}: no answer", hint="check whether the brokers run")
        self._producer = producer
        return offsets[0]

    def publish(self, marker: Outgoing) -> None:
        """Put a marker into the log, alone. What is left in the targets stays for the first unit to clean.

        Raises ClusterError.
        """
        producer = self._producer
        failed = self._fill(producer, [marker], is_alone=False)
        if failed:
            raise cluster_error(failed[0], f"{marker.topic} cannot be written")
        outcome = self._commit(producer, frozenset())
        if outcome.end is not End.DELIVERED:
            raise ClusterError(f"{marker.topic}: {outcome.reason}", hint="look at the broker's log, then call again")

    def send(self, records: Sequence[Outgoing], marker: Outgoing | None, done: Done) -> None:
        """Produce the records and the marker in one transaction."""

        def run() -> None:
            try:
                outcome = self._transaction(records, marker)
            except Exception as exc:
                # A mistake of ours, or of the client's: the partition must not wait for an outcome for ever.
                log.exception("a transaction failed")
                outcome = UnitOutcome(End.UNDECIDED, frozenset(range(len(records))), reason=repr(exc))
            if not self._is_closed:
                done(outcome)

        self._run(run)

    def close(self) -> None:
        """Report nothing more. An open transaction is aborted by the next sink, or by its time-out."""
        self._is_closed = True
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)

    def _transaction(self, records: Sequence[Outgoing], marker: Outgoing | None) -> UnitOutcome:
        assert marker is not None
        producer = self._producer
        every = frozenset(range(len(records)))
        if producer is None:
            return UnitOutcome(End.UNDECIDED, every, reason="closed")
        is_alone = False
        for _ in range(TRIES):
            places: dict[int, tuple[str, int]] = {}
            failed = self._fill(producer, [*records, marker], is_alone=is_alone, places=places)
            if not failed and self._clean.issuperset(places.values()):  # mutant: kafka-left-records-committed
                return self._commit(producer, every)
            outcome = self._abort(producer, every, failed)
            if outcome.end in (End.UNDECIDED, End.FENCED):
                return outcome
            if not failed:
                # The records go to the same partitions again, also those without a key.
                self._clean.update(places.values())
                records = [replace(record, partition=places[n][1]) for n, record in enumerate(records)]
            elif not is_alone and sum(error.name() == BY_SIZE for error in failed.values()) > 1:
                # The batch was too large, which says nothing of one record: one after the other.
                is_alone = True
            elif not is_alone or outcome.end is End.REFUSED:
                return outcome
            # The first transaction after a refused batch may fail for its skipped sequence numbers: once more.
        return outcome

    def _fill(
        self,
        producer: Any,
        records: Sequence[Outgoing],
        *,
        is_alone: bool,
        places: dict[int, tuple[str, int]] | None = None,
    ) -> dict[int, KafkaError]:
        """Produce into a new transaction and wait for all answers; return the errors by index.

        `places` gets the partition of each record that was taken.
        """
        failed: dict[int, KafkaError] = {}

        def answer(n: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failed[n] = error
            elif places is not None:
                places[n] = (records[n].topic, message.partition() or 0)

        n = -1
        try:
            producer.begin_transaction()
            for n, record in enumerate(records):
                self._produce(producer, record, partial(answer, n))
                if is_alone:
                    producer.flush()
            producer.flush()
        except (self._client.KafkaException, SystemError) as exc:
            failed.setdefault(max(n, 0), error_of(exc))
        return failed

    def _produce(self, producer: Any, record: Outgoing, answer: Callable[..., None]) -> None:
        while True:
            try:
                producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    -1 if record.partition is None else record.partition,
                    on_delivery=answer,
                    headers=list(record.headers),
                )
                return
            except BufferError:
                producer.poll(0.05)

    def _commit(self, producer: Any, every: frozenset[int]) -> UnitOutcome:
        """Commit. A crash here, or an answer that is lost, leaves a transaction that only the cluster can decide."""
        try:
            producer.commit_transaction(END_S)
        except (self._client.KafkaException, SystemError) as exc:
            error = error_of(exc)
            end = End.FENCED if error.name() in FENCED else End.UNDECIDED
            return UnitOutcome(end, every, reason=f"commit: {error.str()}")
        return UnitOutcome(End.DELIVERED)

    def _abort(self, producer: Any, every: frozenset[int], failed: dict[int, KafkaError]) -> UnitOutcome:
        """Abort, and report what failed. The marker is the record behind the last one: its failure is no refusal."""
        fenced = [error for error in failed.values() if error.name() in FENCED]
        if fenced:
            return UnitOutcome(End.FENCED, every, reason=fenced[0].str())
        try:
            producer.abort_transaction(END_S)
        except (self._client.KafkaException, SystemError) as exc:
            error = error_of(exc)
            return UnitOutcome(
                End.FENCED if error.name() in FENCED else End.UNDECIDED, every, reason=f"abort: {error.str()}"
            )
        refused: dict[int, Refusal] = {}
        for n, error in failed.items():
            refusal = refusal_of(error)
            if refusal is not None and n in every:
                refused[n] = refusal
        reason = next((error.str() for error in failed.values()), "")
        return UnitOutcome(End.REFUSED if refused else End.FAILED, every, refused, reason)
