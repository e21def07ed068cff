"""Units go out, then their marker, then the wheel drops them; whatever the cluster does in between."""

from __future__ import annotations

import pytest

from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import End, Refusal, UnitOutcome
from filewheel.kafka.partition.marker import STEPS_MAX, Marker
from tests.kafka.fake import Cluster
from tests.kafka.hands import Disk, Hands

BOTH = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


def put(cluster: Cluster, name: bytes, *, after_ms: int = 0, partition: int = 0) -> int:
    due = str(cluster.now_ms + after_ms).encode()
    return cluster.put(name, partition=partition, headers=[("due-ms", due)])


def last_marker(cluster: Cluster, partition: int = 0) -> Marker:
    values = [e.value for e in cluster.logs["delay.cursor", partition].entries if e.key == str(partition).encode()]
    assert values[-1] is not None
    return Marker.unpack(values[-1])


@BOTH
def test_a_record_goes_out_when_it_is_due_and_not_before(exactly_once: bool) -> None:
    cluster = Cluster()
    put(cluster, b"late", after_ms=5000)
    put(cluster, b"soon", after_ms=1000)
    node = Hands(cluster, exactly_once=exactly_once)
    node.run()
    assert cluster.values() == []
    node.after(0.999)
    assert cluster.values() == []
    node.after(0.001)
    assert cluster.values() == [b"soon"]
    node.after(4)
    assert cluster.values() == [b"soon", b"late"]
    assert last_marker(cluster).low == 2  # retention may delete both


@BOTH
def test_a_restart_fires_nothing_again(exactly_once: bool) -> None:
    cluster = Cluster()
    for n in range(10):
        put(cluster, b"%d" % n, after_ms=n, partition=n % 2)
    disk = Disk()
    node = Hands(cluster, disk=disk, exactly_once=exactly_once)
    node.after(1)
    node.node.source.close()
    again = Hands(cluster, disk=disk, exactly_once=exactly_once, clock=node.clock)
    again.run()
    fresh_disk = Hands(cluster, exactly_once=exactly_once, clock=node.clock)
    again.run()
    fresh_disk.run()
    assert sorted(v for v in cluster.values() if v) == [b"%d" % n for n in range(10)]


@BOTH
def test_a_unit_that_failed_is_sent_again_after_a_wait(exactly_once: bool) -> None:
    cluster = Cluster()
    put(cluster, b"one")
    node = Hands(cluster, exactly_once=exactly_once)
    node.settle_down()
    cluster.finish(End.FAILED)
    node.settle_down()
    assert not cluster.under_way
    node.after(0.1)
    assert cluster.values() == [b"one"]


def test_a_kill_before_the_marker_fires_a_unit_twice_at_least_once() -> None:
    cluster = Cluster()
    put(cluster, b"one")
    first = Hands(cluster)
    first.settle_down()
    second = Hands(cluster, clock=first.clock)
    first.crash()
    cluster.expire(first.node.source)  # type: ignore[arg-type]
    second.settle_down()
    cluster.finish(answer=False)
    second.run()
    assert cluster.values() == [b"one", b"one"]


def test_a_commit_without_an_answer_is_decided_by_the_marker() -> None:
    cluster = Cluster()
    put(cluster, b"one")
    node = Hands(cluster, exactly_once=True)
    node.settle_down()
    cluster.finish(End.UNDECIDED)
    node.run()
    assert cluster.values() == [b"one"]
    assert node.disk.wheels[0].pending == {}


def test_a_commit_that_did_not_happen_is_done_again() -> None:
    cluster = Cluster()
    put(cluster, b"one")
    node = Hands(cluster, exactly_once=True)
    node.settle_down()
    unit = cluster.under_way.pop()
    unit.done(UnitOutcome(End.UNDECIDED))
    node.run()
    assert cluster.values() == [b"one"]


def test_a_fenced_node_waits_a_session_before_it_fences_back() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    node = Hands(cluster, exactly_once=True)
    node.settle_down()
    cluster.epochs[0] += 1
    cluster.finish()
    node.settle_down()
    node.after(node.node.settings.session_s - 1)
    assert cluster.values() == []
    assert cluster.epochs[0] == 2
    node.after(1)
    assert cluster.values() == [b"one"]


