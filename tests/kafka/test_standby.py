"""A node keeps the wheels of what others own, and takes over without reading the log again."""

from __future__ import annotations

import pytest

from filewheel.kafka.node.settings import NodeSettings
from tests.kafka.fake import Cluster
from tests.kafka.hands import Hands

ALL = NodeSettings(standby="all")


def put(cluster: Cluster, name: bytes, *, after_ms: int = 0, partition: int = 0) -> int:
    due = str(cluster.now_ms + after_ms).encode()
    return cluster.put(name, partition=partition, headers=[("due-ms", due)])


def pair(cluster: Cluster, *, exactly_once: bool = False) -> tuple[Hands, Hands]:
    settings = NodeSettings(standby="all", exactly_once=exactly_once)
    first = Hands(cluster, exactly_once=exactly_once, settings=settings)
    first.run()
    second = Hands(cluster, exactly_once=exactly_once, settings=settings, clock=first.clock)
    for _ in range(3):
        first.run()
        second.run()
    return first, second


def test_a_standby_holds_what_its_owner_holds_and_drops_what_was_fired() -> None:
    cluster = Cluster()
    put(cluster, b"soon", after_ms=1000, partition=0)
    put(cluster, b"late", after_ms=9000, partition=0)
    first, second = pair(cluster)
    assert sorted(first.node.owner.owned) == [0]
    held = second.disk.wheels[0]
    assert sorted(m.payload for m in held.pending.values()) == [b"late", b"soon"]
    first.after(1)
    second.run()
    assert cluster.values() == [b"soon"]
    assert [m.payload for m in held.pending.values()] == [b"late"]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_standby_takes_over_and_fires_what_is_left_once(exactly_once: bool) -> None:
    cluster = Cluster()
    for n in range(6):
        put(cluster, b"%d" % n, after_ms=1000 * n, partition=0)
    first, second = pair(cluster, exactly_once=exactly_once)
    first.after(2)
    second.run()
    first.crash()
    cluster.expire(first.node.source)  # type: ignore[arg-type]
    second.run()
    assert second.node.source.next[0] == 6  # type: ignore[attr-defined]
    second.after(10)
    assert cluster.values() == [b"%d" % n for n in range(6)]


def test_a_partition_that_was_given_away_is_followed_and_one_that_came_is_not() -> None:
    cluster = Cluster(partitions=2)
    for n in range(4):
        put(cluster, b"%d" % n, after_ms=60_000, partition=n % 2)
    first, second = pair(cluster)
    assert first.node.standby is not None
    assert second.node.standby is not None
    assert sorted(first.node.standby.positions()) == sorted(second.node.owner.owned) == [1]
    assert sorted(second.node.standby.positions()) == sorted(first.node.owner.owned) == [0]
    second.node.source.close()
    second.node.standby.close()
    for _ in range(3):
        first.run()
    assert first.node.standby.positions() == {}
    assert sorted(first.node.owner.owned) == [0, 1]
