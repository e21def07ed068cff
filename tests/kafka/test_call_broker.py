"""The scheduler on a real broker: its page, and exactly once while workers come and go."""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from filewheel import MissingTopic, Retry
from filewheel.env import SYSTEM_CLOCK
from filewheel.kafka import KafkaScheduler
from filewheel.message import US_PER_S
from tests.kafka.live import WAIT_S, Live
from tests.kafka.reading import read
from tests.project.test_docs import filewheel, run_blocks, shell
from tests.support import REPO, eventually

__all__ = ["filewheel", "shell"]

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")


def test_every_block_of_the_page_on_the_scheduler_runs(kafka: str, tmp_path: Path, shell: dict[str, str]) -> None:
    """It kills a worker in the middle of a call, which then runs again on another."""
    text = (REPO / "docs" / "kafka-scheduler.md").read_text(encoding="utf-8").replace("localhost:9092", kafka)
    run = uuid.uuid4().hex[:8]
    for word in ("--topic jobs", '"jobs"', '"calls"'):  # other tests share the broker
        text = text.replace(word, re.sub("(jobs|calls)", rf"\1-{run}", word))
    run_blocks(text, tmp_path, shell)


def committed_values(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """Return the values that a committed reader of a topic has now."""
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    )
    reader.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in range(partitions)])
    found: list[bytes] = []
    left = partitions
    try:
        while left:
            message = reader.poll(30)
            assert message is not None
            if message.error() is None:
                found.append(message.value())
            else:
                left -= 1
    finally:
        reader.close()
    return found


def test_exactly_once_each_outcome_exists_once_though_workers_come_and_go(
    kafka: str, topic: Callable[..., str]
) -> None:
    delays, calls = topic(2), topic(4, suffix=".calls")
    ran: Counter[int] = Counter()
    lock = threading.Lock()

    def a_worker(name: str) -> KafkaScheduler:
        scheduler = KafkaScheduler(kafka, topic=delays, calls=calls, exactly_once=True, name=name, session_s=6)

        @scheduler.on("fails", retry=Retry(delay_s=100_000))
        def fails(n: int) -> None:
            with lock:
                ran[n] += 1
            raise ValueError

        return scheduler

    first, second = a_worker("one"), a_worker("two")
    assert [(report.partitions, report.is_new) for report in first.make_topics()] == [(4, False), (1, True)]
    first.start()
    for n in range(60):
        first.enqueue("fails", [n])
    eventually(lambda: len(ran) >= 20, timeout_s=60)
    second.start()
    for n in range(60, 120):
        first.enqueue("fails", [n])
    eventually(lambda: len(ran) >= 90, timeout_s=60)
    first.stop()
    eventually(lambda: len(ran) == 120, timeout_s=60)

    def outcomes() -> Counter[int]:
        return Counter(msgpack.unpackb(value)[0][0] for value in committed_values(kafka, delays, 2))

    eventually(lambda: len(outcomes()) == 120, timeout_s=60)
    second.stop()
    assert set(outcomes().values()) == {1}


def test_an_occurrence_that_comes_due_while_its_node_is_away_is_called_though_another_worker_joins(
    kafka: str, tmp_path: Path
) -> None:
    live = Live(kafka, keyed=True)
    calls = f"{live.topic}.calls"
    start_s = SYSTEM_CLOCK.now_us() / US_PER_S + 20
    called: list[int] = []

    def a_worker() -> KafkaScheduler:
        scheduler = KafkaScheduler(kafka, topic=live.topic, calls=calls, keyed=True, session_s=6)
        scheduler.every(86_400, name="daily", start=start_s)(scheduler.on("daily")(lambda: called.append(1)))
        return scheduler

    first, second = a_worker(), a_worker()
    first.make_topics(partitions=2)
    with live.node(tmp_path / "a") as service:
        first.start()
        eventually(lambda: service.status() and service.status()[0].ingested, timeout_s=WAIT_S)
        first.stop()
    eventually(lambda: SYSTEM_CLOCK.now_us() / US_PER_S > start_s + 0.5)
    second.start()  # it is given partitions, and produces the occurrence of tomorrow
    eventually(lambda: len(read(kafka, live.topic)) >= 2, timeout_s=WAIT_S)
    assert not called
    with live.node(tmp_path / "a"):
        eventually(lambda: called, timeout_s=WAIT_S)
        eventually(lambda: len(read(kafka, live.topic)) >= 3, timeout_s=WAIT_S)
    second.stop()
    assert called == [1]
    dues = [int(dict(message.headers())["filewheel-due-ms"]) for message in read(kafka, live.topic)]
    assert dues[-1] == dues[0] + 86_400_000


def test_a_missing_topic_is_named_with_the_next_command(kafka: str, topic: Callable[..., str]) -> None:
    delays, calls = topic(), f"absent-{uuid.uuid4().hex[:8]}"
    scheduler = KafkaScheduler(kafka, topic=delays, calls=calls)
    with pytest.raises(MissingTopic, match=calls) as raised:
        scheduler.start()
    assert "make_topics" in str(raised.value.hint)
    scheduler.stop()