def test_a_zombie_commits_nothing() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    zombie = Hands(cluster, exactly_once=True)
    zombie.settle_down()
    unit = cluster.under_way[0]
    other = Hands(cluster, exactly_once=True, clock=zombie.clock)
    cluster.expire(zombie.node.source)  # type: ignore[arg-type]
    other.run()
    unit.done(unit.sink.end(unit, End.DELIVERED))
    zombie.settle_down()
    assert cluster.values() == [b"one"]
    assert zombie.node.owner.owned == {}


def test_a_dead_target_stalls_its_partition_only() -> None:
    cluster = Cluster()
    cluster.logs["absent", 0] = cluster.logs["target", 0].__class__()
    cluster.refused["absent"] = Refusal("no such topic")
    put(cluster, b"absent", partition=0)
    put(cluster, b"behind", partition=0, after_ms=600)
    put(cluster, b"other", partition=1)
    node = Hands(cluster)
    node.run()
    node.after(1)
    assert cluster.values() == [b"other"]
    assert "absent: no such topic" in node.node.status()[0].reason
    del cluster.refused["absent"]
    node.after(20)
    assert cluster.values("absent") == [b"absent"]
    assert cluster.values() == [b"other", b"behind"] or cluster.values() == [b"behind", b"other"]


@BOTH
def test_a_refused_record_goes_to_the_dead_letter_topic_and_the_others_go_out_once(exactly_once: bool) -> None:
    cluster = Cluster()
    cluster.refused["absent"] = Refusal("no such topic")
    for name in (b"one", b"absent", b"two"):
        put(cluster, name)
    node = Hands(cluster, exactly_once=exactly_once)
    node.rendering.is_diverted = True
    node.run()
    assert cluster.values() == [b"one", b"two"]
    assert cluster.values("delay.dlt") == [b"absent"]
    assert node.disk.wheels[0].pending == {}


def test_a_flood_of_overdue_records_is_fired_once_across_a_crash() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"first", after_ms=1000)
    node = Hands(cluster, exactly_once=True, settings=NodeSettings(exactly_once=True, unit=3))
    node.after(1.001)
    for n in range(7):
        put(cluster, b"flood-%d" % n, after_ms=-n)
    node.settle_down()
    cluster.finish()
    assert len(last_marker(cluster).steps) > 1
    node.settle_down()
    put(cluster, b"after", after_ms=-100)
    node.crash()
    cluster.expire(node.node.source)  # type: ignore[arg-type]
    other = Hands(cluster, exactly_once=True, clock=node.clock, settings=NodeSettings(exactly_once=True, unit=3))
    other.after(0.01)
    assert sorted(v for v in cluster.values() if v) == sorted(
        [b"first", b"after", *(b"flood-%d" % n for n in range(7))]
    )
    assert len(last_marker(cluster).steps) == 1


def test_a_marker_stays_small_however_many_records_arrive_overdue() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster, settings=NodeSettings(unit=1))
    node.run()
    for n in range(20):
        put(cluster, b"%02d" % n, after_ms=-n)
        node.settle_down()
        if cluster.under_way:
            cluster.finish()
    node.run()
    assert sorted(v for v in cluster.values() if v) == [b"%02d" % n for n in range(20)]
    values = [e.value for e in cluster.logs["delay.cursor", 0].entries if e.key == b"0"]
    assert max(len(Marker.unpack(v).steps) for v in values if v) == STEPS_MAX


def test_a_log_that_ends_before_its_marker_is_waited_for() -> None:
    cluster = Cluster(partitions=1)
    for n in range(4):
        put(cluster, b"%d" % n, after_ms=n * 1000)
    node = Hands(cluster, exactly_once=True)
    node.after(1)
    node.node.source.close()
    log = cluster.logs["delay", 0]
    hidden, log.entries = log.entries[2:], log.entries[:2]
    other = Hands(cluster, exactly_once=True, clock=node.clock)
    other.run()
    assert "ends at offset 2, and offset 3 was read before" in other.node.status()[0].reason
    log.entries += hidden
    other.after(9)
    assert cluster.values() == [b"0", b"1", b"2", b"3"]


