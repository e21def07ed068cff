"""A node whose clock is ahead of the brokers' fires nothing early; one whose clock is behind says so."""

from __future__ import annotations

import logging

import pytest

from filewheel.kafka.node.clock_guard import ClockGuard, offset_us
from filewheel.kafka.node.settings import NodeSettings
from tests.kafka.fake import Cluster
from tests.kafka.hands import Hands
from tests.kafka.test_standby import put
from tests.support import FakeClock


@pytest.mark.parametrize(
    ("sent", "stamp", "answered", "found"),
    [
        (100, 100, 100, 0),
        (100, 105, 120, 0),  # anything between is possible
        (100, 80, 120, 20),  # ahead: it was appended after it was sent
        (100, 150, 120, -30),
    ],
)
def test_an_offset_is_only_what_is_proved(sent: int, stamp: int, answered: int, found: int) -> None:
    assert offset_us(sent, stamp, answered) == found


def node_with_clock(
    cluster: Cluster, ahead_s: float, *, settings: NodeSettings | None = None
) -> tuple[Hands, list[float]]:
    """Return a node, and its offset from the brokers' clock, to be changed."""
    off = [ahead_s]
    clock = FakeClock(cluster.now_ms * 1000)
    cluster.stamp = lambda: round(clock.now_us() / 1000 - off[0] * 1000)
    return Hands(cluster, clock=clock, settings=settings), off


def test_a_node_whose_clock_is_ahead_holds_its_records_until_it_is_right(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    node, off = node_with_clock(cluster, 60)
    node.run()
    for _ in range(10):
        node.after(6)
    assert cluster.values() == []
    assert [(p.kind, p.severity, p.reason) for p in node.node.health().problems] == [
        ("clock", "failing", "the clock of this node is +60.0 s off the brokers'")
    ]
    off[0] = 0
    for _ in range(3):
        node.after(6)
    assert cluster.values() == [b"one"]
    assert node.node.health().problems == []
    said = [r.getMessage() for r in caplog.records if "the clock" in r.getMessage()]
    assert said == [
        "the clock of this node is 60.0 s ahead of the brokers'; nothing fires until it is right",
        "the clock of this node is right again",
    ]


@pytest.mark.parametrize("ahead_s", [-60, 3])
def test_a_clock_that_is_behind_or_a_little_ahead_is_reported_and_holds_nothing(
    ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    node, _ = node_with_clock(cluster, ahead_s)
    node.run()
    assert cluster.values() == [b"one"]
    assert [(p.kind, p.severity) for p in node.node.health().problems] == [("clock", "warning")]
    assert any("the clock of this node is" in r.getMessage() for r in caplog.records)
    assert node.node.metrics.clock_offset_us() == pytest.approx(ahead_s * 1e6, abs=2000)


def test_a_limit_of_zero_and_a_topic_without_the_brokers_times_hold_nothing() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    node, _ = node_with_clock(cluster, 60, settings=NodeSettings(clock_ahead_max_s=0))
    node.run()
    assert cluster.values() == [b"one"]
    other = Cluster(partitions=1)
    put(other, b"two")
    unknown = Hands(other)
    unknown.run()
    assert other.values() == [b"two"]
    assert unknown.node.metrics.clock_offset_us() is None


def test_a_clock_that_goes_wrong_while_a_node_runs_is_noticed_within_a_minute() -> None:
    cluster = Cluster(partitions=1)
    node, off = node_with_clock(cluster, 0)
    node.run()
    put(cluster, b"late", after_ms=100_000)
    node.run()
    off[0] = 3600
    node.after(61)
    node.after(60)
    assert cluster.values() == []


def test_a_cluster_that_does_not_answer_a_probe_leaves_what_was_known(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(partitions=1)
    node, _ = node_with_clock(cluster, 60)
    node.run()
    cluster.is_down = True
    with caplog.at_level(logging.INFO, "filewheel.kafka"):
        node.after(6)
    assert "the clocks were not compared" in caplog.text
    assert not node.node.clock_guard.may_fire


def test_a_probe_is_asked_for_once_however_long_it_takes() -> None:
    asked: list[object] = []
    guard = ClockGuard(lambda: None, FakeClock(0), 1, asked.append)
    guard.step()
    guard.step()
    assert len(asked) == 1


def test_a_queue_of_few_large_records_pauses_its_partition() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster, settings=NodeSettings(queue=1000, queue_bytes=10_000, poll=2))
    node.settle_down()
    for n in range(8):
        put(cluster, b"%d" % n * 3000, after_ms=60_000)
    for _ in range(4):
        node.node.poll_step()
    assert node.node.source.paused == {0}  # type: ignore[attr-defined]
    owned = node.node.owner.owned[0]
    assert 10_000 < owned.queued_bytes < 20_000
    node.settle_down()
    assert node.node.source.paused == set()  # type: ignore[attr-defined]
    assert (owned.queued, owned.queued_bytes) == (0, 0)
    assert len(node.disk.wheels[0].pending) == 8
