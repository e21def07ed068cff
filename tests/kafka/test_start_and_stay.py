"""A node that starts before its brokers, shares its data with nobody, and learns of partitions that are added."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from filewheel.errors import Locked, MissingTopic, NoBroker
from filewheel.kafka import assemble
from filewheel.kafka.node.service import DelayService
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import Topics
from filewheel.kafka.partition.data_lock import DataLock
from tests.kafka.fake import Cluster, FakeTransport, Log
from tests.kafka.hands import Disk, Hands, Rendering, understand
from tests.support import FakeClock

ROOT = Path(__file__).parents[2]
needs_client = pytest.mark.usefixtures("client")


@pytest.fixture
def client() -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'filewheel[kafka]'")


@needs_client
def test_a_question_that_the_client_never_answers_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel.kafka.client import admin

    monkeypatch.setattr(admin, "LIMIT_S", 0.01)
    asked = admin.Admin({"bootstrap.servers": "127.0.0.1:1"})
    with pytest.raises(NoBroker, match=r"delay: no answer after 0\.01 s"):
        asked.answer("delay", Future())


@needs_client
def test_a_question_that_waits_ends_when_the_service_stops_and_its_client_is_never_freed() -> None:
    from filewheel.kafka.client import admin

    asked = admin.Admin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    question: Future[Any] = Future()
    asked.ask("delay", lambda client: {0: question})
    client = weakref.ref(asked._made)
    threading.Timer(0.1, asked.interrupt).start()
    with pytest.raises(NoBroker, match="delay: the service stops"):
        asked.answer("delay", question)
    assert asked._made is None
    gc.collect()
    assert client() is not None
    with pytest.raises(NoBroker):
        asked.answer("delay", Future())


def test_a_node_stops_while_the_brokers_owe_it_an_answer() -> None:
    asked, interrupted = threading.Event(), threading.Event()

    class Silent(FakeTransport):
        def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
            asked.set()
            interrupted.wait(120)
            raise NoBroker("the service stops", hint="call again")

        def interrupt(self) -> None:
            interrupted.set()

    transport = Silent(Cluster(partitions=1))
    service = DelayService(transport, Disk().open, Rendering(), understand, NodeSettings(), topics=transport.check())
    running = threading.Thread(target=service.run)
    running.start()
    try:
        assert asked.wait(60)
        service.stop()
        running.join(30)
        assert not running.is_alive()
    finally:
        interrupted.set()
        running.join()


@needs_client
def test_all_questions_of_a_transport_go_through_one_client() -> None:
    from filewheel.kafka.client.confluent import ConfluentTransport
    from filewheel.kafka.records.options import Policy

    config = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    transport = ConfluentTransport(config, Policy("delay"), group="g", node="n")
    transport.answer_s = 0.01
    with pytest.raises(NoBroker):
        transport.check()
    made = transport._admin._made
    assert made is not None
    with pytest.raises(NoBroker):
        transport.check()
    assert transport._admin._made is made
    assert transport._log_watcher()._admin is transport._admin
    transport.close()


def test_a_node_waits_for_a_broker_and_says_so_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(0)
    monkeypatch.setattr(assemble, "PAUSE_S", 0)

    class Late:
        answer_s = 10.0
        asked = 0

        def check(self) -> Topics:
            self.asked += 1
            clock.advance(self.answer_s + 0.5)
            if self.asked < 30:
                raise NoBroker("127.0.0.1:1: no answer")
            return Topics("c", "t", 3)

    late: Any = Late()
    with caplog.at_level(logging.WARNING, "filewheel.kafka"):
        assert assemble._when_there(late, clock).partitions == 3
    assert [r.getMessage() for r in caplog.records] == ["127.0.0.1:1: no answer; waiting for a broker"] * 3
    assert (late.answer_s, late.asked) == (10.0, 30)


def test_a_missing_topic_is_not_waited_for() -> None:
    class Empty:
        answer_s = 10.0

        def check(self) -> Topics:
            raise MissingTopic("there is no topic delay")

    empty: Any = Empty()
    with pytest.raises(MissingTopic):
        assemble._when_there(empty, FakeClock(0))


@needs_client
def test_a_node_without_a_broker_ends_at_a_sigterm(tmp_path: Path) -> None:
    arguments = ["kafka", "run", "-b", "127.0.0.1:1", "-t", "delays", "-d", str(tmp_path / "data")]
    with subprocess.Popen(
        [sys.executable, "-m", "filewheel", *arguments], stderr=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if b"waiting for a broker" in line:
                    assert b"127.0.0.1:1" in line
                    break
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not (tmp_path / "data").exists()


def test_data_that_another_node_uses_is_refused(tmp_path: Path) -> None:
    held = DataLock(tmp_path / "data", "delays")
    with pytest.raises(Locked, match="another node of the service uses this data"):
        DataLock(tmp_path / "data", "delays")
    DataLock(tmp_path / "data", "other").close()
    held.close()
    DataLock(tmp_path / "data", "delays").close()


def test_a_node_says_nothing_of_an_assignment_that_brings_no_partition(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands(Cluster(partitions=1))
    with caplog.at_level(logging.INFO, "filewheel.kafka"):
        hands.node.owner.assigned([])
        hands.node.owner.revoked([])
    assert [r.getMessage() for r in caplog.records if r.getMessage().startswith("partitions")] == []


def test_a_node_says_which_partitions_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(partitions=2)
    with caplog.at_level(logging.INFO, "filewheel.kafka"):
        first = Hands(cluster)
        first.run()
        second = Hands(cluster, clock=first.clock)
        second.run()
        first.run()
        second.run()
        cluster.expire(second.node.source)  # type: ignore[arg-type]
        second.run()
    said = [r.getMessage() for r in caplog.records]
    ours = [line for line in said if line.startswith("partitions")]
    assert ours[:4] == [
        "partitions 0, 1 are ours",
        "partitions 1 are given up",
        "partitions 1 are ours",
        "partitions 1 are lost: another node may own them already",
    ]


def test_a_standby_follows_partitions_that_are_added() -> None:
    cluster = Cluster(partitions=1)
    first = Hands(cluster, settings=NodeSettings(standby="all"))
    first.run()
    second = Hands(cluster, settings=NodeSettings(standby="all"), clock=first.clock)
    second.run()
    cluster.logs["delay", 1] = Log()
    cluster.logs["delay.cursor", 1] = Log()
    cluster.partitions = 2
    cluster.owners[1] = first.node.source  # type: ignore[assignment]
    first.node.source.coming.append(1)  # type: ignore[attr-defined]
    first.run()
    assert sorted(first.node.owner.owned) == [0, 1]
    second.watched(20)
    assert second.node.standby is not None
    assert sorted(second.node.standby.positions()) == [0, 1]


def test_added_partitions_without_a_place_for_their_markers_are_reported_with_the_command(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster)
    node.run()

    def lacking() -> Topics:
        raise MissingTopic("delay.cursor has 1 partitions, and delay has 2", hint="`filewheel kafka init` adds them")

    monkeypatch.setattr(node.node.watch._transport, "check", lacking)
    for _ in range(3):
        node.after(61)
    (line,) = [r.getMessage() for r in caplog.records if "delay has 2" in r.getMessage()]
    assert "`filewheel kafka init` adds them" in line
