"""Exactly once of the scheduler on Kafka: a call's outcome and its end are one transaction, whatever answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from filewheel import BadArgument, Retry, current_job
from filewheel.kafka.node.transport import End, GroupCommit, UnitOutcome
from filewheel.kafka.records.record import Outgoing
from tests.kafka.fake_calls import CallCluster
from tests.kafka.workers import Worker, a_cluster, a_scheduler


@pytest.fixture
def cluster() -> CallCluster:
    return a_cluster(exactly_once=True)


def failing(cluster: CallCluster, count: int = 3) -> tuple[Any, list[int]]:
    """Return a scheduler with a handler that fails, of which some calls were enqueued, and the calls that ran."""
    scheduler = a_scheduler(cluster)
    ran: list[int] = []

    @scheduler.on(retry=Retry(delay_s=1000))
    def fails(n: int) -> None:
        ran.append(n)
        raise ValueError

    for n in range(count):
        fails.enqueue(n)
    return scheduler, ran


def done(cluster: CallCluster) -> int:
    return sum(offset for offset, _ in cluster.committed.values())


def test_a_commit_whose_answer_was_lost_is_not_produced_again(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler, ran = failing(cluster)
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.finish(End.UNDECIDED)
    cluster.is_manual = False
    worker.turn()
    worker.after(11)
    assert len(ran) == 3
    assert len(cluster.waiting) == 3
    assert done(cluster) == 3


def test_a_transaction_that_was_aborted_unseen_is_produced_again_and_its_calls_do_not_run_again(
    cluster: CallCluster,
) -> None:
    cluster.is_manual = True
    scheduler, ran = failing(cluster)
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.finish(End.FENCED)
    cluster.is_manual = False
    worker.turn()
    worker.after(11)
    assert len(ran) == 3
    assert len(cluster.waiting) == 3
    assert done(cluster) == 3


def test_nothing_is_sent_until_the_group_says_how_a_transaction_ended(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler, _ = failing(cluster)
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.is_silent = True
    cluster.finish(End.UNDECIDED)
    scheduler.enqueue("fails", [9])
    worker.after(11)
    assert cluster.under_way == []
    cluster.is_silent = False
    worker.turn()
    assert len(cluster.under_way) == 1
    assert len(cluster.under_way[0].records) == 1


def test_a_lost_answer_of_a_partition_that_went_away_is_the_new_owner_s_matter(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler, ran = failing(cluster, 4)
    first = Worker(scheduler, cluster)
    first.turn()
    cluster.finish(End.FENCED)
    cluster.is_silent = True
    first.keeper.poll(0)
    cluster.expire(first.source)
    cluster.is_silent, cluster.is_manual = False, False
    second = Worker(scheduler, cluster)
    for _ in range(5):
        second.turn()
        first.turn()
    second.after(11)
    first.after(11)
    assert len(cluster.waiting) == 4, "each once, though some ran twice"
    assert len(ran) >= 4
    assert done(cluster) == 4


def test_a_unit_of_an_older_generation_is_refused_and_sent_again(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler, _ = failing(cluster)
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.generation += 1
    cluster.finish()
    assert cluster.waiting == []
    cluster.is_manual = False
    worker.turn()
    worker.after(1)
    worker.turn()
    assert len(cluster.waiting) == 3


def test_a_step_and_the_next_one_are_one_write(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    steps: list[str] = []

    @scheduler.on(retry=Retry(delay_s=1, jitter=0))
    def first() -> None:
        with current_job().transaction():
            scheduler.enqueue("second")
        steps.append("first")
        if current_job().attempt == 0:
            raise ValueError("after the block")

    @scheduler.on()
    def second() -> None:
        steps.append("second")

    first.enqueue()
    worker = Worker(scheduler, cluster)
    worker.turn()
    assert steps == ["first"]
    cluster.is_manual = True
    worker.after(2)
    assert steps == ["first", "first"]
    cluster.finish(End.FENCED)
    cluster.is_manual = False
    worker.turn()
    worker.turn()
    assert steps == ["first", "first", "second"]


def test_without_exactly_once_a_transaction_is_refused() -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)
    raised: list[str] = []

    @scheduler.on()
    def step() -> None:
        with current_job().transaction():
            try:
                scheduler.enqueue("next")
            except BadArgument as exc:
                raised.append(str(exc))

    step.enqueue()
    worker = Worker(scheduler, cluster)
    worker.turn()
    assert "transaction is not kept on Kafka" in raised[0]
    assert cluster.waiting == []


def test_plain_ends_are_committed_by_transactions_only(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    scheduler.on("note")(lambda n: None)
    worker = Worker(scheduler, cluster)
    for n in range(5):
        scheduler.enqueue("note", [n])
    cluster.is_manual = True
    worker.turn()
    worker.after(5)
    assert cluster.committed == {}
    (unit,) = cluster.under_way
    assert list(unit.records) == []
    cluster.finish()
    assert done(cluster) == 5


# -- the sink, with a client in memory -------------------------------------------------------------------------------

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


class Broker:
    """What a producer id left open, and what was committed, by topic; "offsets" are the group's."""

    def __init__(self) -> None:
        self.open: list[tuple[str, Any]] = []
        self.committed: list[tuple[str, Any]] = []
        self.calls: list[str] = []
        self.loses: set[str] = set()
        """Calls whose answer is lost, once each."""
        self.generation = 1
        self.hangs = threading.Event()
        """While it is not set, positions get no answer."""
        self.hangs.set()
        self.on_hang: Callable[[], object] = lambda: None

    def end(self, topics: set[str], *, commits: bool) -> None:
        """End what is open in the topics that the transaction touched, whichever transaction it came from."""
        ended = [one for one in self.open if one[0] in topics]
        self.open = [one for one in self.open if one[0] not in topics]
        self.committed += ended if commits else []


