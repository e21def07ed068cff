"""An unclean election on real brokers: a replica leads that lacks the last records, and others take their offsets.

Row 25 of the table in test_failures.py; test_cut_log.py has more of it on a cluster in memory. The delay topic here has
two replicas and takes records with one in sync, as no topic of `filewheel kafka init` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from filewheel.env import SYSTEM_CLOCK
from filewheel.kafka.assemble import delay_service
from filewheel.kafka.node.owner import State
from filewheel.kafka.node.service import DelayService, PartitionStatus
from filewheel.kafka.node.settings import Settings
from filewheel.kafka.records.options import Policy
from tests.kafka.cluster import Cluster
from tests.kafka.conftest import ANSWER_TIMEOUT_S, make_topic
from tests.kafka.test_confluent import STAMPED, Place
from tests.support import eventually

LEADER, FOLLOWER = 1, 2
WAIT_S = 90.0
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


class Log:
    """The delay topic of one cluster, and what is produced to it."""

    def __init__(self, cluster: Cluster) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self.cluster = cluster
        self.place = Place(cluster.bootstrap, "delay", "target", 1)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self.due_ms = SYSTEM_CLOCK.now_us() // 1000
        eventually(lambda: len(self.admin.list_topics(timeout=10).brokers) == 3, timeout_s=WAIT_S)
        new = NewTopic("delay", 1, replica_assignment=[[LEADER, FOLLOWER]], config=UNCLEAN)
        self.admin.create_topics([new], operation_timeout=ANSWER_TIMEOUT_S)["delay"].result(ANSWER_TIMEOUT_S)
        make_topic(self.admin, "delay.cursor", config={"cleanup.policy": "compact", **STAMPED})
        make_topic(self.admin, "delay.dlt")
        make_topic(self.admin, "target")

    def wait_for(self, is_so: Callable[[Any], bool]) -> None:
        """Wait until the brokers say so of the partition."""
        from confluent_kafka import KafkaException

        def seen() -> bool:
            try:
                return is_so(self.admin.list_topics(timeout=10).topics["delay"].partitions[0])
            except KafkaException:  # its broker was just killed
                return False

        eventually(seen, timeout_s=WAIT_S)

    def put(self, *names: bytes) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "1"})
        headers = [("filewheel-due-ms", b"%d" % self.due_ms), ("scheduler-target-topic", b"target")]
        for name in names:
            producer.produce("delay", name, partition=0, headers=headers)
        assert producer.flush(60) == 0

    def wait_for_targets(self, *names: bytes) -> None:
        """Wait until these went out, each once or more."""
        eventually(lambda: set(self.place.seen("target", 0)) == set(names), timeout_s=WAIT_S)

    @contextmanager
    def served(self, data: Path, node: str) -> Iterator[DelayService]:
        service = delay_service(
            {"bootstrap.servers": self.cluster.bootstrap}, Policy("delay"), data,
            group="delay.group", node=node, settings=Settings(session_s=3.0),
        )  # fmt: skip
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield service
        finally:
            service.stop()
            thread.join(60)
        assert not thread.is_alive()


def status_of(service: DelayService) -> PartitionStatus | None:
    return next(iter(service.status()), None)


def is_cut(service: DelayService) -> bool:
    status = status_of(service)
    return status is not None and status.state is State.FAILED and "was cut" in status.reason


def is_active(service: DelayService) -> bool:
    status = status_of(service)
    return status is not None and status.state is State.ACTIVE


def has_taken_in(service: DelayService, count: int) -> bool:
    status = status_of(service)
    return status is not None and status.ingested >= count


@pytest.mark.parametrize("when", ["running", "idle", "stopped"])
def test_a_partition_whose_log_was_cut_is_stopped_and_a_new_wheel_delivers_what_the_log_has(
    cluster: Callable[..., Cluster], tmp_path: Path, when: str
) -> None:
    brokers = cluster(3)
    log = Log(brokers)
    log.put(b"kept")
    log.wait_for(lambda partition: len(partition.isrs) == 2)

    def elect() -> None:
        brokers.kill(LEADER)
        brokers.start(FOLLOWER)
        log.wait_for(lambda partition: partition.leader == FOLLOWER)
        log.put(b"other", b"another", b"third")

    with log.served(tmp_path / "a", "a") as service:
        eventually(lambda: has_taken_in(service, 1), timeout_s=WAIT_S)
        brokers.kill(FOLLOWER)
        log.wait_for(lambda partition: partition.isrs == [LEADER])
        log.put(b"lost", b"lost too")
        log.wait_for_targets(b"kept", b"lost", b"lost too")
        if when == "running":
            elect()
            eventually(lambda: is_cut(service), timeout_s=WAIT_S)
    if when == "stopped":
        elect()
    if when != "running":
        with log.served(tmp_path / "a", "a") as service:
            if when == "idle":  # its client reads nothing before the election
                eventually(lambda: is_active(service), timeout_s=WAIT_S)
                elect()
            eventually(lambda: is_cut(service), timeout_s=WAIT_S)
    with log.served(tmp_path / "b", "b"):
        log.wait_for_targets(b"kept", b"lost", b"lost too", b"other", b"another", b"third")
