"""The order of calls of a transactional sink, with a client in memory that keeps a log as a broker does.

A broker that was killed can leave records of a transaction without an end. The next end of the same producer id is
theirs, too. No broker does that on demand, so the client here begins with such records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from filewheel.kafka.client.transaction_sink import TransactionSink
from filewheel.kafka.node.transport import End, Outcome
from filewheel.kafka.records.record import Outgoing

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


class Broker:
    """Logs by topic: what was committed, and what has no end yet."""

    def __init__(self) -> None:
        self.open: list[tuple[str, bytes | None]] = []
        self.committed: list[tuple[str, bytes | None]] = []

    def end(self, topics: set[str], *, commits: bool) -> None:
        """End what is open in the topics that the transaction touched, whichever transaction it came from."""
        ended = [one for one in self.open if one[0] in topics]
        self.open = [one for one in self.open if one[0] not in topics]
        if commits:
            self.committed += ended


class Message:
    def offset(self) -> int:
        return 7


class Producer:
    """The producer of the client."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topics: set[str] = set()

    def init_transactions(self, timeout_s: float) -> None:
        """The coordinator calls the last transaction aborted, and writes nothing."""

    def begin_transaction(self) -> None:
        self.topics = set()

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, *, on_delivery: Any, headers: Any
    ) -> None:
        self.topics.add(topic)
        self.broker.open.append((topic, value))
        on_delivery(None, Message())

    def flush(self, timeout_s: float = 0.0) -> int:
        return 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.broker.end(self.topics, commits=True)

    def abort_transaction(self, timeout_s: float) -> None:
        self.broker.end(self.topics, commits=False)


class Client:
    """The module of the client."""

    class KafkaException(Exception):
        pass

    def __init__(self, broker: Broker) -> None:
        self.Producer = lambda config: Producer(broker)


def sink_on(broker: Broker) -> TransactionSink:
    def run(call: Callable[[], None]) -> None:
        call()

    sink = TransactionSink({}, Outgoing("cursor", b"0.owner", b"node"), run)
    sink._client = Client(broker)
    return sink


def test_a_new_sink_aborts_what_is_left_before_it_commits_anything() -> None:
    broker = Broker()
    broker.open = [("target", b"left"), ("cursor", b"left-marker")]
    sink = sink_on(broker)
    assert sink.open() == 7
    outcomes: list[Outcome] = []
    for name in (b"one", b"two"):
        sink.send([Outgoing("target", None, name)], Outgoing("cursor", b"0", b"after-" + name), outcomes.append)
    assert [outcome.end for outcome in outcomes] == [End.DELIVERED, End.DELIVERED]
    assert broker.committed == [
        ("cursor", b"node"),
        ("target", b"one"),
        ("cursor", b"after-one"),
        ("target", b"two"),
        ("cursor", b"after-two"),
    ]
    assert broker.open == []
