"""The order of calls of a transactional sink, with a client in memory that keeps a log as a broker does.

A broker that was killed can leave records of a transaction without an end. The next end of the same producer id is
theirs, too. No broker does that on demand, so the client here begins with such records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from filewheel.kafka.client.transaction_sink import TransactionSink
from filewheel.kafka.node.transport import End, UnitOutcome
from filewheel.kafka.records.record import Outgoing

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


Place = tuple[str, int]


class Broker:
    """Logs by partition: what was committed, and what has no end yet."""

    def __init__(self, partitions: int = 1) -> None:
        self.partitions = partitions
        self.open: list[tuple[Place, bytes | None]] = []
        self.committed: list[tuple[Place, bytes | None]] = []
        self.aborts = 0

    def end(self, places: set[Place], *, commits: bool) -> None:
        """End what is open in the partitions that the transaction touched, whichever transaction it came from."""
        ended = [one for one in self.open if one[0] in places]
        self.open = [one for one in self.open if one[0] not in places]
        if commits:
            self.committed += ended
        self.aborts += not commits

    def values(self) -> list[bytes | None]:
        """Return what a committed reader of the targets sees."""
        return [value for (topic, _), value in self.committed if topic != "cursor"]


class Message:
    def __init__(self, partition: int) -> None:
        self._partition = partition

    def offset(self) -> int:
        return 7

    def partition(self) -> int:
        return self._partition


class Producer:
    """The producer of the client. A record without a partition goes to another one each time."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.places: set[Place] = set()
        self._serial = itertools.count()

    def init_transactions(self, timeout_s: float) -> None:
        """The coordinator calls the last transaction aborted, and writes nothing."""

    def begin_transaction(self) -> None:
        self.places = set()

    def produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, *, on_delivery: Any, headers: Any
    ) -> None:
        place = (topic, partition if partition >= 0 else next(self._serial) % self.broker.partitions)
        self.places.add(place)
        self.broker.open.append((place, value))
        on_delivery(None, Message(place[1]))

    def flush(self, timeout_s: float = 0.0) -> int:
        return 0

    def commit_transaction(self, timeout_s: float) -> None:
        self.broker.end(self.places, commits=True)

    def abort_transaction(self, timeout_s: float) -> None:
        self.broker.end(self.places, commits=False)


class Client:
    """The module of the client."""

    class KafkaException(Exception):
        pass

    def __init__(self, broker: Broker) -> None:
        self.Producer = lambda config: Producer(broker)


def sink_on(broker: Broker) -> TransactionSink:
    def run(call: Callable[[], None]) -> None:
        call()

    sink = TransactionSink({}, Outgoing("cursor", b"0.owner", b"node", (), 0), run)
    sink._client = Client(broker)
    return sink


def send(sink: TransactionSink, *names: bytes, key: bytes | None = None) -> None:
    outcomes: list[UnitOutcome] = []
    for name in names:
        sink.send([Outgoing("target", key, name)], Outgoing("cursor", b"0", b"after-" + name, (), 0), outcomes.append)
    assert [outcome.end for outcome in outcomes] == [End.DELIVERED] * len(names)


def test_a_new_sink_aborts_what_is_left_before_it_commits_anything() -> None:
    broker = Broker()
    broker.open = [(("target", 0), b"left"), (("cursor", 0), b"left-marker")]
    sink = sink_on(broker)
    assert sink.open() == 7
    send(sink, b"one", b"two")
    assert broker.committed == [
        (("cursor", 0), b"node"),
        (("target", 0), b"one"),
        (("cursor", 0), b"after-one"),
        (("target", 0), b"two"),
        (("cursor", 0), b"after-two"),
    ]
    assert broker.open == []
    assert broker.aborts == 2


def test_what_is_left_in_a_partition_that_the_first_unit_did_not_reach_is_not_committed_either() -> None:
    broker = Broker(partitions=3)
    broker.open = [(("target", n), b"left") for n in range(3)] + [(("other", 0), b"left")]
    sink = sink_on(broker)
    sink.open()
    names = [b"%d" % n for n in range(9)]
    send(sink, *names)
    assert broker.values() == names
    assert broker.aborts == 4  # one for the barrier, one for each partition
    sink.send(
        [Outgoing("other", None, b"another target", (), 0)], Outgoing("cursor", b"0", b"m", (), 0), lambda _: None
    )
    assert broker.values() == [*names, b"another target"]
    assert broker.open == []
