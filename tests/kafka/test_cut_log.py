"""A log that was cut by an unclean election, and grew again: other records have the offsets of those that are gone.

Row 25 of the table in test_failures.py. The same with real brokers: test_unclean_election.py.
"""

from __future__ import annotations

import shutil

import pytest

from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import NO_EPOCH, LastRead, as_last_read
from tests.kafka.fake import Cluster
from tests.kafka.folder import put
from tests.kafka.nodes import BOTH, Nodes
from tests.kafka.parts import pending

EVERY = NodeSettings(standby="all")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(partitions=1)


def cut_and_grow(cluster: Cluster, end: int, *names: bytes, after_ms: int = 60_000) -> None:
    """Cut the delay topic, and let other records take the offsets."""
    cluster.logs["delay", 0].cut(end)
    for name in names:
        put(cluster, name, after_ms=after_ms)


@BOTH
def test_a_wheel_that_stood_still_while_its_log_was_cut_is_not_read_on(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for name in (b"kept", b"lost", b"lost too"):
        put(cluster, name, after_ms=60_000)
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.node.source.close()
    cut_and_grow(cluster, 1, b"other", b"another", b"third")
    again = nodes.start("a", exactly_once=exactly_once)
    again.after(1)
    (status,) = again.node.status()
    assert status.state is PartitionState.FAILED
    assert "was cut: at offset 2 it has another record" in status.reason
    assert again.node.health().problems[0].kind == "failed"
    again.node.source.close()
    assert pending(nodes.folders["a"].at(0)) == [0, 1, 2]  # can still be saved
    shutil.rmtree(nodes.folders["a"].at(0))
    nodes.start("a", exactly_once=exactly_once).after(61)
    assert sorted(v for v in cluster.values() if v) == [b"another", b"kept", b"other", b"third"]


@BOTH
@pytest.mark.parametrize("is_idle", [False, True], ids=["read", "idle"])
def test_a_node_that_runs_notices_that_its_log_was_cut(
    nodes: Nodes, cluster: Cluster, exactly_once: bool, is_idle: bool
) -> None:
    for name in (b"kept", b"lost"):
        put(cluster, name, after_ms=60_000)
    node = nodes.start("a", exactly_once=exactly_once)
    node.run()
    if is_idle:  # its client has read nothing
        node.node.source.close()
        node = nodes.start("a", exactly_once=exactly_once)
        node.run()
    cut_and_grow(cluster, 1, b"other", b"another", b"third")
    node.after(1)
    (status,) = node.node.status()
    assert (status.state, status.ingested) == (PartitionState.FAILED, 2)
    assert "was cut: at offset 1 it has another record" in status.reason
    node.after(61)  # what only its wheel has goes out
    assert cluster.values() == [b"kept", b"lost"]


@BOTH
def test_records_at_the_offsets_of_those_that_went_out_are_new(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for name in (b"kept", b"lost", b"lost too"):
        put(cluster, name)
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.after(2)
    first.node.source.close()
    assert cluster.values() == [b"kept", b"lost", b"lost too"]
    cut_and_grow(cluster, 1, b"other", b"another", b"third", after_ms=-1000)  # due before the last that went out
    second = nodes.start("b", exactly_once=exactly_once)
    second.run()
    assert sorted(v for v in cluster.values()[3:] if v) == [b"another", b"other", b"third"]
    second.after(5)
    second.node.source.close()
    nodes.start("c", exactly_once=exactly_once).after(1)
    assert len(cluster.values()) == 6  # what went out of the log as it is counts again


def test_a_marker_of_a_log_that_was_cut_at_an_unknown_place_is_not_believed(nodes: Nodes, cluster: Cluster) -> None:
    log = cluster.logs["delay", 0]
    put(cluster, b"kept")
    log.epoch = 1
    put(cluster, b"lost")
    first = nodes.start("a")
    first.run()
    first.node.source.close()
    log.cut(1)
    log.epoch = 0  # a replica that took other records from the leader of epoch 0, and nothing from that of epoch 1
    for name in (b"other", b"another"):
        put(cluster, name, after_ms=-1000)
    log.epoch = 2
    assert log.end_of(1) == 3  # so its client finds nothing wrong
    for name in ("a", "b"):
        node = nodes.start(name)
        node.after(1)
        (status,) = node.node.status()
        assert status.state is PartitionState.FAILED
        assert ("was cut: at offset 1" if name == "a" else "do not say where") in status.reason
        node.node.source.close()
    assert cluster.values() == [b"kept", b"lost"]


def test_a_log_that_was_read_and_deleted_to_its_end_is_served(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one")
    first = nodes.start("a")
    first.run()
    first.after(2)
    first.node.source.close()
    cluster.keep_from(0, 1)
    again = nodes.start("a")
    again.after(1)
    (status,) = again.node.status()
    assert (status.state, status.reason) == (PartitionState.ACTIVE, "")


def test_the_epoch_of_a_batch_is_noted_before_its_records_are_taken_in(nodes: Nodes, cluster: Cluster) -> None:
    node = nodes.start("a")
    node.run()
    put(cluster, b"one", after_ms=60_000)
    put(cluster, b"two", after_ms=60_000)
    node.node.poll_step()
    place, records, _ = node.node.owner.owned[0].queue
    assert place == LastRead(1, 0)
    assert isinstance(records, list)
    assert node.node.owner.owned[0].next_to_read() == 2


def test_a_position_and_a_marker_of_an_older_release_name_no_epoch_and_are_believed(
    nodes: Nodes, cluster: Cluster
) -> None:
    assert Marker.unpack(b'{"version":1,"done":[],"low":3,"owner":"a","topic_id":"one"}').last_read is None
    assert as_last_read([1, -1]) is as_last_read([1]) is as_last_read("x") is None
    assert LastRead(1, 0).is_in(LastRead(1, NO_EPOCH))
    put(cluster, b"one", after_ms=1000)
    put(cluster, b"two", after_ms=1000)
    first = nodes.start("a")
    first.run()
    nodes.folders["a"].wheels[0].last_read = None
    first.node.source.close()
    again = nodes.start("a")
    again.after(2)
    assert cluster.values() == [b"one", b"two"]
    assert again.node.status()[0].state is PartitionState.ACTIVE


def test_a_standby_gives_a_cut_log_up_and_the_next_owner_says_why(nodes: Nodes, cluster: Cluster) -> None:
    first = nodes.start("a", settings=EVERY)
    first.run()
    second = nodes.start("b", settings=EVERY)
    for name in (b"kept", b"lost"):
        put(cluster, name, after_ms=60_000)
    for _ in range(3):
        second.run()
        first.run()
    nodes.kill(first)
    cut_and_grow(cluster, 1, b"other", b"another", b"third")
    second.run()
    (status,) = second.node.status()
    assert status.state is PartitionState.FAILED
    assert "was cut" in status.reason


def test_a_standby_takes_no_marker_of_the_log_before_the_cut(nodes: Nodes, cluster: Cluster) -> None:
    first = nodes.start("a", settings=EVERY)
    first.run()
    cluster.logs["delay", 0].epoch = 1
    put(cluster, b"new", after_ms=1000)
    second = nodes.start("b", settings=EVERY)
    for _ in range(3):
        second.run()
    assert pending(nodes.folders["b"].at(0)) == [0]
    entry = cluster.logs["delay", 0].entries[0]
    due_us = (entry.timestamp_ms + 1000) * 1000
    old = Marker(((5, (due_us << 70 | 9).to_bytes(16, "big")),), low=5, owner="a", last_read=LastRead(4, 0))
    cluster.append(first.node.owner._rendering.marker(0, old))
    nodes.clock.advance(2)
    second.run()
    assert second.node.standby is not None
    second.node.standby.close()
    assert pending(nodes.folders["b"].at(0)) == [0]
