"""An unclean election on real brokers: a replica leads that lacks the last records, and others take their offsets.

Row 25 of the table in test_failures.py; test_cut_log.py has more of it on a cluster in memory. The delay topic here has
two replicas and takes records with one in sync, as no topic of `filewheel kafka init` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filewheel.env import SYSTEM_CLOCK
from filewheel.kafka.assemble import delay_service
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.service import DelayService, PartitionStatus
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.records.options import Policy
from tests.kafka.cluster import Cluster
from tests.kafka.conftest import ANSWER_TIMEOUT_S, make_topic
from tests.kafka.test_confluent import STAMPED, Place
from tests.support import eventually

LEADER, FOLLOWER = 1, 2
WAIT_S = 90.0
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


class Log:
    """One delay topic of a cluster, and what is produced to it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self.cluster, self.name, self.target = cluster, name, f"{name}-target"
        self.place = Place(cluster.bootstrap, name, self.target, 1)
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self.due_ms = SYSTEM_CLOCK.now_us() // 1000
        eventually(lambda: len(self.admin.list_topics(timeout=10).brokers) == 3, timeout_s=WAIT_S)
        new = NewTopic(name, 1, replica_assignment=[[LEADER, FOLLOWER]], config=UNCLEAN)
        self.admin.create_topics([new], operation_timeout=ANSWER_TIMEOUT_S)[name].result(ANSWER_TIMEOUT_S)
        make_topic(self.admin, f"{name}.cursor", config={"cleanup.policy": "compact", **STAMPED})
        make_topic(self.admin, f"{name}.dlt")
        make_topic(self.admin, self.target)

    def wait_for(self, is_so: Callable[[Any], bool]) -> None:
        """Wait until the brokers say so of the partition."""
        from confluent_kafka import KafkaException

        def seen() -> bool:
            try:
                return is_so(self.admin.list_topics(timeout=10).topics[self.name].partitions[0])
            except KafkaException:  # its broker was just killed
                return False

        eventually(seen, timeout_s=WAIT_S)

    def put(self, *names: bytes) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "1"})
        headers = [("filewheel-due-ms", b"%d" % self.due_ms), ("scheduler-target-topic", self.target.encode())]
        for name in names:
            producer.produce(self.name, name, partition=0, headers=headers)
        assert producer.flush(60) == 0

    def wait_for_targets(self, *names: bytes) -> None:
        """Wait until these went out, each once or more."""
        eventually(lambda: set(self.place.seen(self.target, 0)) == set(names), timeout_s=WAIT_S)

    @contextmanager
    def served(self, data: Path, node: str) -> Iterator[DelayService]:
        service = delay_service(
            {"bootstrap.servers": self.cluster.bootstrap}, Policy(self.name), data,
            group=f"{self.name}.group", node=node, settings=NodeSettings(session_s=3.0),
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
    return status is not None and status.state is PartitionState.FAILED and "was cut" in status.reason


def is_active(service: DelayService) -> bool:
    status = status_of(service)
    return status is not None and status.state is PartitionState.ACTIVE


def has_taken_in(service: DelayService, count: int) -> bool:
    status = status_of(service)
    return status is not None and status.ingested >= count


def test_a_partition_whose_log_was_cut_is_stopped_and_a_new_wheel_delivers_what_the_log_has(
    cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """One election, seen by a node that runs, by one whose client has read nothing, and by one that starts later."""
    brokers = cluster(3)
    running, idle, stopped = logs = [Log(brokers, name) for name in ("running", "idle", "stopped")]
    for log in logs:
        log.put(b"kept")
        log.wait_for(lambda partition: len(partition.isrs) == 2)
    with running.served(tmp_path / "running", "a") as service:
        with idle.served(tmp_path / "idle", "a") as second, stopped.served(tmp_path / "stopped", "a") as third:
            for each in (service, second, third):
                eventually(lambda each=each: has_taken_in(each, 1), timeout_s=WAIT_S)  # type: ignore[misc]
            brokers.kill(FOLLOWER)
            for log in logs:
                log.wait_for(lambda partition: partition.isrs == [LEADER])
                log.put(b"lost", b"lost too")
                log.wait_for_targets(b"kept", b"lost", b"lost too")
        with idle.served(tmp_path / "idle", "a") as second:
            eventually(lambda: is_active(second), timeout_s=WAIT_S)
            brokers.kill(LEADER)
            brokers.start(FOLLOWER)
            for log in logs:
                log.wait_for(lambda partition: partition.leader == FOLLOWER)
                log.put(b"other", b"another", b"third")
            eventually(lambda: is_cut(service), timeout_s=WAIT_S)
            eventually(lambda: is_cut(second), timeout_s=WAIT_S)
    with stopped.served(tmp_path / "stopped", "a") as third:
        eventually(lambda: is_cut(third), timeout_s=WAIT_S)
    with ExitStack() as fresh:
        for log in logs:
            fresh.enter_context(log.served(tmp_path / f"{log.name}-new", "b"))
        for log in logs:
            log.wait_for_targets(b"kept", b"lost", b"lost too", b"other", b"another", b"third")
