"""An administrator's client that fails may fail for good, so it is replaced: a broker that was killed must not leave a
partition without an owner for ever.

The campaign on three brokers found it: after a leader's restart one client answered FENCED_LEADER_EPOCH to each
question about one partition, and the take-over was tried again with the same client until the node ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from filewheel.errors import ClusterError, NoBroker, NotAllowed
from filewheel.kafka.client.admin import Admin
from filewheel.kafka.client.log_watcher import LogWatcher
from filewheel.kafka.client.reader import LogReader

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
READING = {**CONFIG, "group.id": "nobody"}


@pytest.fixture
def admins(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let the first client have the old epoch of the leader for good; return the clients that were made."""
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    admin = pytest.importorskip("confluent_kafka.admin")
    made: list[Any] = []

    class Fenced:
        def __init__(self, config: Any, **more: Any) -> None:
            made.append(self)
            self.is_fenced = len(made) == 1

        def list_offsets(self, asked: dict[Any, Any], **more: Any) -> dict[Any, Future[Any]]:
            return {where: self.answer() for where in asked}

        def answer(self) -> Future[Any]:
            future: Future[Any] = Future()
            if self.is_fenced:
                error = confluent_kafka.KafkaError(confluent_kafka.KafkaError.FENCED_LEADER_EPOCH)
                future.set_exception(confluent_kafka.KafkaException(error))
            else:
                future.set_result(SimpleNamespace(offset=7))
            return future

    monkeypatch.setattr(admin, "AdminClient", Fenced)
    return made


@pytest.fixture
def reader(admins: list[Any]) -> Iterator[LogReader]:
    reader = LogReader(READING, Admin(CONFIG), "delay.cursor")
    yield reader
    reader.close()


def test_a_takeover_that_failed_asks_for_the_log_s_end_with_a_new_client(admins: list[Any], reader: LogReader) -> None:
    with pytest.raises(ClusterError, match="epoch"):
        reader.range_of("delay", 0)
    assert reader.range_of("delay", 0) == (7, 7)
    assert reader.range_of("delay", 0) == (7, 7)
    assert len(admins) == 2


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


def test_the_watch_of_the_log_goes_on_with_a_new_client(admins: list[Any]) -> None:
    watcher = LogWatcher(READING, Admin(CONFIG), "delay")
    with pytest.raises(ClusterError, match="epoch"):
        watcher.ranges([0, 1])
    assert watcher.ranges([0, 1]) == {0: (7, 7), 1: (7, 7)}
    assert watcher.ranges([0]) == {0: (7, 7)}
    assert len(admins) == 2
