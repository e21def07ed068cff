"""What the delay service does when something fails: one test for each situation, with real wheels where one matters.

The rows of the table of failures, and where each is tested. `fire` stands for test_fire.py, `partition` for
test_partition.py, `model` for the protocol in tests/kafka/model.

 1 killed before the flush                 partition: a killed process leaves everything; test_partition_model.py
 2 killed after the append                 partition: a record that is taken in twice is taken in once
 3 killed before the commit to the group   here
 4 killed inside a unit, at least once     here
 5 killed inside a unit, exactly once      here
 6 killed between commit and drop          here
 7 zombie, at least once                   here
 8 zombie, exactly once                    fire: a zombie commits nothing
 9 a node more, a node less              here; fire: a second node takes half and nothing is fired twice
10 assigned away while it reads the log    here
11 the owner's disk is lost, standby=all   here
12 all wheels are lost                     here
13 retention is too short                  fire: a log that lost the next record stops the partition with the reason
14 disk full                               here
15 a damaged or missing file              here
16 a broker is away                        here
17 the whole cluster is away               here
18 a target refuses, or is missing         test_missing_target.py;
   a target refuses                        fire: a dead target stalls its partition only; a refused record goes to ...
19 the dead-letter topic refuses           here
20 the topic of markers is lost            here
21 the clock steps                         here; fire: a wall clock that jumps ahead fires what is due; a clock that is
                                           wrong against the brokers': test_clock_guard.py
22 poison record                           here
23 a slow disk                             fire: a long queue pauses its partition; 17 for a poll that came too late
24 partitions are added                    here
25 the log is shorter than it was          fire: a log that ends before its marker is waited for; troubles: the same
                                           while a node runs. Other records have the offsets of those that are gone, and
                                           the leader epoch tells them apart: test_cut_log.py, with real brokers
                                           test_unclean_election.py. `unclean.leader.election.enable=false`, which
                                           `init` sets, rules it out. An old epoch of a leader: test_failed_admin.py
26 a standby lags, or dies                 here
27 very many due at one moment             here
28 a transaction takes too long            fire: a unit that failed is sent again after a wait; a fenced node waits a
                                           session. The unit stays as large as it was. Covered is the outcome (aborted
                                           by the coordinator, then fenced), by a fake; no test waits 30 s on a broker
All of them together, at random: schedule.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel.errors import WheelFull
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import End, Refusal
from filewheel.kafka.partition.marker import Marker
from tests.kafka.fake import Cluster, Log
from tests.kafka.folder import put
from tests.kafka.nodes import BOTH, Nodes
from tests.kafka.parts import check_whole, pending


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(partitions=1)


def ids(cluster: Cluster, topic: str = "target") -> list[bytes | None]:
    return [dict(entry.headers).get("filewheel-id") for entry in cluster.logs[topic, 0].entries]


@BOTH
def test_3_a_node_that_never_told_the_group_where_it_is_goes_on_where_its_wheel_is(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(5):
        put(cluster, b"%d" % n, after_ms=1000 * n)
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.after(1.5)  # a flush
    assert first.node.source.committed == {}  # type: ignore[attr-defined]
    nodes.kill(first)
    second = nodes.start("a", exactly_once=exactly_once)
    second.turn()
    second.turn()
    assert nodes.folders["a"].wheels[0].position == 5
    second.run()
    second.after(10)
    assert cluster.values() == [b"%d" % n for n in range(5)]


def test_4_a_unit_without_a_marker_goes_out_again_with_the_same_ids(nodes: Nodes, cluster: Cluster) -> None:
    for n in range(3):
        put(cluster, b"%d" % n)
    first = nodes.start("a")
    first.settle_down()
    (unit,) = cluster.under_way
    cluster.under_way.clear()
    for record in unit.records:
        cluster.append(record)
    nodes.kill(first)  # all records are in the log, the marker is not
    second = nodes.start("b")
    second.run()
    assert cluster.values() == [b"0", b"1", b"2"] * 2
    assert ids(cluster) == [b"delay-0-0", b"delay-0-1", b"delay-0-2"] * 2


def test_5_a_unit_that_was_not_committed_is_seen_once(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one")
    first = nodes.start("a", exactly_once=True)
    first.settle_down()
    assert len(cluster.under_way) == 1
    nodes.kill(first)
    nodes.start("a", exactly_once=True).run()
    assert cluster.values() == [b"one"]


@BOTH
def test_6_what_was_committed_and_not_dropped_is_dropped_when_the_wheel_is_opened(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    put(cluster, b"one")
    put(cluster, b"later", after_ms=60_000)
    first = nodes.start("a", exactly_once=exactly_once)
    first.settle_down()
    cluster.finish(answer=False)
    nodes.kill(first)
    assert pending(nodes.folders["a"].at(0)) == [0, 1]
    second = nodes.start("a", exactly_once=exactly_once)
    second.run()
    second.node.source.close()
    assert cluster.values() == [b"one"]
    assert pending(nodes.folders["a"].at(0)) == [1]
    check_whole(nodes.folders["a"].at(0))


def test_7_a_marker_of_a_zombie_that_arrives_late_loses_nothing(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one")
    put(cluster, b"two", after_ms=1000)
    zombie = nodes.start("a")
    zombie.settle_down()
    other = nodes.start("b")
    cluster.expire(zombie.node.source)  # type: ignore[arg-type]
    late = cluster.under_way.pop()
    other.after(2)
    assert cluster.values() == [b"one", b"two"]
    late.sink.end(late, End.DELIVERED)  # its marker knows of the first record only
    zombie.run()
    assert zombie.node.owner.owned == {}
    put(cluster, b"three", after_ms=3000)
    nodes.kill(zombie)
    other.node.source.close()
    third = nodes.start("c")
    third.run()
    third.after(5)
    assert cluster.values() == [b"one", b"two", b"one", b"two", b"three"]


@BOTH
def test_12_without_any_wheel_what_is_left_comes_from_the_log_and_nothing_else(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(9):
        put(cluster, b"%d" % n, after_ms=1000 * n)
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    first.after(4)
    assert len(cluster.values()) == 5
    nodes.kill(first)
    second = nodes.start("b", exactly_once=exactly_once)
    second.run()
    assert pending(nodes.folders["b"].at(0)) == [5, 6, 7, 8]
    second.after(10)
    assert cluster.values() == [b"%d" % n for n in range(9)]


@BOTH
def test_9_a_partition_that_moves_takes_its_unit_to_the_end_first(tmp_path: Path, exactly_once: bool) -> None:
    cluster = Cluster(partitions=2)
    nodes = Nodes(tmp_path, cluster)
    for n in range(10):
        put(cluster, b"%d" % n, partition=n % 2, after_ms=100 * (n // 2))
    first = nodes.start("a", exactly_once=exactly_once)
    first.run()
    nodes.clock.advance(0.15)
    first.settle_down()
    assert len(cluster.under_way) == 2  # a unit of each partition
    second = nodes.start("b", exactly_once=exactly_once)
    for _ in range(3):
        second.run()
        first.run()
    assert (sorted(first.node.owner.owned), sorted(second.node.owner.owned)) == ([0], [1])
    first.after(1)
    second.after(1)
    second.node.source.close()
    for _ in range(3):
        first.run()
    assert sorted(first.node.owner.owned) == [0, 1]
    assert sorted(v for v in cluster.values() if v) == [b"%d" % n for n in range(10)]


@BOTH
def test_10_a_partition_that_goes_while_its_log_is_read_goes_out_once(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(50):
        put(cluster, b"%02d" % n)
    first = nodes.start("a", exactly_once=exactly_once, settings=NodeSettings(poll=10, exactly_once=exactly_once))
    for _ in range(3):
        first.turn()
    assert first.node.status()[0].state is PartitionState.RESTORING
    assert 0 < first.node.status()[0].ingested < 50
    first.node.source.close()
    (marker,) = [e.value for e in cluster.logs["delay.cursor", 0].entries if e.key == b"0"]
    assert marker is not None
    assert Marker.unpack(marker).steps == ()  # it only names the options
    second = nodes.start("b", exactly_once=exactly_once)
    second.run()
    assert cluster.values() == [b"%02d" % n for n in range(50)]


@BOTH
def test_11_a_standby_takes_over_from_a_lost_disk_and_reads_nothing_again(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(6):
        put(cluster, b"%d" % n, after_ms=1000 * n)
    every = NodeSettings(standby="all", exactly_once=exactly_once)
    first = nodes.start("a", exactly_once=exactly_once, settings=every)
    first.run()
    second = nodes.start("b", exactly_once=exactly_once, settings=every)
    for _ in range(3):
        second.run()
        first.run()
    first.after(2)
    second.run()
    nodes.kill(first)
    shutil.rmtree(nodes.folders["a"].path)
    second.run()
    assert second.node.source.next[0] == 6  # type: ignore[attr-defined]
    assert second.node.intake.taken == 0
    second.after(10)
    assert cluster.values() == [b"%d" % n for n in range(6)]


def test_14_on_a_full_disk_nothing_comes_in_and_what_waits_goes_out(
    nodes: Nodes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, b"one", after_ms=1000)
    node = nodes.start("a")
    node.run()
    put(cluster, b"two", after_ms=2000)

    def full(*args: object, **options: object) -> None:
        raise WheelFull("no space left", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(nodes.folders["a"].wheels[0]._keeper, "add_puts", full)
        node.after(3)
        assert cluster.values() == [b"one"]
        (status,) = node.node.status()
        assert (status.state, status.ingested) == (PartitionState.ACTIVE, 1)
        assert "no space left" in status.reason
    node.after(1)
    assert cluster.values() == [b"one", b"two"]
    assert node.node.status()[0].reason == ""


def spoil(path: Path) -> None:
    """Change a byte of a payload."""
    data = bytearray(path.read_bytes())
    data[data.index(b"target")] ^= 1
    path.write_bytes(data)


@BOTH
@pytest.mark.parametrize("harm", [spoil, Path.unlink], ids=["damaged", "removed"])
@pytest.mark.parametrize("when", ["stopped", "running", "killed"])
def test_15_what_a_harmed_file_lost_is_read_from_the_topic_again(
    nodes: Nodes, cluster: Cluster, exactly_once: bool, harm: Callable[[Path], None], when: str
) -> None:
    put(cluster, b"one")
    for n in range(5):
        put(cluster, b"%d" % n, after_ms=400_000 + n)
    node = nodes.start("a", exactly_once=exactly_once)
    node.run()
    node.node.source.close()  # deals what waits into the file of its lap
    (file,) = (nodes.folders["a"].at(0) / "laps").iterdir()
    if when == "stopped":
        harm(file)
    node = nodes.start("a", exactly_once=exactly_once)
    node.run()
    put(cluster, b"last", after_ms=400_000)
    if when != "stopped":
        harm(file)
    node.after(500)
    if when == "killed":  # what was lost is known, and the wheel was not opened again
        # A removed file stays readable for the process that has it open.
        assert harm is Path.unlink or "waiting records were lost" in node.node.status()[0].reason
        nodes.kill(node)
        node = nodes.start("a", exactly_once=exactly_once)
    for _ in range(3):
        node.after(2)
    assert sorted(v for v in cluster.values() if v) == [b"0", b"1", b"2", b"3", b"4", b"last", b"one"]
    assert node.node.status()[0].state is PartitionState.ACTIVE
    assert node.node.status()[0].reason == ""


@BOTH
def test_16_a_broker_that_is_away_makes_units_late_and_loses_none(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(3):
        put(cluster, b"%d" % n, after_ms=1000 * n)
    node = nodes.start("a", exactly_once=exactly_once)
    node.run()
    for _ in range(6):
        nodes.clock.advance(1)
        node.settle_down()
        while cluster.under_way:
            cluster.finish(End.FAILED)
    assert "timed out" in node.node.status()[0].reason
    node.after(20)
    assert cluster.values() == [b"0", b"1", b"2"]
    assert node.node.status()[0].reason == ""


@BOTH
def test_17_a_node_that_lost_the_whole_cluster_goes_on_when_it_is_back(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(3):
        put(cluster, b"%d" % n, after_ms=1000 * n)
    node = nodes.start("a", exactly_once=exactly_once)
    node.after(0.5)
    node.clock.advance(0.6)
    node.settle_down()
    cluster.is_down = True
    cluster.under_way.clear()
    cluster.expire(node.node.source)  # type: ignore[arg-type]
    node.after(5)
    assert "the cluster is down" in node.node.status()[0].reason
    cluster.is_down = False
    node.after(5)
    assert cluster.values() == [b"0", b"1", b"2"]


def test_19_a_dead_letter_that_its_topic_refuses_is_kept_and_its_partition_waits(
    nodes: Nodes, cluster: Cluster
) -> None:
    cluster.put(b"poison")
    put(cluster, b"one", after_ms=1)
    cluster.refused["delay.dlt"] = Refusal("not allowed")
    node = nodes.start("a")
    node.run()
    node.after(60)
    assert cluster.values("delay.dlt") == []
    assert "delay.dlt: not allowed" in node.node.status()[0].reason
    del cluster.refused["delay.dlt"]
    node.after(20)
    assert cluster.values("delay.dlt") == [b"poison"]
    assert cluster.values() == [b"one"]


def test_20_without_markers_a_wheel_goes_on_and_a_new_one_fires_all_that_the_log_holds(
    nodes: Nodes, cluster: Cluster
) -> None:
    put(cluster, b"one")
    put(cluster, b"two", after_ms=9000)
    node = nodes.start("a")
    node.run()
    node.node.source.close()
    cluster.logs["delay.cursor", 0].entries.clear()
    again = nodes.start("a")
    again.run()
    assert cluster.values() == [b"one"]
    again.node.source.close()
    cluster.logs["delay.cursor", 0].entries.clear()
    nodes.start("b").after(10)
    assert cluster.values() == [b"one", b"one", b"two"]


def test_21_a_clock_that_is_set_back_makes_nothing_early_and_loses_nothing(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one", after_ms=1000)
    put(cluster, b"two", after_ms=3000)
    node = nodes.start("a")
    node.run()
    node.after(1)
    assert cluster.values() == [b"one"]
    node.clock.step(-3600)
    put(cluster, b"three", after_ms=500)  # due, as the clock was
    node.after(2)
    assert cluster.values() == [b"one"]
    node.after(3600)
    assert sorted(v for v in cluster.values() if v) == [b"one", b"three", b"two"]


def test_22_a_poison_record_is_a_dead_letter_and_nothing_waits_for_it(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one")
    cluster.put(b"poison", headers=[("filewheel-due-ms", b"soon")])
    cluster.put(None)
    put(cluster, b"two")
    node = nodes.start("a")
    node.run()
    assert cluster.values() == [b"one", b"two"]
    assert cluster.values("delay.dlt") == [b"poison", None]
    reasons = [dict(entry.headers)["filewheel-error"] or b"" for entry in cluster.logs["delay.dlt", 0].entries]
    assert b"soon" in reasons[0]
    assert node.node.status()[0].ingested == 4


def test_24_a_new_partition_gets_a_wheel_of_its_own(nodes: Nodes, cluster: Cluster) -> None:
    put(cluster, b"one")
    node = nodes.start("a")
    node.run()
    cluster.logs["delay", 1] = Log()
    cluster.logs["delay.cursor", 1] = Log()
    put(cluster, b"two", partition=1)
    cluster.partitions = 2
    cluster.rebalance()
    node.run()
    assert cluster.values() == [b"one", b"two"]
    assert nodes.folders["a"].at(1).is_dir()


@BOTH
def test_26_a_standby_that_lags_reads_the_rest_before_it_fires(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    every = NodeSettings(standby="all", exactly_once=exactly_once)
    first = nodes.start("a", exactly_once=exactly_once, settings=every)
    first.run()
    second = nodes.start("b", exactly_once=exactly_once, settings=every)
    for n in range(4):
        put(cluster, b"%d" % n, after_ms=n * 1000)
    second.run()
    for n in range(4, 8):  # the standby sees none of these, and no marker
        put(cluster, b"%d" % n, after_ms=n * 1000)
    first.after(5.5)
    assert cluster.values() == [b"%d" % n for n in range(6)]
    nodes.kill(first)
    second.run()
    assert second.node.intake.taken == 2  # 4 and 5 are done
    second.after(5)
    assert cluster.values() == [b"%d" % n for n in range(8)]


@BOTH
def test_27_many_that_are_due_at_one_moment_go_out_in_units_and_a_new_owner_goes_on_in_the_middle(
    nodes: Nodes, cluster: Cluster, exactly_once: bool
) -> None:
    for n in range(100):
        put(cluster, b"%02d" % n, after_ms=1000)
    small = NodeSettings(unit=10, exactly_once=exactly_once)
    first = nodes.start("a", exactly_once=exactly_once, settings=small)
    first.run()
    nodes.clock.advance(1)
    for _ in range(4):
        first.settle_down()
        cluster.finish()
    first.settle_down()
    assert len(cluster.values()) == 40
    nodes.kill(first)
    cluster.under_way.clear()
    second = nodes.start("b", exactly_once=exactly_once, settings=small)
    second.run()
    assert cluster.values() == [b"%02d" % n for n in range(100)]
