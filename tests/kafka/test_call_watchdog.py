"""A worker that makes no progress with work says so, and one whose topic of calls was made anew ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from filewheel import Retry
from filewheel.errors import WrongSource
from filewheel.kafka import KafkaScheduler
from filewheel.kafka.node.transport import Polled
from filewheel.kafka.node.watchdog import STUCK_S
from filewheel.kafka.scheduling.progress import Committed, Progress, of_topic
from tests.kafka.fake_calls import CallCluster
from tests.kafka.workers import Worker, a_cluster, a_scheduler
from tests.support import eventually


def a_worker(cluster: CallCluster, seen: list[Any], **options: Any) -> tuple[KafkaScheduler, Worker]:
    scheduler = a_scheduler(cluster)

    @scheduler.on("note", **options)
    def note(what: Any) -> None:
        seen.append(what)
        if what == "fails":
            raise ValueError(what)

    return scheduler, Worker(scheduler, cluster)


def stuck(worker: Worker, seconds: int = STUCK_S + 2, *, turns: bool = True) -> list[str]:
    """Return what is stuck after so many seconds, in which the worker and what looks at it take their turns."""
    for _ in range(seconds):
        worker.cluster.clock.advance(1)
        if turns:
            worker.turn()
        worker.engine.look.look()
        worker.engine.health()
    return [re.sub(r"for \d+ s", "for N s", p.reason) for p in worker.engine.health().problems]


@pytest.fixture(params=[False, True], ids=["at-least-once", "exactly-once"])
def cluster(request: pytest.FixtureRequest) -> CallCluster:
    return a_cluster(exactly_once=request.param)


def test_a_worker_that_is_well_has_no_stuck_unit_with_and_without_calls(cluster: CallCluster) -> None:
    seen: list[Any] = []
    scheduler, worker = a_worker(cluster, seen)
    assert scheduler.health().problems == []
    assert stuck(worker, 2 * STUCK_S) == []
    for n in range(3):
        scheduler.enqueue("note", [n], delay=n * 40)
    assert stuck(worker, 4 * STUCK_S) == []
    assert seen == [0, 1, 2]


def test_calls_that_are_not_read_are_stuck_without_any_error(
    cluster: CallCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, worker = a_worker(cluster, [])
    worker.turn()
    monkeypatch.setattr(worker.source, "poll", lambda limit, timeout_s: Polled())
    scheduler.enqueue("note", ["unread"])
    reason = "calls [0] was not read for N s: it was read up to offset 0, and ends at 1"
    assert stuck(worker) == [reason]
    assert not worker.engine.health().is_serving
    assert sum("calls [0] was not read" in record.getMessage() for record in caplog.records) == 1
    monkeypatch.undo()
    assert stuck(worker, 2) == []
    assert "it goes on" in caplog.text


def test_a_partition_whose_position_the_group_does_not_say_is_stuck(cluster: CallCluster) -> None:
    cluster.is_silent = True
    _, worker = a_worker(cluster, [])
    reason = "was not read for N s: the group does not say where to begin"
    assert stuck(worker) == [f"calls [{n}] {reason}" for n in range(2)]
    cluster.is_silent = False
    assert stuck(worker, 2) == []


def test_the_end_of_a_call_that_is_never_produced_is_stuck_though_others_are(cluster: CallCluster) -> None:
    cluster.refuses.add("calls.dead")
    seen: list[Any] = []
    scheduler, worker = a_worker(cluster, seen, retry=Retry(limit=0))
    scheduler.enqueue("note", ["fails"])
    for n in range(STUCK_S + 2):
        scheduler.enqueue("note", [n])
        found = stuck(worker, 1)
    assert found == ["the end of a call was not produced for N s: refused"]
    assert len(seen) == STUCK_S + 3
    cluster.refuses.clear()
    assert stuck(worker, 12) == []


def test_a_worker_without_a_turn_or_without_a_cluster_is_stuck(cluster: CallCluster) -> None:
    _, worker = a_worker(cluster, [])
    worker.turn()
    assert stuck(worker, turns=False) == ["the worker made no turn for N s"]
    assert stuck(worker, 1) == []
    transport: Any = worker.engine._transport
    transport.is_down = True
    assert stuck(worker) == ["the cluster gave no answer for N s: the cluster is down"]


def test_a_topic_of_calls_that_is_made_anew_ends_the_worker_and_the_next_one_begins_at_its_start(
    cluster: CallCluster,
) -> None:
    seen: list[Any] = []
    scheduler, worker = a_worker(cluster, seen)
    for n in range(4):
        scheduler.enqueue("note", [f"old {n}"])
    stuck(worker, 12)
    cluster.make_anew()
    for n in range(10):  # longer than what was read
        scheduler.enqueue("note", [f"new {n}"])
    worker.turn()
    worker.engine.look.look()
    with pytest.raises(WrongSource, match="calls was deleted and made anew"):
        worker.engine.check()
    assert not worker.engine.health().is_serving
    worker.keeper.close()  # commits how far it was, in the new topic
    assert cluster.committed
    again = Worker(scheduler, cluster)
    again.turn()
    assert {f"new {n}" for n in range(10)} <= set(seen)


def test_a_worker_in_a_thread_ends_when_its_topic_is_made_anew_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)
    scheduler.start()
    engine = scheduler._engine
    assert engine is not None
    cluster.make_anew()
    engine.look.look()
    eventually(lambda: not engine.is_alive, timeout_s=60)
    assert "calls are not run any more: calls was deleted and made anew" in caplog.text
    (problem,) = scheduler.health().problems
    assert (problem.kind, problem.severity) == ("failed", "failing")
    scheduler.stop()
    assert not cluster.members


@pytest.mark.parametrize("metadata", ["", "1:Aw==", "2:one:Aw=="])
def test_a_position_counts_of_this_topic_or_of_a_release_that_named_none(metadata: str) -> None:
    position = Committed(7, metadata)
    assert of_topic(position, "one") == position
    assert of_topic(Committed(7, "2:another:Aw=="), "one") is None
    done = [n for n in range(7, 12) if not Progress(position, "one").take(n)]
    assert done == ([] if not metadata else [7, 8])
