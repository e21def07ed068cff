"""A delay topic, one of a level, or one of calls that is deleted and made anew on a real broker while it is read.

The new one has another id, the same name, and the first epoch again. More of it in memory: test_watchdog.py,
test_levels.py and test_call_watchdog.py.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from filewheel.errors import WrongSource
from filewheel.kafka import KafkaScheduler, Policy, level_service, make_level_topics, make_topics, parse_levels
from filewheel.kafka.node import topic_look
from tests.kafka.conftest import ANSWER_TIMEOUT_S
from tests.kafka.live import WAIT_S, Live
from tests.support import eventually, some


@pytest.mark.parametrize("count", some([3, 40], one_of=2), ids={3: "shorter than what was read", 40: "longer"}.get)
def test_a_topic_that_is_made_anew_ends_the_node_and_all_of_it_goes_out_afterwards(
    kafka: str, tmp_path: Path, count: int
) -> None:
    live = Live(kafka)
    old, new = [b"old %d" % n for n in range(20)], [b"new %d" % n for n in range(count)]
    live.put(*old)
    with pytest.raises(WrongSource, match="was deleted and made anew"), live.node(tmp_path) as service:
        live.wait_for(*old)
        live.make_anew()
        live.put(*new, after_ms=1000)
        eventually(service._stop.is_set, timeout_s=WAIT_S)
    for done in live.admin.delete_topics([f"{live.topic}.cursor"]).values():
        done.result(ANSWER_TIMEOUT_S)
    shutil.rmtree(tmp_path)
    make_topics(live.config, Policy(live.topic), partitions=1)
    with live.node(tmp_path):
        eventually(lambda: set(new) <= set(live.delivered()), timeout_s=WAIT_S)


def test_a_level_that_is_made_anew_ends_the_service_and_the_next_one_forwards_all_of_it(kafka: str) -> None:
    live = Live(kafka)
    levels = parse_levels("100ms")
    make_level_topics(live.config, live.topic, levels, partitions=1)
    live.topic = levels[0].topic(live.topic)
    base = live.topic.removesuffix(".100ms")

    def serve(*names: bytes, failures: list[BaseException]) -> None:
        service = level_service(live.config, base, levels, group=f"{base}.levels", node="a", default_target=live.target)

        def run() -> None:
            try:
                service.run()
            except WrongSource as exc:
                failures.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            eventually(lambda: set(names) <= set(live.delivered()), timeout_s=WAIT_S)
            if b"old 0" in names:
                live.make_anew()
                live.put(*new)
                eventually(lambda: failures, timeout_s=WAIT_S)
        finally:
            service.stop()
            thread.join(WAIT_S)
        assert not thread.is_alive()

    old, new = [b"old %d" % n for n in range(20)], [b"new %d" % n for n in range(40)]
    live.put(*old)
    failed: list[BaseException] = []
    serve(*old, failures=failed)
    assert "was deleted and made anew" in str(failed[0])
    serve(*new, failures=[])


@pytest.mark.parametrize("count", [3, 60], ids=["shorter than what was read", "longer"])
@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_topic_of_calls_that_is_made_anew_ends_the_worker_and_all_of_it_is_called_afterwards(
    kafka: str, count: int, exactly_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_look, "LOOK_S", 1.0)
    live = Live(kafka)
    seen: list[str] = []
    delays, calls = live.topic, f"{live.topic}.calls"

    def a_scheduler() -> KafkaScheduler:
        scheduler = KafkaScheduler(kafka, topic=delays, calls=calls, exactly_once=exactly_once, name="one", session_s=6)
        scheduler.on("note")(seen.append)
        return scheduler

    scheduler = a_scheduler()
    scheduler.make_topics(partitions=1)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            scheduler.run()
        except WrongSource as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    for n in range(20):
        scheduler.enqueue("note", [f"old {n}"])
    eventually(lambda: len(seen) >= 20, timeout_s=WAIT_S)
    live.topic = calls
    live.make_anew()
    producer = a_scheduler()
    for n in range(count):
        producer.enqueue("note", [f"new {n}"])
    thread.join(WAIT_S)
    assert "was deleted and made anew" in str(failures[0])
    scheduler.stop()
    producer.start()
    try:
        eventually(lambda: {f"new {n}" for n in range(count)} <= set(seen), timeout_s=WAIT_S)
    finally:
        producer.stop()
