"""A unit that makes no progress with work says so: in the health, in the note for `status`, and in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from filewheel.errors import ClusterError, NoBroker, NotAllowed, WrongSource
from filewheel.kafka.node.health import Problem
from filewheel.kafka.node.note import Note
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import Polled, Refusal
from filewheel.kafka.node.watchdog import STUCK_S, Unit, Watchdog
from tests.kafka.fake import Cluster, FakeTransport
from tests.kafka.hands import Hands
from tests.support import FakeClock

MINUTE_MS = 60_000


def put(cluster: Cluster, after_ms: int = MINUTE_MS, partition: int = 0) -> None:
    due = b"%d" % (cluster.now_ms + after_ms)
    cluster.put(b"x", partition=partition, headers=[("due-ms", due)])


def a_node(cluster: Cluster, *, settings: NodeSettings | None = None) -> Hands:
    hands = Hands(cluster, settings=settings)
    hands.run()
    return hands


def without_time(reasons: Sequence[str]) -> list[str]:
    return [re.sub(r" for \d+ s", "", reason) for reason in reasons]


def stuck(problems: Sequence[Problem]) -> list[str]:
    return [p.reason for p in problems if p.kind == "stuck"]


# -- the watchdog itself --------------------------------------------------------------------------------------


def test_a_unit_is_stuck_when_it_stands_still_with_work_and_well_when_it_moves_or_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock(0)
    unit = Unit("the mill ground nothing", 1, "the river is dry", 3)
    units: list[Unit] = [unit]
    dog = Watchdog(lambda: units, clock)

    def after(seconds: int) -> list[Problem]:
        for _ in range(seconds):
            clock.advance(1)
            found = dog.look()
        return found

    assert after(STUCK_S) == []
    (problem,) = after(1)
    assert problem == Problem("stuck", "failing", f"the mill ground nothing for {STUCK_S} s: the river is dry", 3)
    after(20)
    units[:] = [Unit("the mill ground nothing", 2, "the river is dry", 3)]
    assert after(1) == []
    units[:] = [Unit("the mill ground nothing", 2, None, 3)]
    assert after(100) == []
    units[:] = [Unit("the mill ground nothing", 2, "the river is dry", 3)]
    assert after(STUCK_S - 1) == []  # it had no work before
    units.clear()
    assert after(STUCK_S) == []
    said = [r.getMessage() for r in caplog.records]
    assert said == [
        f"the mill ground nothing for {STUCK_S} s: the river is dry",
        f"the mill ground nothing for {STUCK_S + 20} s; it goes on",
    ]


def test_a_process_that_stood_still_blames_none_of_its_units() -> None:
    clock = FakeClock(0)
    dog = Watchdog(lambda: [Unit("the mill ground nothing", 1, "")], clock)
    dog.look()
    clock.advance(3600)
    assert dog.look() == []


# -- the units of a node --------------------------------------------------------------------------------------


def test_a_node_that_is_well_has_no_stuck_unit_with_and_without_partitions() -> None:
    cluster = Cluster()
    put(cluster)
    hands = a_node(cluster)
    assert hands.watched(STUCK_S * 3) == []
    hands.node.owner.revoked([0, 1])
    assert hands.watched(STUCK_S * 2) == []


def test_a_takeover_that_the_cluster_refuses_is_stuck_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(partitions=1)
    cluster.is_down = True
    hands = a_node(cluster)
    assert stuck(hands.watched(STUCK_S - 2)) == []
    found = stuck(hands.watched(4))
    assert "partition 0 took nothing in for 31 s: the cluster is down" in found
    assert any(r.levelno == logging.ERROR and r.getMessage().startswith("partition 0 took") for r in caplog.records)
    cluster.is_down = False
    assert hands.watched(3) == []


def test_a_partition_whose_log_is_not_read_is_stuck_without_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    source: Any = hands.node.source
    hands.watched(20)
    monkeypatch.setattr(source, "poll", lambda limit, timeout_s: Polled())
    put(cluster)
    found = hands.watched(STUCK_S + 20)
    (reason,) = without_time(stuck(found))
    assert reason == "partition 0 took nothing in: it has read its log up to offset 0, and the log ends at 1"
    assert found[0].severity == "failing"
    note = Note.unpack(source.notes[0])
    assert note is not None
    assert note.problem.startswith("stuck: partition 0 took nothing in")
    monkeypatch.undo()
    assert hands.watched(1) == []


def test_a_restart_of_the_reading_that_never_helps_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    source: Any = hands.node.source
    put(cluster)
    restarts = []

    def poll(limit: int, timeout_s: float) -> Polled:
        gone = list(source.next)
        restarts.extend(source.next.values())
        source.next.clear()
        return Polled(gone=gone)

    monkeypatch.setattr(source, "poll", poll)
    assert stuck(hands.watched(STUCK_S + 20)) != []
    assert not hands.node.health().is_serving
    assert restarts == [0] * len(restarts)
    assert 20 < len(restarts) < STUCK_S + 25  # once a second


def test_a_log_that_ends_before_what_was_read_is_stuck_while_it_is_waited_for() -> None:
    cluster = Cluster(partitions=1)
    for _ in range(3):
        put(cluster)
    hands = a_node(cluster)
    cluster.logs["delay", 0].entries.clear()
    (reason,) = stuck(hands.watched(STUCK_S + 2))
    assert "the log of partition 0 ends at offset 0, and offset 2 was read before" in reason
    assert hands.node.status()[0].state is PartitionState.ACTIVE


def test_a_unit_that_is_not_confirmed_is_stuck_until_it_is() -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, 1000)
    hands.settle_down()
    hands.clock.advance(2)
    hands.settle_down()
    assert cluster.under_way
    for _ in range(STUCK_S + 1):
        hands.clock.advance(1)
        hands.settle_down()
        hands.node.housekeeping_step()
        found = hands.node.health().problems
    assert stuck(found) == ["partition 0 delivered nothing for 30 s: the brokers have not confirmed a unit"]
    hands.run()
    assert hands.node.health().problems == []


def test_a_partition_whose_target_refuses_for_long_is_not_served() -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["target"] = Refusal("not authorized")
    hands = a_node(cluster)
    put(cluster, 1000)
    found = hands.watched(STUCK_S + 4)
    assert [(p.kind, p.severity) for p in found] == [("target", "warning"), ("stuck", "failing")]
    assert stuck(found)[0].endswith("s: target: not authorized")


def test_what_is_due_and_not_fired_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, 5000)
    hands.run()
    monkeypatch.setattr(hands.node.loop, "step", lambda timeout_s=0.0: False)
    found = without_time(stuck(hands.watched(STUCK_S + 10)))
    assert found == ["the fire thread made no turn", "partition 0 delivered nothing: records are due"]


@pytest.mark.parametrize("partitions", [1, 0])
def test_a_cluster_that_gives_no_answer_is_noticed_with_and_without_partitions(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    if not partitions:
        hands.node.owner.revoked([0])
    transport: Any = hands.node.watch._transport

    def check() -> None:
        raise NoBroker("localhost:9092: no answer", hint="check whether the brokers run")

    with monkeypatch.context() as patch:
        patch.setattr(transport, "check", check)
        (reason,) = stuck(hands.watched(STUCK_S + 2))
    assert reason == "the cluster gave no answer for 31 s: localhost:9092: no answer"
    assert hands.watched(20) == []


def test_a_thread_that_makes_no_turn_is_stuck() -> None:
    hands = a_node(Cluster(partitions=1))
    for _ in range(STUCK_S + 2):
        hands.clock.advance(1)
        found = hands.node.watchdog.look()
    threads = {p.reason.split(" made")[0] for p in found}
    assert {"the poll thread", "the house thread", "the fire thread", "the intake thread"} <= threads
    assert hands.watched(1) == []


def test_a_standby_that_falls_behind_or_gives_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    every = NodeSettings(standby="all")
    owner = a_node(cluster, settings=every)
    standby = Hands(cluster, clock=owner.clock, settings=every)
    standby.run()
    keeper: Any = standby.node.standby
    monkeypatch.setattr(keeper._follower, "poll", lambda limit, timeout_s: (Polled(), []))
    put(cluster)
    owner.run()
    (problem,) = standby.watched(STUCK_S + 20)
    assert problem.severity == "warning"
    assert problem.reason.startswith("the standby of partition 0 took nothing in for ")
    monkeypatch.undo()
    standby.watched(2)
    keeper.failed(keeper._wheels[0], ClusterError("no luck"))
    monkeypatch.setattr(keeper, "try_again", lambda: None)
    (problem,) = standby.watched(STUCK_S + 2)
    assert problem.reason == "the standby of partition 0 took nothing in for 31 s: no luck"
    assert standby.node.health().is_serving


@pytest.mark.parametrize("right", [("write", "delay.cursor"), ("read", "delay.cursor"), ("write", "target")])
def test_a_right_that_a_node_lacks_is_named_until_it_is_given(right: tuple[str, str]) -> None:
    cluster = Cluster(partitions=1)
    cluster.denied.add(right)
    put(cluster, 1000)
    hands = a_node(cluster)
    (reason,) = stuck(hands.watched(STUCK_S + 4))
    assert "Topic authorization failed" in reason
    cluster.denied.clear()
    hands.watched(12)
    assert cluster.values() == [b"x"]
    assert hands.node.health().problems == []


def test_a_node_that_may_not_read_its_topic_ends_and_says_so() -> None:
    cluster = Cluster(partitions=1)
    cluster.denied.add(("read", "delay"))
    with pytest.raises(NotAllowed, match="delay: Topic authorization failed"):
        a_node(cluster)


# -- a topic that is made anew --------------------------------------------------------------------------------


def test_a_topic_that_is_made_anew_under_a_node_ends_it_and_nothing_is_passed_over() -> None:
    cluster = Cluster(partitions=1)
    put(cluster, 1000)
    hands = a_node(cluster)
    hands.after(2)
    cluster.make_anew()
    for _ in range(5):  # longer than what was read, and of the same epoch
        put(cluster)
    with pytest.raises(WrongSource, match="was deleted and made anew: its id was one, and is now one, made anew"):
        hands.watched(20)
    hands.node.source.close()
    again = Hands(cluster, clock=hands.clock)  # with the markers of the topic before
    again.watched(2)
    (status,) = again.node.status()
    assert (status.state, status.ingested) == (PartitionState.RESTORING, 0)
    assert "is of a topic that was deleted" in status.reason


def test_a_trouble_of_the_client_lets_a_node_look_at_the_topic_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    hands.watched(20)
    source: Any = hands.node.source
    cluster.make_anew()
    monkeypatch.setattr(source, "poll", lambda limit, timeout_s: Polled(errors=["delay: Unknown topic or partition"]))
    with pytest.raises(WrongSource):
        hands.watched(3)


def test_an_answer_of_another_cluster_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    transport: Any = hands.node.watch._transport
    found = transport.check()
    monkeypatch.setattr(transport, "check", lambda: type(found)("another", found.topic_id, found.partitions))
    with pytest.raises(WrongSource, match="another cluster"):
        hands.watched(20)


def test_questions_that_no_partition_answers_leave_the_figures_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader is not known; the others are looked at."""
    cluster = Cluster()
    hands = a_node(cluster)
    ranges = FakeTransport.ranges

    def one(transport: FakeTransport, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        return {p: r for p, r in ranges(transport, partitions).items() if p}

    monkeypatch.setattr(FakeTransport, "ranges", one)
    assert hands.watched(STUCK_S + 20) == []
    assert hands.node.watch.figures().keys() == {1}
