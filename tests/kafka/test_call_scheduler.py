"""The scheduler on Kafka, on a cluster in memory: calls travel, are retried, die, and survive their workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from filewheel import BadArgument, GiveUp, Retry, RetryLater, current_job, history_of
from filewheel.kafka import KafkaScheduler
from filewheel.kafka.node.transport import End
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.kafka.scheduling.call import HANDLER, ID, message_of
from filewheel.message import ARGS, REASON
from tests.kafka.fake_calls import CallCluster
from tests.kafka.workers import Worker, a_cluster, a_scheduler, until


def done(cluster: CallCluster) -> int:
    return sum(offset for offset, _ in cluster.committed.values())


RETRY = Retry(limit=2, delay_s=10, jitter=0)


def reason(record: Record) -> str:
    return (dict(record.headers)[REASON] or b"").decode()


def calls_of(scheduler: KafkaScheduler, name: str = "note", **options: Any) -> list[Any]:
    """Define a handler that notes its argument; return the notes."""
    seen: list[Any] = []

    @scheduler.on(name, **options)
    def note(what: Any) -> None:
        seen.append(what)

    return seen


@pytest.fixture(params=[False, True], ids=["at-least-once", "exactly-once"])
def cluster(request: pytest.FixtureRequest) -> CallCluster:
    return a_cluster(exactly_once=request.param)


def test_a_call_waits_in_the_delay_topic_and_runs_when_it_is_due(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    worker = Worker(scheduler, cluster)
    scheduler.enqueue("note", ["later"], delay=60)
    scheduler.enqueue("note", ["now"])
    worker.turn()
    assert seen == ["now"]
    worker.after(59.9)
    assert seen == ["now"]
    worker.after(0.1)
    assert seen == ["now", "later"]
    worker.after(2)
    assert done(cluster) == 2


def test_a_call_is_never_early_though_kafka_counts_milliseconds(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster)
    early = []

    @scheduler.on()
    def look() -> None:
        early.append(current_job().lateness_s < 0)

    look.after(0.0001)
    look.after(1.0009)
    for _ in range(3000):
        worker.clock.advance(0.0005)
        cluster.fire()
        if len(early) < 2:
            worker.keeper.poll(0)
            worker.dispatcher.step(claim=True)
    assert early == [False, False]


def test_a_failed_call_is_retried_through_the_delay_topic_and_then_a_dead_letter_with_its_history(
    cluster: CallCluster,
) -> None:
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster)
    jobs = []

    @scheduler.on(retry=RETRY)
    def fails(what: str) -> None:
        jobs.append((current_job().attempt, str(current_job().fire_id)))
        raise ValueError(what)

    first = fails.options(headers={"mine": "ü"}).enqueue("no")
    worker.turn()
    assert [a for a, _ in jobs] == [0]
    worker.after(9.9)
    assert [a for a, _ in jobs] == [0]
    worker.after(0.2)
    worker.after(19.9)
    assert [a for a, _ in jobs] == [0, 1]
    worker.after(0.2)
    assert jobs == [(0, str(first)), (1, str(first)), (2, str(first))]
    (letter,) = cluster.dead()
    assert reason(letter) == "ValueError: no (after 3 attempts)"
    message = message_of(letter)
    assert (message.topic, message.headers["mine"], message.root) == ("fails", "ü", first)
    assert [a.error for a in history_of(message.headers)] == ["ValueError: no"] * 3
    assert cluster.waiting == []


def test_a_handler_decides_of_its_own_retry(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster)
    attempts = []

    @scheduler.on()
    def picky(what: str) -> None:
        attempts.append((what, current_job().attempt))
        if what == "gone":
            raise GiveUp("it was deleted")
        if current_job().attempt == 0:
            raise RetryLater(60, "429")

    picky.enqueue("gone")
    picky.enqueue("busy")
    worker.turn()
    worker.after(61)
    assert attempts == [("gone", 0), ("busy", 0), ("busy", 1)]
    assert [reason(r) for r in cluster.dead()] == ["it was deleted"]


def test_a_killed_worker_s_call_runs_again_on_another(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    first = Worker(scheduler, cluster, holds=True)
    for n in range(4):
        scheduler.enqueue("note", [n])
    first.turn()
    assert len(first.held.calls) == 4
    first.held.end()
    first.turn()
    first.clock.advance(2)
    first.turn()  # the first one's end is committed
    first.killed()
    second = Worker(scheduler, cluster)
    until([second], lambda: len(seen) == 4)
    second.after(2)
    assert sorted(seen) == [0, 1, 2, 3]
    assert seen[0] == 0


def test_calls_that_ended_behind_a_slow_one_do_not_run_again(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    first = Worker(scheduler, cluster, holds=True)
    for n in range(20):
        scheduler.enqueue("note", [n])
    first.turn()
    slow = first.held.calls.pop(0)
    while first.held.calls:
        first.held.end()
    first.turn()
    first.clock.advance(2)
    first.turn()
    assert slow.messages
    assert sorted(seen) == list(range(1, 20))
    first.killed()
    second = Worker(scheduler, cluster)
    until([second], lambda: 0 in seen)
    assert sorted(seen) == list(range(20))


def test_a_worker_that_leaves_finishes_what_runs_and_leaves_the_rest(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    first, second = Worker(scheduler, cluster, holds=True), Worker(scheduler, cluster)
    for n in range(6):
        scheduler.enqueue("note", [n])
    first.turn()
    second.turn()
    while first.held.calls:
        first.held.end()
    first.dispatcher.settle_all()
    first.keeper.close()
    until([second], lambda: len(seen) >= 6)
    second.after(2)
    assert sorted(seen) == list(range(6))


def test_a_partition_that_goes_to_another_worker_takes_along_what_has_not_begun(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    first = Worker(scheduler, cluster, holds=True)
    for n in range(6):
        scheduler.enqueue("note", [n])
    first.turn()
    second = Worker(scheduler, cluster)
    first.turn()  # it hears that it gives one partition away
    second.turn()
    given = sorted(seen)
    assert len(given) == 3
    while first.held.calls:
        first.held.end()
    first.turn()
    second.after(2)
    assert sorted(seen) == list(range(6)), "the calls that were given away did not begin here"


def test_outcomes_of_a_partition_that_was_lost_are_not_produced(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster, holds=True)
    runs = []

    @scheduler.on(retry=RETRY)
    def fails() -> None:
        runs.append(1)
        raise ValueError

    fails.enqueue()
    worker.turn()
    (call,) = worker.held.calls
    assert worker.dispatcher.begin(call)
    cluster.expire(worker.source)
    cluster.is_silent = True
    worker.keeper.poll(0)  # it hears that it has lost them
    worker.held.inline._begin = lambda call: True
    worker.held.end()
    worker.turn()
    assert runs == [1]
    assert cluster.waiting == []
    cluster.is_silent = False
    worker.turn()
    assert len(worker.held.calls) == 1, "it is read again"


def test_a_record_that_was_produced_twice_is_one_call_while_it_is_in_hand(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    worker = Worker(scheduler, cluster, holds=True)
    worker.turn()
    scheduler.enqueue("note", ["once"], delay=1)
    cluster.clock.advance(1)
    assert cluster.fire(twice=True) == 1
    worker.turn()
    worker.held.end()
    worker.turn()
    worker.after(2)
    assert seen == ["once"]
    assert done(cluster) == 2


def test_a_record_that_is_no_call_is_a_dead_letter_and_the_others_go_on(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    worker = Worker(scheduler, cluster)
    cluster.append(Outgoing("calls", None, b"?", [("mine", b"\xff")]))
    cluster.append(Outgoing("calls", None, b"?", [(HANDLER, b"note"), (ID, b"nonsense")]))
    cluster.append(Outgoing("calls", None, b"?", [(HANDLER, b"note"), (ARGS, b"msgpack")]))
    cluster.append(Outgoing("calls", None, None, []))
    scheduler.enqueue("note", ["good"])
    worker.turn()
    assert seen == ["good"]
    assert len(cluster.dead()) == 4
    assert cluster.dead()[0].headers[0] == ("mine", b"\xff")
    assert any("names no handler" in reason(r) for r in cluster.dead())
    worker.after(2)
    assert done(cluster) == 5


def test_another_client_enqueues_a_call_with_two_headers(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    worker = Worker(scheduler, cluster)
    body = json.dumps([["from Java"], {}]).encode()
    cluster.append(Outgoing("calls", None, body, [(HANDLER, b"note"), (ARGS, b"json")]))
    worker.turn()
    assert seen == ["from Java"]


@pytest.mark.parametrize("unknown", ["wait", "bury"])
def test_a_call_that_no_worker_knows_waits_or_is_buried(cluster: CallCluster, unknown: str) -> None:
    scheduler = a_scheduler(cluster, unknown=unknown)
    worker = Worker(scheduler, cluster)
    scheduler.enqueue("absent", [1])
    worker.turn()
    assert len(cluster.dead()) == (unknown == "bury")
    assert len(cluster.waiting) == (unknown == "wait")
    seen = calls_of(scheduler, "absent")
    worker.after(301)
    assert seen == [1] * (unknown == "wait")


def test_what_is_refused_waits_and_other_calls_go_on(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler)
    worker = Worker(scheduler, cluster)

    @scheduler.on(retry=Retry(limit=0))
    def dies() -> None:
        raise ValueError("no")

    cluster.refuses = {"calls.dead"}
    dies.enqueue()
    for n in range(10):
        scheduler.enqueue("note", [n])
        worker.after(1)
    assert seen == list(range(10))
    assert cluster.dead() == []
    cluster.refuses = set()
    worker.after(11)
    assert [reason(r) for r in cluster.dead()] == ["ValueError: no"]
    worker.after(2)
    assert done(cluster) == 11


def test_a_slow_handler_does_not_keep_the_worker_from_polling(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster, in_flight=4)
    calls_of(scheduler)
    worker = Worker(scheduler, cluster, holds=True)
    for n in range(3000):
        scheduler.enqueue("note", [n])
    for _ in range(10):
        worker.turn()
    assert len(worker.held.calls) == 4
    polls = worker.source.polls
    worker.turn()
    assert worker.source.polls > polls
    assert worker.source.paused == {0, 1}
    while worker.held.calls:
        worker.held.end()
        if len(worker.held.calls) == 0:
            worker.turn()
    assert worker.source.paused == set()


def test_a_commit_that_the_group_refused_unheard_is_repeated() -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)
    calls_of(scheduler)
    worker = Worker(scheduler, cluster)
    scheduler.enqueue("note", [1])
    cluster.loses_commits = True
    worker.turn()
    worker.after(2)
    cluster.loses_commits = False
    worker.after(2)
    assert done(cluster) == 0
    worker.after(10)
    assert done(cluster) == 1


def test_outcomes_that_are_not_produced_yet_bound_the_calls_in_hand(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler = a_scheduler(cluster, in_flight=4)
    worker = Worker(scheduler, cluster)
    ran = []

    @scheduler.on()
    def fails() -> None:
        ran.append(1)
        raise ValueError

    for _ in range(20):
        fails.enqueue()
    for _ in range(5):
        worker.turn()
    assert len(ran) == 4


def test_a_flood_of_records_that_are_no_calls_is_read_no_faster_than_it_can_be_buried(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster, in_flight=10)
    worker = Worker(scheduler, cluster)
    cluster.refuses = {"calls.dead"}
    for _ in range(5000):
        cluster.append(Outgoing("calls", None, b"?", []))
    for _ in range(10):
        worker.turn()
    assert worker.source.paused == {0, 1}
    assert sum(worker.source.next.values()) <= 2000
    cluster.refuses = set()
    for _ in range(30):
        worker.after(11)
    assert len(cluster.dead()) == 5000


def test_an_outcome_that_waits_is_not_produced_after_its_partition_went_away() -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)

    @scheduler.on(retry=Retry(delay_s=1000))
    def fails() -> None:
        raise ValueError

    for _ in range(4):
        fails.enqueue()
    first = Worker(scheduler, cluster)
    cluster.is_manual = True
    first.turn()
    while cluster.under_way:
        cluster.finish(End.FAILED)
    first.keeper.poll(0)
    cluster.expire(first.source)
    cluster.is_manual, cluster.is_silent = False, True
    first.keeper.poll(0)  # it hears of it
    first.after(11)
    first.keeper.close()
    assert cluster.waiting == []
    cluster.is_silent = False
    second = Worker(scheduler, cluster)
    second.turn()
    assert len(cluster.waiting) == 4


def test_what_was_produced_of_an_outcome_is_not_produced_again() -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)

    @scheduler.every(60)
    @scheduler.on(retry=Retry(limit=0))
    def dies() -> None:
        raise ValueError

    worker = Worker(scheduler, cluster)
    worker.turn()
    cluster.refuses = {"calls.dead"}
    before = cluster.appended
    worker.after(60)
    for _ in range(5):
        worker.after(1)
    assert cluster.appended - before == 2, "fired once, and one successor"


def test_an_outcome_is_not_done_before_the_cluster_confirmed_it(cluster: CallCluster) -> None:
    cluster.is_manual = True
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster)

    @scheduler.on(retry=Retry(delay_s=1000))
    def fails() -> None:
        raise ValueError

    fails.enqueue()
    worker.turn()
    worker.after(5)
    assert done(cluster) == 0
    cluster.finish(End.FAILED)
    worker.after(5)
    assert done(cluster) == 0
    assert cluster.waiting == []
    worker.after(1)
    cluster.finish()
    worker.after(2)
    assert len(cluster.waiting) == 1
    assert done(cluster) == 1


def test_a_handler_for_any_name_a_batch_and_a_coroutine_are_called(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    worker = Worker(scheduler, cluster)
    seen: list[Any] = []

    @scheduler.on("*")
    def anything(*args: int) -> None:
        seen.append((current_job().handler, *args))

    @scheduler.on(batch=10)
    def many(jobs: list[Any]) -> None:
        seen.append(sorted(job.args[0] for job in jobs))

    @scheduler.on()
    async def soon(n: int) -> None:
        seen.append(n)

    scheduler.enqueue("other", [7])
    for n in range(3):
        many.enqueue(n)
    soon.enqueue(5)
    worker.turn()
    worker.held.inline.stop()
    assert ("other", 7) in seen
    assert 5 in seen
    assert sorted(n for each in seen if isinstance(each, list) for n in each) == [0, 1, 2]


def test_a_late_call_is_skipped_by_its_own_policy(cluster: CallCluster) -> None:
    scheduler = a_scheduler(cluster)
    seen = calls_of(scheduler, skip_late_s=60)
    worker = Worker(scheduler, cluster)
    scheduler.enqueue("note", ["late"], delay=1)
    scheduler.enqueue("note", ["by then"], deadline=cluster.clock.now_us() / 1e6 + 30, delay=1, skip_late_s=1e6)
    worker.after(100)
    assert seen == []
    assert sorted(reason(r) for r in cluster.dead()) == [
        "skipped: 70 s after its deadline",
        "skipped: 99 s late, where 60 s are allowed",
    ]


Refusal = Callable[[KafkaScheduler], object]


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("concurrency", lambda s: s.on(concurrency=2)),
        ("rate_per_s", lambda s: s.on(rate_per_s=2)),
        ("coalesce", lambda s: s.on(coalesce="x")),
        ("coalesce", lambda s: s.enqueue("note", [1], coalesce=True)),
        ("sync", lambda s: s.enqueue("note", [1], sync="always")),
        ("on_conflict", lambda s: s.enqueue("note", [1], key="k")),
        ("on_conflict", lambda s: s.enqueue("note", [1], key="k", on_conflict="keep")),
        ("schedule", lambda s: s.schedule("x", 60, "note")),
        ("cancel", lambda s: s.cancel("01")),
        ("drain", lambda s: s.drain()),
        ("result_for", lambda s: s.on("some", result_for="1h")(print)),
        ("result", lambda s: s.result("x")),
        ("map", lambda s: s.on("some")(print).map(["ann", "bob"])),
        ("list", lambda s: s.list("email")),
        ("get", lambda s: s.get(key="k")),
        ("reschedule", lambda s: s.reschedule(key="k", delay=5)),
        ("cancel_all", lambda s: s.cancel_all("email")),
        ("wheel", lambda s: s.wheel),
    ],
)
def test_what_is_not_kept_is_refused_with_the_reason_and_another_way(what: str, act: Refusal) -> None:
    cluster = a_cluster()
    scheduler = a_scheduler(cluster)
    with pytest.raises(BadArgument, match=f"^{what} is not kept on Kafka: .*") as raised:
        act(scheduler)
    assert raised.value.hint
    assert cluster.logs == {}
    assert cluster.waiting == []


def test_without_a_keyed_topic_keys_and_schedules_are_refused() -> None:
    scheduler = a_scheduler(a_cluster(keyed=False))
    for act in (
        lambda: scheduler.enqueue("note", [1], key="k", on_conflict="replace"),
        lambda: scheduler.every(60),
        lambda: scheduler.cancel(key="k"),
    ):
        with pytest.raises(BadArgument, match="not kept on Kafka") as raised:
            act()
        assert "--keyed" in str(raised.value.hint)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": "a b"}, {"topic": "calls"}, {"calls": ""}, {"bootstrap": ""}, {"threads": 0}, {"unknown": "x"},
        {"exactly_once": True}, {"in_flight": 0}, {"session_s": 0}, {"keyed": "yes"}, {"calls": None},
        {"config": "x=y"}, {"group": ""}, {"name": 7}, {"metrics": 1},
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_at_the_definition(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        KafkaScheduler(**{"bootstrap": "host:1", "topic": "delays", "calls": "calls", **options})


def test_a_header_of_the_delay_service_is_refused() -> None:
    scheduler = a_scheduler(a_cluster())
    for name in ("scheduler-epoch", "filewheel-due-ms"):
        with pytest.raises(BadArgument, match="delay service"):
            scheduler.enqueue("note", [1], headers={name: "1"})


def test_a_setting_that_the_client_does_not_know_is_named_at_the_first_enqueue() -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    scheduler = KafkaScheduler("127.0.0.1:1", topic="delays", calls="calls", config={"nonsense": 1})
    with pytest.raises(BadArgument, match="nonsense"):
        scheduler.enqueue("note")
    scheduler.stop()