def test_a_marker_of_a_topic_that_was_deleted_calls_nothing_done() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"old")
    old = Hands(cluster)
    old.run()
    old.node.source.close()
    cluster.topic_id = "two"
    cluster.logs["delay", 0].entries.clear()
    put(cluster, b"new")
    node = Hands(cluster)
    node.run()
    assert "is of a topic that was deleted (id one)" in node.node.status()[0].reason
    assert node.disk.wheels == {}


def test_nothing_fires_before_the_end_of_the_log_was_reached() -> None:
    cluster = Cluster(partitions=1)
    for n in range(2500):
        put(cluster, b"%d" % n)
    node = Hands(cluster)
    node.turn()
    node.turn()
    assert node.node.owner.owned[0].state is PartitionState.RESTORING
    assert not cluster.under_way
    node.run()
    assert len(cluster.values()) == 2500


def test_offsets_without_a_record_at_the_end_of_the_log_do_not_hold_it_up() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    cluster.end_transaction("delay", 0)
    node = Hands(cluster)
    node.run()
    assert cluster.values() == [b"one"]


@BOTH
def test_a_second_node_takes_half_and_nothing_is_fired_twice(exactly_once: bool) -> None:
    cluster = Cluster(partitions=4)
    for n in range(40):
        put(cluster, b"%02d" % n, partition=n % 4, after_ms=n * 100)
    first = Hands(cluster, exactly_once=exactly_once)
    first.after(1)
    second = Hands(cluster, exactly_once=exactly_once, clock=first.clock)
    for _ in range(4):
        first.run()
        second.run()
    assert sorted(first.node.owner.owned) == [0, 2]
    assert sorted(second.node.owner.owned) == [1, 3]
    for _ in range(40):
        first.after(0.1)
        second.run()
    assert sorted(v for v in cluster.values() if v) == [b"%02d" % n for n in range(40)]


def test_a_log_that_lost_the_next_record_stops_the_partition_with_the_reason() -> None:
    cluster = Cluster(partitions=1)
    for n in range(10):
        put(cluster, b"%d" % n, after_ms=60_000)
    disk = Disk()
    node = Hands(cluster, disk=disk)
    node.run()
    node.node.source.close()
    for n in range(10):
        put(cluster, b"%d" % n)
    cluster.keep_from(0, 15)
    again = Hands(cluster, disk=disk, clock=node.clock)
    again.run()
    (status,) = again.node.status()
    assert status.state is PartitionState.FAILED
    assert "begins at offset 15; offset 10 is the next to read" in status.reason
    skipping = Hands(cluster, disk=Disk(), clock=node.clock, settings=NodeSettings(on_gap="skip"))
    again.node.source.close()
    skipping.run()
    assert skipping.node.status()[0].state is PartitionState.ACTIVE


def test_a_cluster_that_is_down_at_the_takeover_is_asked_again() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    cluster.is_down = True
    node = Hands(cluster)
    node.run()
    assert "the cluster is down" in node.node.status()[0].reason
    cluster.is_down = False
    node.after(1)
    assert cluster.values() == [b"one"]


def test_a_long_queue_pauses_its_partition() -> None:
    cluster = Cluster(partitions=1)
    for n in range(100):
        put(cluster, b"%d" % n, after_ms=60_000)
    node = Hands(cluster, settings=NodeSettings(poll=10, queue=20))
    node.turn()
    node.turn()
    for _ in range(10):
        node.node.poll_step()
    assert node.node.source.paused == {0}  # type: ignore[attr-defined]
    assert node.node.owner.owned[0].queued <= 30
    node.run()
    assert node.node.owner.owned[0].wheel is not None
    assert node.node.owner.owned[0].wheel.ingested == 100


def test_a_wall_clock_that_jumps_ahead_fires_what_is_due() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one", after_ms=3_600_000)
    node = Hands(cluster)
    node.run()
    node.clock.step(3600)
    node.run()
    assert cluster.values() == [b"one"]
