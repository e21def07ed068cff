"""The broker that the other tests rely on: settings hold, transactions fence, kills lose nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.broker import stop
from tests.kafka.cluster import Cluster
from tests.kafka.conftest import make_topic
from tests.kafka.jars import WrongJar, check
from tests.kafka.reading import ANSWER_TIMEOUT_S, read
from tests.support import REPO

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
pytest.importorskip("confluent_kafka.admin")


def producer(bootstrap: str, **settings: Any) -> Any:
    return confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **settings})


def produce(sender: Any, topic: str, *values: bytes, **options: Any) -> None:
    """Produce and wait for every delivery."""
    errors: list[Any] = []
    for value in values:
        sender.produce(topic, value, on_delivery=lambda error, _: errors.append(error), **options)
    assert sender.flush(ANSWER_TIMEOUT_S) == 0
    assert errors == [None] * len(values)


def values(bootstrap: str, topic: str, **options: Any) -> list[bytes]:
    return [message.value() for message in read(bootstrap, topic, **options)]


def test_a_topic_has_the_settings_it_was_made_with(kafka: str, topic: Callable[..., str]) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    produce(producer(kafka), name, b"x", timestamp=1_000)
    ((kind, stamp_ms),) = [message.timestamp() for message in read(kafka, name)]
    assert kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME
    assert before_ms - 1_000 <= stamp_ms <= time.time_ns() // 1_000_000 + 1_000


def test_a_compacted_topic_keeps_the_last_value_of_a_key(kafka: str, topic: Callable[..., str]) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    name = topic(**settings, **{"max.compaction.lag.ms": "100"})
    sender = producer(kafka)
    give_up = time.monotonic() + ANSWER_TIMEOUT_S
    for number in range(10_000):
        produce(sender, name, b"%d" % number, key=b"0")
        kept = values(kafka, name)
        assert kept[-1] == b"%d" % number
        if len(kept) <= number:
            return
        assert time.monotonic() < give_up, kept
        time.sleep(0.2)


def test_read_committed_hides_what_was_aborted(kafka: str, topic: Callable[..., str]) -> None:
    name = topic()
    sender = producer(kafka, **{"transactional.id": name})
    sender.init_transactions(ANSWER_TIMEOUT_S)
    for value, end in [(b"kept", sender.commit_transaction), (b"aborted", sender.abort_transaction)]:
        sender.begin_transaction()
        produce(sender, name, value)
        end(ANSWER_TIMEOUT_S)
    assert values(kafka, name) == [b"kept"]
    assert values(kafka, name, isolation="read_uncommitted") == [b"kept", b"aborted"]


def test_a_second_producer_of_one_transactional_id_fences_the_first(kafka: str, topic: Callable[..., str]) -> None:
    name = topic()
    first, second = (producer(kafka, **{"transactional.id": name}) for _ in range(2))
    first.init_transactions(ANSWER_TIMEOUT_S)
    first.begin_transaction()
    produce(first, name, b"first")
    second.init_transactions(ANSWER_TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        first.commit_transaction(ANSWER_TIMEOUT_S)
    assert raised.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert raised.value.args[0].fatal()
    second.begin_transaction()
    produce(second, name, b"second")
    second.commit_transaction(ANSWER_TIMEOUT_S)
    assert values(kafka, name) == [b"second"]


def test_a_killed_and_a_paused_broker_come_back_with_what_was_committed(cluster: Callable[..., Cluster]) -> None:
    one = cluster()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": one.bootstrap})
    name = make_topic(admin, "kept")
    sender = producer(one.bootstrap, **{"transactional.id": "kept"})
    sender.init_transactions(ANSWER_TIMEOUT_S)
    sender.begin_transaction()
    produce(sender, name, b"committed")
    sender.commit_transaction(ANSWER_TIMEOUT_S)
    sender.begin_transaction()
    produce(sender, name, b"open")
    one.kill()
    one.start()
    after = producer(one.bootstrap, **{"transactional.id": "kept"})
    after.init_transactions(ANSWER_TIMEOUT_S)
    assert values(one.bootstrap, name) == [b"committed"]

    one.pause()
    after.begin_transaction()
    delivered: list[Any] = []
    after.produce(name, b"paused", on_delivery=lambda error, _: delivered.append(error))
    after.poll(0.5)
    assert delivered == []
    one.resume()
    after.commit_transaction(ANSWER_TIMEOUT_S)
    assert delivered == [None]
    assert values(one.bootstrap, name) == [b"committed", b"paused"]


def test_a_jar_that_differs_from_its_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"a")
    expected = {"a.jar": hashlib.sha256(b"a").hexdigest()}
    check(tmp_path, expected)
    (tmp_path / "a.jar").write_bytes(b"b")
    with pytest.raises(WrongJar, match="a.jar has SHA-256"):
        check(tmp_path, expected)
    (tmp_path / "b.jar").write_bytes(b"b")
    with pytest.raises(WrongJar, match="b.jar"):
        check(tmp_path, expected)


def test_a_process_that_starts_a_shared_broker_ends_without_a_warning_and_the_broker_outlives_it(
    can_run_kafka: None, tmp_path: Path
) -> None:
    code = "import sys, pathlib; from tests.kafka.broker import launch; print(launch(pathlib.Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=120,
    )
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "bootstrap").read_text() == done.stdout.strip()
    finally:
        stop(tmp_path)
    assert not (tmp_path / "bootstrap").exists()
