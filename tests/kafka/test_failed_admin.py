"""An administrator's client that fails may fail for good, so it is replaced: a broker that was killed must not leave a
partition without an owner for ever.

The campaign on three brokers found it: after a leader's restart one client answered FENCED_LEADER_EPOCH to each
question about one partition, and the take-over was tried again with the same client until the node ended.
"""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.admin import Admin
from filewheel.kafka.client.log_watcher import LogWatcher
from filewheel.kafka.client.reader import LogReader
from tests.support import FakeClock

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
READING = {**CONFIG, "group.id": "nobody"}


class Fenced:
    """A client; the first one has the old epoch of the leader for good."""

    made: list[Any]

    def __init__(self, config: Any, **more: Any) -> None:
        self.made.append(self)
        self.is_fenced = len(self.made) == 1
        self.listed = 0

    def fail(self) -> None:
        if self.is_fenced:
            kafka = pytest.importorskip("confluent_kafka")
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.FENCED_LEADER_EPOCH))

    def get_watermark_offsets(self, where: Any, timeout: float) -> tuple[int, int]:
        self.fail()
        return (3, 7)

    def list_topics(self, timeout: float) -> None:
        self.listed += 1

    def describe_configs(self, asked: list[Any], **more: Any) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        try:
            self.fail()
            future.set_result({"retention.ms": SimpleNamespace(value="9")})
        except Exception as exc:
            future.set_exception(exc)
        return dict.fromkeys(asked, future)

    def close(self) -> None: ...


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put such clients in the place of the real ones; return those that were made."""
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    kind = type("Fenced", (Fenced,), {"made": []})
    monkeypatch.setattr(kafka, "Consumer", kind)
    monkeypatch.setattr(pytest.importorskip("confluent_kafka.admin"), "AdminClient", kind)
    return kind.made  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def reader(clients: list[Any]) -> LogReader:
    return LogReader(READING, "delay.cursor")


def test_a_takeover_that_failed_asks_for_the_log_s_end_with_a_new_client(clients: list[Any], reader: LogReader) -> None:
    with pytest.raises(ClusterError, match="epoch"):
        reader.range_of("delay", 0)
    assert reader.range_of("delay", 0) == (3, 7)
    assert reader.range_of("delay", 0) == (3, 7)
    assert len(clients) == 2


def answers(monkeypatch: pytest.MonkeyPatch, said: str) -> Admin:
    """Return a client that no broker answers, after one said why it ends the connection."""
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    admin = pytest.importorskip("confluent_kafka.admin")

    class Silent:
        def __init__(self, config: Any, **more: Any) -> None:
            self.heard = config["error_cb"]

        def list_topics(self, timeout: float) -> Any:
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TRANSPORT))

        def poll(self, timeout: float) -> None:
            self.heard(kafka.KafkaError(kafka.KafkaError._AUTHENTICATION, said))

    monkeypatch.setattr(admin, "AdminClient", Silent)
    return Admin(CONFIG)


def test_a_user_that_the_brokers_refuse_is_not_taken_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "sasl_ssl://x:1/1: SASL authentication error: Authentication failed: no (after 30ms in state AUTH_REQ)"
    with pytest.raises(
        NotAllowed, match=r"^x:1: SASL authentication error: Authentication failed: no\. Try: check sasl"
    ):
        answers(monkeypatch, said).topics("x:1", 60)


def test_a_connection_that_ends_while_it_logs_in_is_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "sasl_ssl://x:1/1: SASL PLAIN mechanism handshake failed: Local: Broker transport failure"
    with pytest.raises(NoBroker, match="check the address"):
        answers(monkeypatch, said).topics("x:1", 0.01)


def test_the_watch_of_the_log_goes_on_with_a_new_client(clients: list[Any], reader: LogReader) -> None:
    places = [("delay", 0), ("delay", 1)]
    assert reader.ranges(places) == {("delay", 1): (3, 7)}
    assert reader.ranges(places) == dict.fromkeys(places, (3, 7))
    assert len(clients) == 2


def test_an_administrator_s_client_that_failed_is_replaced(clients: list[Any]) -> None:
    watcher = LogWatcher(READING, Admin(CONFIG), "delay")
    with pytest.raises(ClusterError, match="epoch"):
        watcher.retention_ms()
    assert watcher.retention_ms() == 9
    assert len(clients) == 2


def test_the_retention_is_asked_for_once_a_minute_and_of_the_controller_of_now(clients: list[Any]) -> None:
    clock = FakeClock(0)
    clients.append("the one with the old epoch")
    watcher = LogWatcher(READING, Admin(CONFIG), "delay", clock)
    for _ in range(5):
        assert watcher.retention_ms() == 9
        clock.advance(15)
    assert [client.listed for client in clients[1:]] == [2]


def slow(kind: type[Any], clock: FakeClock, waits: list[float]) -> Any:
    """Return a client of which no question about a log's end has an answer in time."""

    def get_watermark_offsets(self: Any, where: Any, timeout: float) -> Any:
        kafka = pytest.importorskip("confluent_kafka")
        clock.advance(timeout)
        waits.append(timeout)
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT))

    def list_topics(self: Any, topic: str, timeout: float) -> None:
        looked.append(topic)

    looked: list[str] = []
    more = {"get_watermark_offsets": get_watermark_offsets, "list_topics": list_topics, "looked": looked}
    return type("Slow", (kind,), {**more, "made": []})


def test_an_end_that_the_brokers_do_not_say_in_time_is_an_error_also_of_many_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    clock, waits = FakeClock(0), list[float]()
    monkeypatch.setattr(kafka, "Consumer", kind := slow(Fenced, clock, waits))
    reader = LogReader(READING, "delay.cursor", clock)
    with pytest.raises(NoBroker):
        reader.range_of("delay", 0)
    assert waits == [1, 2, 4, 3]
    assert kind.looked == ["delay"] * 3  # the leader may be another one by now
    waits.clear()
    with pytest.raises(NoBroker):
        reader.ranges([("delay", partition) for partition in range(50)])
    assert sum(waits) == 10
    reader.interrupt()
    waits.clear()
    with pytest.raises(NoBroker):
        reader.range_of("delay", 0)
    assert waits == [1]


def test_partitions_that_had_no_answer_do_not_keep_the_others_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    clock = FakeClock(0)

    def range_of(topic: str, partition: int, limit_s: float) -> tuple[int, int]:
        if partition < 20:
            clock.advance(limit_s)
            raise NoBroker("no answer", hint="call again")
        return 0, partition

    reader = LogReader(READING, "delay.cursor", clock)
    monkeypatch.setattr(reader, "range_of", range_of)
    for _ in range(5):
        try:
            found = reader.ranges([("delay", partition) for partition in range(40)])
        except NoBroker:
            continue
    assert found == {("delay", partition): (0, partition) for partition in range(20, 40)}
