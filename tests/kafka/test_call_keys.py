"""Keys and recurring work of the scheduler on Kafka: one call of a key waits, one occurrence of a schedule lives."""

from __future__ import annotations

from typing import Any

import pytest

from filewheel import BadArgument, Message, Retry, current_job
from filewheel.kafka import KafkaScheduler
from filewheel.kafka.scheduling.call import record_of
from filewheel.kafka.scheduling.occurrences import KafkaOccurrences
from filewheel.message import KEY, US_PER_S, WAITS
from filewheel.schedules.definition import schedule_key
from tests.kafka.fake_calls import CallCluster, due_ms
from tests.kafka.workers import TOPICS, Worker, a_cluster, a_scheduler
from tests.support import FakeClock


@pytest.fixture(params=[False, True], ids=["at-least-once", "exactly-once"])
def cluster(request: pytest.FixtureRequest) -> CallCluster:
    return a_cluster(exactly_once=request.param)


def ticking(cluster: CallCluster, every_s: float = 60, **options: Any) -> tuple[KafkaScheduler, list[float]]:
    """Return a scheduler with the schedule "tick", and the due times of its calls, in seconds after the start."""
    scheduler = a_scheduler(cluster)
    start_us = cluster.clock.now_us()
    seen: list[float] = []

    @scheduler.every(every_s, name="tick", **options)
    @scheduler.on("tick", retry=Retry(limit=1, delay_s=10, jitter=0))
    def tick() -> None:
        seen.append((current_job().fire_id.due_us - start_us) / US_PER_S)

    return scheduler, seen


