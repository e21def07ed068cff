"""What a node finds that is not its own: what a newer version wrote, wheels of another cluster, brokers that are old.

Each is a clear error that names what to do; the partition stops, nothing of it is lost, and the others go on.
"""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from filewheel.errors import ClusterError, FilewheelError, NewerFormat, WrongSource
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import RecordOrigin
from tests.conftest import assert_whole
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands
from tests.kafka.parts import env_at
from tests.support import FakeClock


@pytest.fixture
def cluster() -> Cluster:
    """A cluster with a due record in each of two partitions."""
    cluster = Cluster(partitions=2)
    for partition in range(2):
        put(cluster, b"due-%d" % partition, partition=partition)
    return cluster


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Folder:
    return Folder(tmp_path, FakeClock(cluster.now_ms * 1000))


def node_on(cluster: Cluster, folder: Folder) -> Hands:
    return Hands(cluster, clock=folder.clock, disk=folder)


def stopped(hands: Hands, partition: int) -> FilewheelError:
    """Return why a partition stopped; its health says the same."""
    owned = hands.node.owner.owned[partition]
    assert owned.state is PartitionState.FAILED
    assert owned.error is not None
    (problem,) = [p for p in hands.node.health().problems if p.partition == partition]
    assert owned.error.what in problem.reason
    return owned.error


def test_a_marker_of_a_newer_version_stops_its_partition_and_says_to_upgrade(cluster: Cluster, folder: Folder) -> None:
    cluster.put(b'{"version": 99, "sorted": true}', topic="delay.cursor", key=b"0")
    hands = node_on(cluster, folder)
    hands.run()
    error = stopped(hands, 0)
    assert isinstance(error, NewerFormat)
    assert "version 99" in str(error)
    assert "upgrade filewheel on this node" in str(error)
    assert cluster.values() == [b"due-1"]
    hands.node.source.close()
    assert_whole(folder.at(1))


def test_a_wheel_with_a_payload_of_a_newer_version_stops_and_keeps_it(cluster: Cluster, folder: Folder) -> None:
    newer: bytes = msgpack.packb((99, "what a later version writes"))
    before = folder.open(0, lambda wheel: None)
    before.take_in([LogPut(0, cluster.now_ms * 1000, "target", newer)])
    before.close()
    hands = node_on(cluster, folder)
    hands.run()
    error = stopped(hands, 0)
    assert isinstance(error, NewerFormat)
    assert "version 99" in str(error)
    assert cluster.values() == [b"due-1"]
    hands.node.source.close()
    after = folder.open(0, lambda wheel: None)
    (kept,) = after.next_chunk(10, cluster.now_ms * 1000).messages
    assert kept.payload == newer
    after.close()
    assert_whole(folder.at(0))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (RecordOrigin("another-cluster", "delay", 0, "one"), "cluster another-cluster"),
        (RecordOrigin("fake", "other", 0, "one"), "topic other"),
        (RecordOrigin("fake", "delay", 1, "one"), "partition 1"),
        (RecordOrigin("fake", "delay", 0, "a-deleted-topic"), "id a-deleted-topic"),
    ],
    ids=["cluster", "topic", "partition", "topic made anew"],
)
def test_a_wheel_of_something_else_is_refused_by_name_and_left_as_it_is(
    cluster: Cluster, folder: Folder, source: RecordOrigin, named: str
) -> None:
    other = Partition(folder.at(0), source, env=env_at(folder.clock))
    other.take_in([LogPut(0, cluster.now_ms * 1000, "target", b"of something else")])
    other.close()
    # `begun` says which keeper was the last to open it.
    files = [path for path in folder.at(0).rglob("*") if path.is_file() and path.name != "begun"]
    before = {path: path.read_bytes() for path in files}
    hands = node_on(cluster, folder)
    hands.run()
    error = stopped(hands, 0)
    assert isinstance(error, WrongSource)
    assert named in str(error)
    assert "another --data" in str(error)
    assert cluster.values() == [b"due-1"]
    hands.node.source.close()
    assert {path: path.read_bytes() for path in before} == before
    assert_whole(folder.at(0))


@pytest.mark.parametrize("code", ["UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE"])
def test_brokers_that_are_too_old_are_told_from_those_that_fail(code: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    from filewheel.kafka.client.trouble import cluster_error

    error = cluster_error(confluent_kafka.KafkaError(getattr(confluent_kafka.KafkaError, code)), "localhost:9092")
    assert type(error) is ClusterError
    assert "Kafka 3.9" in str(error)
