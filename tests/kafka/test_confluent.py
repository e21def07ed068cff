"""The seam on a real broker: what the service relies on, and what it says when something is missing."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from filewheel import Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.errors import ClusterError, MissingTopic, NoBroker
from filewheel.kafka.assemble import delay_service
from filewheel.kafka.client.confluent import ConfluentTransport
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.service import DelayService
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import End, Sink, UnitOutcome
from filewheel.kafka.records.last_read import NO_EPOCH
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing
from tests.kafka.conftest import make_topic
from tests.kafka.hands import Disk, Rendering, understand
from tests.support import eventually

BOTH = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
SESSION_S = 3.0
STAMPED = {"message.timestamp.type": "LogAppendTime"}


@dataclass
class Place:
    """The topics of one test."""

    bootstrap: str
    topic: str
    target: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)

    def transport(self, *, exactly_once: bool = False, node: str = "node") -> ConfluentTransport:
        return ConfluentTransport(
            {"bootstrap.servers": self.bootstrap, **self.config},
            Policy(self.topic),
            group=f"{self.topic}.group",
            node=node,
            exactly_once=exactly_once,
            session_s=SESSION_S,
        )

    def put(self, names: list[bytes], *, after_ms: int = 0) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap})
        due_ms = SYSTEM_CLOCK.now_us() // 1000 + after_ms
        for n, name in enumerate(names):
            producer.produce(self.topic, name, partition=n % self.partitions, headers=[("due-ms", b"%d" % due_ms)])
        assert producer.flush(30) == 0

    def seen(self, topic: str, count: int, *, timeout_s: float = 90.0) -> Counter[bytes]:
        """Return what a committed reader finds in partition 0 of a topic, once it is `count` records and the end."""
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        reader.assign([TopicPartition(topic, 0, 0)])
        found: Counter[bytes] = Counter()
        until = SYSTEM_CLOCK.steady_us() + timeout_s * 1e6
        try:
            while SYSTEM_CLOCK.steady_us() < until:
                for message in reader.consume(1000, 0.2):
                    if message.error() is None:
                        found[message.value() or b""] += 1
                    elif found.total() >= count:
                        return found
            return found
        finally:
            reader.close()


@pytest.fixture
def place(kafka: str) -> Iterator[Callable[..., Place]]:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka})
    made: list[str] = []

    def make(partitions: int = 1, cursors: int | None = None) -> Place:
        name = f"t-{uuid.uuid4().hex[:12]}"
        for topic, count, config in (
            (name, partitions, {}),
            (f"{name}.cursor", cursors or partitions, {"cleanup.policy": "compact", **STAMPED}),
            (f"{name}.dlt", 1, {}),
            (f"{name}.target", 1, {"max.message.bytes": "20000"}),
        ):
            made.append(make_topic(admin, topic, count, config=config))
        return Place(kafka, name, f"{name}.target", partitions)

    yield make
    for done in admin.delete_topics(made).values() if made else ():
        done.result(30)


class Targeting(Rendering):
    """Everything goes to one topic."""

    def __init__(self, place: Place, topic_id: str) -> None:
        super().__init__(place.topic, topic_id)
        self.target = place.target

    def outgoing(self, partition: int, messages: Any, fired_ms: int) -> list[Outgoing]:
        return [Outgoing(self.target, None, message.payload) for message in messages]


class Running:
    """A service in threads of its own."""

    def __init__(self, place: Place, *, exactly_once: bool, node: str, standby: bool = False) -> None:
        transport = place.transport(exactly_once=exactly_once, node=node)
        topics = transport.check()
        self.disk = Disk()
        settings = NodeSettings(exactly_once=exactly_once, session_s=SESSION_S, standby="all" if standby else "none")
        self.service = DelayService(
            transport, self.disk.open, Targeting(place, topics.topic_id), understand, settings, topics=topics
        )
        self.thread = threading.Thread(target=self.service.run)
        self.thread.start()

    def active(self) -> int:
        return sum(status.state is PartitionState.ACTIVE for status in self.service.status())

    def stop(self) -> None:
        self.service.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def sent(sink: Sink, records: list[Outgoing], marker: Outgoing) -> UnitOutcome:
    """Send a unit and wait for its outcome."""
    outcomes: list[UnitOutcome] = []
    done = threading.Event()

    def end(outcome: UnitOutcome) -> None:
        outcomes.append(outcome)
        done.set()

    sink.send(records, marker, end)
    assert done.wait(60)
    return outcomes[0]


def marker_of(place: Place, value: bytes) -> Outgoing:
    return Outgoing(f"{place.topic}.cursor", b"0", value, (), 0)


@pytest.mark.parametrize(
    ("exactly_once", "protocol"),
    [(False, "classic"), (True, "classic"), (True, "consumer")],
    ids=["at-least-once", "exactly-once", "exactly-once, partitions assigned by the broker"],
)
def test_each_record_goes_out_once_and_the_next_node_goes_on(
    place: Callable[..., Place], exactly_once: bool, protocol: str
) -> None:
    here = place(2)
    here.config = {"group.protocol": protocol}
    names = [b"%d" % n for n in range(50)]
    here.put(names[:25])
    first = Running(here, exactly_once=exactly_once, node="first")
    try:
        assert here.seen(here.target, 25) == Counter(names[:25])
        second = Running(here, exactly_once=exactly_once, node="second")
        try:
            eventually(lambda: first.active() == second.active() == 1, timeout_s=90)
            here.put(names[25:])
            assert here.seen(here.target, 50) == Counter(names)
        finally:
            second.stop()
        eventually(lambda: first.active() == 2, timeout_s=90)
    finally:
        first.stop()
    assert here.seen(here.target, 50) == Counter(names)


@BOTH
def test_the_marker_is_read_behind_the_barrier(place: Callable[..., Place], exactly_once: bool) -> None:
    here = place()
    transport = here.transport(exactly_once=exactly_once)
    sink = transport.sink(0)
    assert transport.markers().read(0, sink.open()) is None
    for n in range(100):
        assert sent(sink, [Outgoing(here.target, None, b"x")], marker_of(here, b"%d" % n)).end is End.DELIVERED
    assert transport.markers().read(0, transport.sink(0).open()) == b"99"
    assert transport.markers().last(0) == b"99"
    transport.close()


def test_a_sink_whose_successor_is_open_commits_nothing(place: Callable[..., Place]) -> None:
    here = place()
    one, two = here.transport(exactly_once=True), here.transport(exactly_once=True)
    old, new = one.sink(0), two.sink(0)
    old.open()
    new.open()
    assert sent(old, [Outgoing(here.target, None, b"old")], marker_of(here, b"old")).end is End.FENCED
    assert sent(new, [Outgoing(here.target, None, b"new")], marker_of(here, b"new")).end is End.DELIVERED
    assert here.seen(here.target, 1) == Counter([b"new"])
    assert two.markers().last(0) == b"new"
    one.close()
    two.close()


@BOTH
def test_only_the_record_that_is_too_large_and_the_one_without_a_topic_are_refused(
    place: Callable[..., Place], exactly_once: bool
) -> None:
    here = place()
    transport = here.transport(exactly_once=exactly_once)
    sink = transport.sink(0)
    sink.open()
    records = [
        Outgoing(here.target, None, b"small"),
        Outgoing(here.target, None, b"x" * 30_000),
        *(Outgoing(here.target, None, b"%04d" % n * 2000) for n in range(5)),  # together too large for one batch
        Outgoing(f"{here.topic}.absent", None, b"lost"),
    ]
    left = list(range(len(records)))
    refused: dict[int, bool] = {}
    for _ in range(5):
        outcome = sent(sink, [records[n] for n in left], marker_of(here, b"done"))
        if outcome.end is End.DELIVERED:
            break
        assert outcome.end is End.REFUSED
        refused.update({left[n]: refusal.is_lasting for n, refusal in outcome.refused.items()})
        left = [left[n] for n in sorted(outcome.left) if left[n] not in refused]
    assert refused == {1: True, 7: False}
    assert here.seen(here.target, 6) == Counter(r.value for n, r in enumerate(records) if n not in refused)
    transport.close()


def test_a_log_that_lost_its_first_records_says_so(place: Callable[..., Place]) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    here = place()
    here.put([b"%d" % n for n in range(10)])
    admin = AdminClient({"bootstrap.servers": here.bootstrap})
    for done in admin.delete_records([TopicPartition(here.topic, 0, 4)]).values():
        done.result(30)
    transport = here.transport()
    assert transport.range_of(0) == (4, 10)
    follower = transport.follower()
    follower.follow({0: (2, NO_EPOCH)})
    gone: list[int] = []
    eventually(lambda: gone.extend(follower.poll(10, 0.1)[0].gone) or gone == [0], timeout_s=90)
    follower.close()
    transport.close()


def test_what_is_missing_is_named_with_the_command_that_makes_it(place: Callable[..., Place]) -> None:
    here = place(partitions=3, cursors=2)
    with pytest.raises(MissingTopic, match=r"\.cursor has 2 partitions, and .* has 3.*filewheel kafka init"):
        here.transport().check()
    absent = Place(here.bootstrap, "t-absent", "", 1)
    with pytest.raises(
        MissingTopic, match="there is no topic t-absent. Try: `filewheel kafka init .*--topic t-absent`"
    ):
        absent.transport().check()


def test_an_address_without_a_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    monkeypatch.setattr("filewheel.kafka.client.clients.ANSWER_S", 0.5)
    with pytest.raises(NoBroker, match="127.0.0.1:9: .*check the address"):
        Place("127.0.0.1:9", "t", "", 1).transport().check()


@BOTH
def test_a_standby_takes_over_from_a_node_that_stopped(place: Callable[..., Place], exactly_once: bool) -> None:
    here = place(2)
    names = [b"%d" % n for n in range(20)]
    first = Running(here, exactly_once=exactly_once, node="first", standby=True)
    second = Running(here, exactly_once=exactly_once, node="second", standby=True)
    try:
        eventually(lambda: first.active() == second.active() == 1, timeout_s=90)
        here.put(names, after_ms=3000)
        eventually(
            lambda: all(sum(len(w.pending) for w in node.disk.wheels.values()) == 20 for node in (first, second)),
            timeout_s=30,
        )
        first.stop()
        assert here.seen(here.target, 20) == Counter(names)
    finally:
        first.service.stop()
        second.stop()


@BOTH
def test_a_service_with_wheels_on_disk_goes_on_where_it_stopped(
    place: Callable[..., Place], exactly_once: bool, tmp_path: Path
) -> None:
    here = place()
    due_ms = SYSTEM_CLOCK.now_us() // 1000
    headers = [("scheduler-target-topic", here.target.encode())]

    def run(records: list[tuple[bytes, int]], seen: Counter[bytes]) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": here.bootstrap})
        for name, after_ms in records:
            due = ("filewheel-due-ms", b"%d" % (due_ms + after_ms))
            producer.produce(here.topic, name, headers=[*headers, due])
        producer.produce(here.topic, b"bad")
        assert producer.flush(30) == 0
        service = delay_service(
            {"bootstrap.servers": here.bootstrap},
            Policy(here.topic),
            tmp_path,
            group=here.topic,
            node="node",
            settings=NodeSettings(exactly_once=exactly_once, session_s=SESSION_S),
        )
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            assert here.seen(here.target, seen.total()) == seen
        finally:
            service.stop()
            thread.join(60)

    late_ms = 20_000
    run([(b"one", 0), (b"late", late_ms)], Counter([b"one"]))
    run([(b"two", 0)], Counter([b"one", b"two"]))
    assert here.seen(f"{here.topic}.dlt", 2) == Counter([b"bad", b"bad"])
    with Wheel(tmp_path / here.topic / "0") as wheel:
        assert [message.due_us for message in wheel.list()] == [(due_ms + late_ms) * 1000]


def test_the_watch_learns_where_a_log_begins_how_long_it_is_kept_and_when_a_record_was_written(
    place: Callable[..., Place],
) -> None:
    found = place(2)
    before_ms = SYSTEM_CLOCK.now_us() // 1000
    found.put([b"a", b"b", b"c"], after_ms=60_000)  # two in partition 0
    transport = found.transport()
    try:
        assert transport.ranges([0, 1]) == {0: (0, 2), 1: (0, 1)}
        assert transport.retention_ms() == 7 * 86_400_000
        stamp_ms = transport.timestamp_at(0, 1)
        assert stamp_ms is not None
        assert before_ms - 1000 < stamp_ms <= SYSTEM_CLOCK.now_us() // 1000 + 1000
        assert transport.timestamp_at(0, 2) is None
        absent = ConfluentTransport({"bootstrap.servers": found.bootstrap}, Policy("no-such"), group="g", node="n")
        with pytest.raises(ClusterError):
            absent.ranges([0])
        absent.close()
    finally:
        transport.close()


def test_a_probe_has_the_broker_s_time_where_the_topic_keeps_it(
    place: Callable[..., Place], topic: Callable[..., str]
) -> None:
    where = place()
    transport = where.transport()
    before_ms = SYSTEM_CLOCK.now_us() // 1000
    stamp_ms = transport.stamp()
    assert stamp_ms is not None
    assert before_ms <= stamp_ms <= SYSTEM_CLOCK.now_us() // 1000  # the broker is on this machine
    transport.cursor = topic()
    assert transport.stamp() is None
    transport.close()
