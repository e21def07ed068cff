"""Retention removed records that were done long ago: a node that was away for so long goes on with the rest.

Its wheel, its position and the last record that it read are of before. The same with a real broker:
test_retention_broker.py.
"""

from __future__ import annotations

import pytest

from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from tests.kafka.fake import Cluster
from tests.kafka.folder import put
from tests.kafka.nodes import BOTH, Nodes
from tests.kafka.parts import pending

EVERY = NodeSettings(standby="all")
IN_LOG = pytest.mark.parametrize("log", ["plain", "transactions", "elections"])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(partitions=1)


def produce(cluster: Cluster, log: str, *names: bytes, after_ms: int = 0) -> None:
    """Produce records: each in a transaction of its own, or each to another leader."""
    for name in names:
        put(cluster, name, after_ms=after_ms)
        if log == "transactions":
            cluster.end_transaction("delay", 0)
        elif log == "elections":
            cluster.logs["delay", 0].epoch += 1


def left_alone(nodes: Nodes, cluster: Cluster, log: str, *, exactly_once: bool = False) -> None:
    """Let "a" deliver a record and go away, "b" deliver three more, and retention delete all of them."""
    produce(cluster, log, b"one")
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.after(1)
    first.node.source.close()
    produce(cluster, log, b"two", b"three", b"four")
    second = nodes.start("b", exactly_once=exactly_once)
    second.run()
    for _ in range(2):
        produce(cluster, log, b"last")
        second.after(1)
    second.node.source.close()
    cluster.keep_from(0, cluster.logs["delay", 0].end - 1)


@BOTH
@IN_LOG
def test_a_node_that_was_away_serves_again_when_its_wheel_is_older_than_the_log(
    nodes: Nodes, cluster: Cluster, exactly_once: bool, log: str
) -> None:
    left_alone(nodes, cluster, log, exactly_once=exactly_once)
    before = len(cluster.values())
    again = nodes.start("a", exactly_once=exactly_once)
    again.run()
    produce(cluster, log, b"new", b"newer")
    again.after(2)
    (status,) = again.node.status()
    assert (status.state, status.reason) == (PartitionState.ACTIVE, "")
    assert [v for v in cluster.values()[before:] if v] == [b"new", b"newer"]
    assert again.node.health().problems == []


@BOTH
@IN_LOG
def test_on_gap_skip_goes_on_with_the_wheel_of_the_node(
    nodes: Nodes, cluster: Cluster, exactly_once: bool, log: str
) -> None:
    skip = NodeSettings(exactly_once=exactly_once, on_gap="skip")
    produce(cluster, log, b"kept", after_ms=60_000)
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.after(1)
    first.node.source.close()
    produce(cluster, log, b"deleted", b"deleted too", b"left", after_ms=60_000)
    end = cluster.logs["delay", 0].end
    cluster.keep_from(0, end - (1 if log != "transactions" else 2))
    stopped = nodes.start("a", exactly_once=exactly_once)
    stopped.run()
    assert stopped.node.status()[0].state is PartitionState.FAILED
    stopped.node.source.close()
    again = nodes.start("a", exactly_once=exactly_once, settings=skip)
    again.after(61)
    (status,) = again.node.status()
    assert (status.state, status.reason) == (PartitionState.ACTIVE, "")
    assert status.skipped == cluster.logs["delay", 0].first - (1 if log != "transactions" else 2)
    assert sorted(v for v in cluster.values() if v) == [b"kept", b"left"]


@IN_LOG
def test_a_standby_with_a_wheel_that_is_older_than_the_log_follows_again(
    nodes: Nodes, cluster: Cluster, log: str
) -> None:
    left_alone(nodes, cluster, log)
    owner = nodes.start("b", settings=EVERY)
    owner.run()
    standby = nodes.start("a", settings=EVERY)
    produce(cluster, log, b"waits", after_ms=60_000)
    for _ in range(3):
        owner.run()
        standby.run()
    assert standby.node.standby is not None
    assert standby.node.standby.positions() == {0: cluster.logs["delay", 0].end}
    standby.node.standby.close()
    assert len(pending(nodes.folders["a"].at(0))) == 1


@BOTH
def test_a_new_wheel_serves_a_topic_whose_records_are_all_done_and_deleted(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    produce(cluster, "plain", b"one", b"two")
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    nodes.kill(first)
    cluster.keep_from(0, 2)
    second = nodes.start("b", exactly_once=exactly_once)
    second.run()
    produce(cluster, "plain", b"new")
    second.after(1)
    assert second.node.status()[0].state is PartitionState.ACTIVE
    assert [v for v in cluster.values() if v] == [b"one", b"two", b"new"]


def test_records_that_are_deleted_while_a_node_is_behind_stop_its_partition(nodes: Nodes, cluster: Cluster) -> None:
    node = nodes.start("a")
    node.run()
    produce(cluster, "plain", b"read", after_ms=60_000)
    node.run()
    produce(cluster, "plain", b"deleted", b"left", after_ms=60_000)
    cluster.keep_from(0, 2)
    node.run()
    (status,) = node.node.status()
    assert status.state is PartitionState.FAILED
    assert "begins at offset 2; offset 1 is the next to read" in status.reason
