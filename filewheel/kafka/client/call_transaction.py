"""The way out exactly once: what calls ended with, and the positions of these calls, are one transaction.

Owns one transactional producer and the thread that uses it. The transactional id is the worker's name, so a restarted
worker fences its predecessor and ends what that left open. Fencing between workers is the group's: a transaction
carries the member's generation, and the coordinator refuses the positions of an older one.
A broker that was killed may forget the end of a transaction in some partitions (transaction_sink.py). There, records
without an end keep readers waiting, and so does a position without an end: the group answers no question for positions
until it is decided. So a new producer first ends all that may be left: an aborted transaction that touches each
partition that this worker writes to, and the group's positions.
A call of the client may never return, whatever its time-out (seen with librdkafka 2.16: `send_offsets_to_transaction`,
after a broker was killed). So each transaction has a thread of its own and a limit; one that exceeds it is abandoned
with its producer, and decided as after a lost answer: what the abandoned one still does is fenced.
Invariant: an outcome that leaves a transaction undecided is reported only when a new producer has decided it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from filewheel.disk.threads import started
from filewheel.env import Event
from filewheel.errors import ClusterError, NoBroker
from filewheel.kafka.client.transaction_sink import TransactionSink
from filewheel.kafka.client.trouble import cluster_error, error_of, made
from filewheel.kafka.node.transport import Done, End, GroupCommit, Positions, UnitOutcome
from filewheel.kafka.records.record import Outgoing

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

log = logging.getLogger("filewheel.kafka.client")

ASK_S = 8.0
"""How long one question to the coordinator may take."""
LIMIT_S = 10.0
"""How long a transaction may take, and half of what a new producer may."""
PAUSE_S = 0.5
PAUSE_MAX_S = 10.0
FENCED_S = 10.0
"""How long a fenced worker waits: two of one name would fence each other without an end."""
TOUCH = "filewheel.touch"

T = TypeVar("T")
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
        self._group: Callable[[], Any] = lambda: None
        """Returns this member of the group."""
        self._closing = Event()
        self._thread = threading.Thread(target=self._work, name="filewheel-kafka-transactions", daemon=True)
        self._thread.start()

    def send(self, records: Sequence[Outgoing], commit: GroupCommit | None, done: Done) -> None:  # type: ignore[override]
        """Produce the records and commit the positions in one transaction of the group's generation of now."""
        assert commit is not None
        self._group = commit.group
        self._units.put((records, commit.positions, commit.group(), done))

    def close(self) -> None:
        """Report nothing more. An open transaction is aborted by the next producer of the name, or by its time-out."""
        self._closing.set()
        self._units.put(None)
        self._thread.join()
        super().close()

    def _work(self) -> None:
        while (unit := self._units.get()) is not None and not self._closing.is_set():
            records, positions, group, done = unit
            if self._producer is None:
                self._reopen()
            if self._producer is None:  # it closes
                return
            try:
                outcome = self._in_time(partial(self._unit, self._producer, records, positions, group), LIMIT_S)
            except ClusterError as exc:
                outcome = UnitOutcome(End.UNDECIDED, frozenset(range(len(records))), reason=str(exc))
            except Exception as exc:
                log.exception("a transaction failed")
                outcome = UnitOutcome(End.UNDECIDED, frozenset(range(len(records))), reason=repr(exc))
            if outcome.end in (End.UNDECIDED, End.FENCED):
                self._producer = None
                if outcome.end is End.FENCED:
                    log.error("another worker has this name, or a transaction took too long: %s", outcome.reason)
                    self._closing.wait(FENCED_S)
                self._reopen()  # mutant: kafka-undecided-unfenced
            if not self._closing.is_set():
                done(outcome)

    def _in_time(self, call: Callable[[], T], limit_s: float) -> T:
        """Return what a call returns; raise NoBroker when it takes too long, and leave it to itself."""
        returned: list[T] = []
        raised: list[BaseException] = []

        def run() -> None:
            try:
                returned.append(call())
            except BaseException as exc:
                raised.append(exc)

        thread = started(threading.Thread(target=run, name="filewheel-kafka-transaction", daemon=True))
        thread.join(limit_s)  # mutant: kafka-stuck-for-ever
        if raised:
            raise raised[0]
        if not returned:
            raise NoBroker(
                f"{self._calls}: a transaction has no end after {limit_s:g} s", hint="check whether the brokers run"
            )
        return returned[0]

    def _unit(self, producer: Any, records: Sequence[Outgoing], positions: Positions, group: Any) -> UnitOutcome:
        every = frozenset(range(len(records)))
        failed = self._fill(producer, records, is_alone=len(records) == 1)
        if failed:
            return self._abort(producer, every, failed)
        offsets = self._offsets(positions)
        try:
            producer.send_offsets_to_transaction(offsets, group, ASK_S)
        except (self._client.KafkaException, SystemError) as exc:
            return self._abort(producer, every, {len(records): error_of(exc)})  # of an older generation, for one
        return self._commit(producer, every)

    def _offsets(self, positions: Positions) -> list[TopicPartition]:
        place = self._client.TopicPartition
        return [place(self._calls, p, offset, metadata) for p, (offset, metadata) in positions.items()]

    def _reopen(self) -> None:
        """Make a producer that has decided all that its predecessors left; try until it works, or until the end."""
        pause_s = PAUSE_S
        while not self._closing.is_set():
            try:
                self._producer = self._in_time(self._opened, LIMIT_S * 2)
                return
            except Exception as exc:  # whatever it is: the worker must not wait for its answer for ever
                log.warning("%s; again in %g s", exc, pause_s, exc_info=not isinstance(exc, ClusterError))
                self._closing.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _opened(self) -> Any:
        """Return a producer that fenced its predecessors, and aborted what a broker may have forgotten of them.

        Raises ClusterError.
        """
        producer = made(self._client.Producer, self._config)
        try:
            producer.init_transactions(ASK_S)
            touches = [Outgoing(t, None, None, ((TOUCH, b"aborted"),), p) for t, p in self._partitions()]
            failed = self._fill(producer, touches, is_alone=False)
            if failed:
                raise self._client.KafkaException(next(iter(failed.values())))
            # Whatever offset: it is aborted, and with it what is left of a forgotten transaction. The generation is
            # that of now: the group may have rebalanced since the unit was sent.  # mutant: kafka-reopened-stale
            group = self._group()
            producer.send_offsets_to_transaction([self._client.TopicPartition(self._calls, 0, 0)], group, ASK_S)
            producer.abort_transaction(ASK_S)  # mutant: kafka-left-positions-committed
        except (self._client.KafkaException, SystemError) as exc:
            raise cluster_error(error_of(exc), f"{self._calls}: no transaction") from exc
        except RuntimeError as exc:  # the consumer was closed
            raise ClusterError(f"{self._calls}: no transaction: {exc}", hint="start the worker again") from exc
        return producer