class Producer:
    """The client's producer."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topics: set[str] = set()

    def init_transactions(self, timeout_s: float) -> None:
        self.broker.calls.append("init")

    def begin_transaction(self) -> None:
        self.topics = set()

    def produce(self, topic: str, value: Any, key: Any, partition: int, *, on_delivery: Any, headers: Any) -> None:
        self.topics.add(topic)
        self.broker.open.append((topic, value))
        on_delivery(None, None)

    def flush(self, timeout_s: float = 0) -> int:
        return 0

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout_s: float) -> None:
        if len(self.broker.calls) == 2:  # init and the abort of the first producer
            self.broker.on_hang()
            self.broker.hangs.wait()
        if group != self.broker.generation:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(22))  # ILLEGAL_GENERATION
        self.topics.add("offsets")
        self.broker.open.append(("offsets", [(o.partition, o.offset, o.metadata) for o in offsets]))

    def commit_transaction(self, timeout_s: float) -> None:
        if "commit-never" in self.broker.loses:
            self.broker.generation += 1  # the group rebalanced, too
        self._maybe_lost("commit-never")
        self.broker.end(self.topics, commits=True)
        self._maybe_lost("commit")

    def abort_transaction(self, timeout_s: float) -> None:
        self._maybe_lost("abort")
        self.broker.calls.append("abort")
        self.broker.end(self.topics, commits=False)

    def _maybe_lost(self, name: str) -> None:
        if name in self.broker.loses:
            self.broker.loses.discard(name)
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT))

    def purge(self, *, blocking: bool) -> None:
        """Nothing is queued."""


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(confluent_kafka, "Producer", lambda config: Producer(broker))
    return broker


def _note(broker: Broker, ends: list[End], answered: threading.Event, outcome: UnitOutcome) -> None:
    broker.calls.append(outcome.end.value)
    ends.append(outcome.end)
    answered.set()


def ended(broker: Broker, records: list[Outgoing], positions: dict[int, tuple[int, str]]) -> list[End]:
    """Send two units one after the other; return their ends."""
    from filewheel.kafka.client.call_transaction import TransactionCallSink

    sink = TransactionCallSink({}, "calls", lambda: [("delays", 0), ("calls", 0), ("calls.dead", 0)])
    ends: list[End] = []
    try:
        for _ in range(2):
            answered = threading.Event()
            commit = GroupCommit(positions, lambda: broker.generation)
            sink.send(records, commit, partial(_note, broker, ends, answered))
            assert answered.wait(30)
    finally:
        broker.hangs.set()
        sink.close()
    return ends


RECORDS = [Outgoing("delays", None, b"retry"), Outgoing("calls.dead", None, b"dead")]


def test_records_and_positions_are_committed_together(broker: Broker) -> None:
    assert ended(broker, RECORDS, {0: (7, "1:")}) == [End.DELIVERED] * 2
    assert broker.committed == [("delays", b"retry"), ("calls.dead", b"dead"), ("offsets", [(0, 7, "1:")])] * 2
    assert broker.calls == ["init", "abort", "delivered", "delivered"]


def test_what_a_broker_forgot_of_a_predecessor_is_never_committed(broker: Broker) -> None:
    broker.open = [("delays", b"left"), ("calls.dead", b"left"), ("offsets", [(0, 99, "")])]
    ended(broker, RECORDS, {0: (7, "")})
    assert all(value not in (b"left", [(0, 99, "")]) for _, value in broker.committed)


@pytest.mark.parametrize("lost", ["commit", "commit-never"])
def test_a_lost_commit_is_reported_when_a_new_producer_has_decided_it(broker: Broker, lost: str) -> None:
    broker.loses = {lost}
    assert ended(broker, RECORDS, {0: (7, "")}) == [End.UNDECIDED, End.DELIVERED]
    assert broker.calls == ["init", "abort", "init", "abort", "undecided", "delivered"]
    assert broker.open == []


def test_a_call_of_the_client_that_never_returns_is_abandoned(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel.kafka.client import call_transaction

    monkeypatch.setattr(call_transaction, "LIMIT_S", 2.0)
    broker.hangs.clear()
    # Only the call that hangs has the short limit: others may be slow on a machine under load.
    broker.on_hang = lambda: monkeypatch.setattr(call_transaction, "LIMIT_S", 30.0)
    assert ended(broker, RECORDS, {0: (7, "")}) == [End.UNDECIDED, End.DELIVERED]
    assert broker.calls[:5] == ["init", "abort", "init", "abort", "undecided"]


def test_a_producer_that_cannot_be_opened_is_tried_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel.kafka.client import call_transaction

    monkeypatch.setattr(call_transaction, "PAUSE_S", 0.01)
    broker.loses = {"abort"}
    assert ended(broker, RECORDS, {}) == [End.DELIVERED] * 2
    assert broker.calls == ["init", "init", "abort", "delivered", "delivered"]


def test_an_end_at_least_once_goes_through_the_present_producer() -> None:
    from filewheel.kafka.client.shared_sink import SharedSink

    sent: list[tuple[str, bytes | None]] = []

    class Shared:
        is_broken = False

        def __init__(self, name: str) -> None:
            self.name = name

        def produce(self, record: Outgoing, answer: Any) -> bool:
            sent.append((self.name, record.value))
            answer(None, None)
            return True

    present: Any = [Shared("first")]
    sink = SharedSink(lambda: present[-1])
    ends: list[End] = []
    for name in ("first", "second"):
        present.append(Shared(name))  # a fatal error ended the one before
        sink.send(RECORDS[:1], None, lambda outcome: ends.append(outcome.end))
    assert sent == [("first", b"retry"), ("second", b"retry")]
    assert ends == [End.DELIVERED] * 2