def test_a_later_call_of_a_key_takes_the_place_of_the_waiting_one_and_a_cancel_ends_it(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = []

    @scheduler.on()
    def reindex(why: str) -> None:
        seen.append((why, current_job().message.key))

    worker = Worker(scheduler, cluster)
    for why in ("first", "second"):
        reindex.options(key="reindex", on_conflict="replace").after(5, why)
        worker.after(2)
    worker.after(5)
    assert seen == [("second", "reindex")]
    reindex.options(key="reindex", on_conflict="replace").after(5, "third")
    scheduler.cancel(key="reindex")
    worker.after(10)
    assert len(seen) == 1


def test_the_retry_of_a_keyed_call_does_not_take_the_place_of_a_later_call(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = []

    @scheduler.on(retry=Retry(delay_s=5, jitter=0))
    def work(what: str) -> None:
        seen.append((what, current_job().attempt))
        if current_job().attempt == 0 and what == "old":
            raise ValueError

    worker = Worker(scheduler, cluster)
    work.options(key="k", on_conflict="replace").enqueue("old")
    cluster.fire()
    work.options(key="k", on_conflict="replace").after(60, "new")  # the old one is on its way to a worker
    worker.after(1)
    worker.after(10)
    worker.after(60)
    assert seen == [("old", 0), ("old", 1), ("new", 0)]


def test_a_schedule_has_one_occurrence_with_any_number_of_workers(cluster: CallCluster) -> None:
    scheduler, seen = ticking(cluster)
    workers = [Worker(scheduler, cluster) for _ in range(3)]
    for _ in range(25):
        cluster.clock.advance(12)
        cluster.fire()
        for worker in workers:
            worker.turn()
    assert len(seen) == 5
    assert len(set(seen)) == 5
    assert [w.key for w in cluster.waiting] == [schedule_key("tick").encode()]


def test_an_occurrence_that_was_produced_twice_has_one_successor(cluster: CallCluster) -> None:
    scheduler, seen = ticking(cluster)
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.clock.advance(60)
    cluster.fire(twice=True)
    worker.turn()
    assert len(cluster.waiting) == 1
    worker.after(60)
    assert len(set(seen)) == 2


def test_a_killed_worker_s_occurrence_runs_again_and_the_schedule_goes_on(cluster: CallCluster) -> None:
    scheduler, seen = ticking(cluster)
    first = Worker(scheduler, cluster, holds=True)
    first.turn()
    first.after(60)
    assert len(first.held.calls) == 1
    first.killed()
    second = Worker(scheduler, cluster)
    second.turn()
    second.turn()
    assert len(seen) == 1
    second.after(60)
    assert len(seen) == 2


def test_occurrences_that_were_missed_follow_their_policy(cluster: CallCluster) -> None:
    scheduler, seen = ticking(cluster, missed="all")
    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.clock.advance(180)
    for _ in range(5):
        worker.after(0)
    assert len(set(seen)) == 3


def test_an_occurrence_that_fails_is_retried_and_followed_once(cluster: CallCluster) -> None:
    scheduler, _ = ticking(cluster)
    attempts = []

    @scheduler.every(60)
    @scheduler.on(retry=Retry(limit=5, delay_s=40, factor=1, jitter=0))
    def fails() -> None:
        attempts.append(current_job().attempt)
        raise ValueError

    worker = Worker(scheduler, cluster)
    worker.turn()
    for _ in range(30):
        worker.after(10)
    assert attempts[:4] == [0, 1, 0, 1], "a retry comes before the next occurrence or not at all"
    assert len(cluster.dead()) == attempts.count(1) or len(cluster.dead()) == attempts.count(1) - 1
    assert sum(w.key == schedule_key("fails").encode() for w in cluster.waiting) <= 1


def test_an_occurrence_waits_for_a_worker_that_declares_it_however_long_that_takes(cluster: CallCluster) -> None:
    scheduler, seen = ticking(cluster)
    first = Worker(scheduler, cluster)
    first.turn()
    first.keeper.close()
    other = a_scheduler(cluster)
    other.on("tick")(lambda: None)
    old = Worker(other, cluster)
    old.turn()
    for _ in range(3):
        old.after(86_400)
    assert seen == []
    (waiting,) = cluster.waiting
    assert waiting.key is None, "a program without the declaration passes it on"
    assert b"a program that declares it" in (dict(waiting.headers)[WAITS] or b"")
    old.keeper.close()
    second = Worker(scheduler, cluster)
    second.turn()
    second.after(301)
    assert 60 in seen, "that of three days ago"


def test_an_occurrence_that_is_due_and_waits_for_a_node_is_not_replaced_by_a_worker_that_joins(
    cluster: CallCluster,
) -> None:
    scheduler, seen = ticking(cluster, 86_400)
    first = Worker(scheduler, cluster)
    first.turn()
    (waiting,) = cluster.waiting
    due_us = due_ms(waiting) * 1000
    cluster.clock.advance((due_us - cluster.clock.now_us()) / US_PER_S + 5)  # no node fires it
    first.killed()
    second = Worker(scheduler, cluster)
    second.turn(fire=False)
    assert cluster.waiting == [waiting]
    second.turn()
    assert len(seen) == 1
    assert [due_ms(w) * 1000 for w in cluster.waiting] == [due_us + 86_400 * US_PER_S]


def test_a_worker_whose_clock_is_behind_calls_an_occurrence_once_and_goes_on(cluster: CallCluster) -> None:
    behind = FakeClock(cluster.clock.now_us() - 7200 * US_PER_S)
    seen = []
    scheduler = a_scheduler(cluster, clock=behind)
    scheduler.every(60, name="tick")(scheduler.on("tick")(lambda: seen.append(1)))
    other, _ = ticking(cluster)
    right = Worker(other, cluster)
    right.turn()
    worker = Worker(scheduler, cluster)
    worker.turn(fire=False)
    right.keeper.close()
    worker.turn(fire=False)
    cluster.waiting = [record_of(other_occurrence(other, cluster), TOPICS, cluster.clock.now_us())]
    worker.after(60)
    assert len(seen) == 1
    assert [due_ms(w) for w in cluster.waiting] == [cluster.clock.now_us() // 1000 + 60_000]


def other_occurrence(scheduler: KafkaScheduler, cluster: CallCluster) -> Message:
    (planted,) = KafkaOccurrences(scheduler._schedules, (), cluster.clock).plants(cluster.clock.now_us())
    return planted


def test_a_schedule_that_a_deploy_has_dropped_and_ended_is_not_called_any_more(cluster: CallCluster) -> None:
    old, seen = ticking(cluster)
    first = Worker(old, cluster)
    first.turn()
    first.after(60)
    assert len(seen) == 1
    new = a_scheduler(cluster)
    calls: list[int] = []
    new.on("tick")(lambda: calls.append(1))
    new.unschedule("tick")
    assert cluster.waiting == []
    second = Worker(new, cluster)
    second.turn()
    first.keeper.plant()  # the last worker of before is given partitions once more
    cluster.clock.advance(60)
    cluster.fire()  # and its occurrence is on the way
    first.keeper.close()
    second.turn()
    second.after(600)
    assert (calls, cluster.waiting, len(seen)) == ([], [], 1)
    assert cluster.committed, "what is left out is done"


def test_a_schedule_that_the_program_declares_is_not_ended_by_it(cluster: CallCluster) -> None:
    scheduler, _ = ticking(cluster)
    with pytest.raises(BadArgument, match="this program declares the schedule 'tick'"):
        scheduler.unschedule("tick")


def test_the_declared_definition_counts_not_the_stored_one(cluster: CallCluster) -> None:
    old, _ = ticking(cluster, 60)
    first = Worker(old, cluster)
    first.turn()
    first.keeper.close()
    new, seen = ticking(cluster, 600)
    second = Worker(new, cluster)
    cluster.clock.advance(60)
    cluster.fire()  # the occurrence of the old definition is on its way
    second.turn()
    for _ in range(60):
        second.after(60)
    assert len(seen) == 7
    assert len(cluster.waiting) == 1


def test_each_worker_gives_one_occurrence_one_fire_id_and_another_schedule_or_time_another() -> None:
    cluster = a_cluster(exactly_once=False)

    def worker(*names: str) -> KafkaOccurrences:
        scheduler = a_scheduler(cluster)
        for name in names:
            scheduler.every(60, name=name)(scheduler.on(name)(lambda: None))
        return KafkaOccurrences(scheduler._schedules, (), cluster.clock)

    first, second = worker("tick"), worker("tick", "tock")
    now_us = cluster.clock.now_us()
    (planted,) = first.plants(now_us)
    again, other = second.plants(now_us)
    assert planted.id == again.id != other.id
    assert planted.id.due_us == other.id.due_us
    following = first.next_of(planted, planted.due_us)
    assert following is not None
    assert [following.id] == [m.id for m in second.plants(planted.due_us) if m.headers[KEY] == planted.headers[KEY]]
    assert following.id != planted.id
