"""Delays by levels: on a cluster in memory, and one pass on a real broker."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument, NoBroker
from filewheel.errors import WrongSource
from filewheel.kafka import LevelService, level_service, make_level_topics
from filewheel.kafka.client.level_client import ConfluentLevels
from filewheel.kafka.levels import loop
from filewheel.kafka.levels.loop import COMMIT_S, LevelLoop
from filewheel.kafka.levels.naming import Level, level_for, parse_levels
from filewheel.kafka.levels.queue import BYTES_MAX, RECORDS_MAX
from filewheel.kafka.node.meters import LEVEL_METERS
from filewheel.kafka.node.transport import End, Refusal, UnitOutcome
from tests.cli.support import environment, invoke
from tests.kafka.fake_levels import FakeLevels, rules_of, service_of
from tests.kafka.test_cli_kafka import PYTHON, examples, read
from tests.support import REPO, eventually

FIVE, MINUTE = ("delays.5s", 0), ("delays.1m", 0)


class Member:
    """A member whose turns a test takes."""

    def __init__(self, cluster: FakeLevels, **rules: Any) -> None:
        self.cluster = cluster
        self.loop = LevelLoop(cluster.source, cluster.sink, rules_of(cluster, **rules), cluster.ids(), cluster.clock)
        self.source = self.loop._source

    def run(self) -> None:
        """Take turns until nothing happens."""
        for _ in range(1000):
            if not self.loop.step(0.0):
                return
        raise AssertionError("it never comes to rest")

    def after(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        self.run()


# -- the names ------------------------------------------------------------------------------------------------


def test_a_delay_has_one_name_however_it_is_written() -> None:
    assert [level.name for level in parse_levels("250ms,5s,60s,90s,1h30m,24h,8d")] == [
        "250ms", "5s", "1m", "90s", "90m", "1d", "8d"
    ]  # fmt: skip
    assert Level(60_000).topic("delays") == "delays.1m"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing"),
        ("5s,,1m", "missing"),
        ("0s,5s", "longer than 0"),
        ("5s,5s", "twice"),
        ("60s,1m", "twice"),
        ("1m,5s", "5s stands after 1m"),
        ("soon", "not a duration"),
        ("-5s", "not a duration"),
        ("0.1ms", "whole milliseconds"),
        (",".join(f"{n}s" for n in range(1, 70)), "there may be 64"),
    ],
)
def test_levels_that_make_no_sense_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadArgument, match=why):
        parse_levels(text)


def test_a_delay_between_two_levels_takes_the_longer_one_so_that_nothing_is_early() -> None:
    levels = parse_levels(["5s", "30s", "1m"])
    assert [level_for(levels, s).name for s in (0, 5, 5.001, 31, 60)] == ["5s", "5s", "30s", "1m", "1m"]
    with pytest.raises(BadArgument, match="no level is as long as 61 s"):
        level_for(levels, 61)


# -- forwarding -----------------------------------------------------------------------------------------------


def test_a_record_goes_to_its_target_when_its_level_has_passed_and_not_before() -> None:
    cluster = FakeLevels()
    member = Member(cluster)
    cluster.put("5s", b"short", headers=[("scheduler-target-key", b"ann"), ("user", b"x")])
    cluster.put("1m", b"long")
    member.run()
    member.after(4.9)
    assert cluster.values() == []
    member.after(0.1)
    (record,) = cluster.out
    assert (record.topic, record.key, record.value) == ("mails", b"ann", b"short")
    headers = dict(record.headers)
    assert headers["user"] == b"x"
    assert headers["filewheel-id"] == b"delays.5s-0-0"
    assert headers["scheduler-topic"] == b"delays.5s"
    assert headers["filewheel-due-ms"] == b"1800000005000"
    assert "filewheel-delay-ms" not in headers
    member.after(55)
    assert cluster.values() == [b"short", b"long"]


def test_a_due_header_counts_and_one_far_beyond_the_level_is_a_dead_letter() -> None:
    cluster = FakeLevels()
    member = Member(cluster)
    now_ms = cluster.clock.now_us() // 1000
    cluster.put("5s", b"earlier", headers=[("filewheel-due-ms", b"%d" % (now_ms + 2000))])
    cluster.put("5s", b"later", headers=[("filewheel-due-ms", b"%d" % (now_ms + 7000))])
    cluster.put("5s", b"no such level", headers=[("filewheel-delay-ms", b"3600000")])
    cluster.put("5s", b"no target", target="")
    member.run()
    member.after(2)
    assert cluster.values() == [b"earlier"]
    member.after(5)
    assert cluster.values() == [b"earlier", b"later"]
    dead = [(r.value, dict(r.headers)["filewheel-error"]) for r in cluster.out if r.topic == "delays.dlt"]
    assert [value for value, _ in dead] == [b"no such level", b"no target"]
    assert b"it is due 3600 s after its timestamp" in (dead[0][1] or b"")


def test_an_offset_is_committed_after_its_record_was_confirmed_and_not_before() -> None:
    cluster = FakeLevels()
    cluster.auto = False
    member = Member(cluster)
    cluster.put("5s", b"a")
    cluster.put("5s", b"b")
    member.run()
    member.after(5)
    member.after(COMMIT_S)
    assert len(cluster.under_way) == 1
    assert cluster.committed == {}
    cluster.finish()
    member.run()
    member.after(COMMIT_S)
    assert cluster.committed == {FIVE: (2, "one")}


def test_after_a_crash_the_next_member_forwards_what_was_not_committed_again() -> None:
    cluster = FakeLevels()
    member = Member(cluster)
    cluster.put("5s", b"a")
    member.run()
    member.after(5)
    member.after(COMMIT_S)
    cluster.put("5s", b"b")
    member.run()
    member.after(5)  # forwarded, and not committed
    member.source.expelled()  # type: ignore[attr-defined]
    Member(cluster).run()
    assert cluster.values() == [b"a", b"b", b"b"]


def test_a_partition_that_moves_is_forwarded_by_both_members_together_once() -> None:
    cluster = FakeLevels(partitions=2)
    first = Member(cluster)
    for n in range(4):
        cluster.put("5s", b"%d" % n, partition=n % 2)
    first.run()
    second = Member(cluster)
    for _ in range(3):
        first.run()
        second.run()
    assert second.loop.partitions.keys() | first.loop.partitions.keys() == cluster.logs.keys()
    assert len(second.loop.partitions) == len(first.loop.partitions) == 2
    cluster.clock.advance(5)
    first.run()
    second.run()
    assert sorted(cluster.values()) == [b"0", b"1", b"2", b"3"]


def test_a_member_that_gives_a_partition_away_waits_for_its_unit_and_commits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "DRAIN_S", 600)
    cluster = FakeLevels()
    cluster.auto = False
    member = Member(cluster)
    cluster.put("5s", b"a")
    member.run()
    member.after(5)
    assert len(cluster.under_way) == 1
    answer = threading.Timer(0.2, cluster.finish)
    answer.start()
    member.loop.close()
    answer.join()
    assert cluster.committed == {FIVE: (1, "one")}
    cluster.auto = True
    Member(cluster).run()
    assert cluster.values() == [b"a"]


def test_a_member_that_lost_a_partition_commits_nothing_of_it() -> None:
    cluster = FakeLevels(levels="5s")
    member = Member(cluster)
    cluster.put("5s", b"a")
    member.run()
    member.after(5)
    member.loop.lost([FIVE])
    member.source.next.clear()  # type: ignore[attr-defined]
    member.after(COMMIT_S)
    member.loop.close()
    assert cluster.committed == {}


def test_a_refused_record_holds_its_partition_only_and_goes_when_its_target_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeLevels(partitions=2)
    cluster.refused["absent"] = Refusal("no such topic")
    member = Member(cluster)
    cluster.put("5s", b"a", target="absent")
    cluster.put("5s", b"behind")
    cluster.put("5s", b"other", partition=1)
    member.run()
    member.after(5)
    member.after(60)
    member.after(60)
    assert sorted(cluster.values()) == [b"behind", b"other"]  # one unit: what is behind in it has gone out
    status = {(s.topic, s.partition): s for s in member_status(member)}
    assert "no such topic" in status[FIVE].reason
    assert caplog.text.count("target absent refuses a record: no such topic") == 1
    del cluster.refused["absent"]
    member.after(60)
    assert cluster.values("absent") == [b"a"]
    assert sorted(cluster.values()) == [b"behind", b"other"]
    member.after(COMMIT_S)
    assert cluster.committed[FIVE] == (2, "one")


def test_the_metrics_and_the_health_of_levels_say_what_waits_is_late_and_stalls() -> None:
    cluster = FakeLevels(partitions=2)
    cluster.refused["absent"] = Refusal("no such topic")
    member = Member(cluster)
    service = service_of(cluster)
    assert service.metrics() == []
    assert service.health().is_serving
    service.watch(member.loop, member.cluster.ids())
    cluster.put("5s", b"a", target="absent")
    cluster.put("5s", b"b", partition=1)
    cluster.put("1m", b"c")
    member.run()
    cluster.clock.advance(7)
    member.run()
    found = {
        f"{s.name.removeprefix('filewheel_kafka_level_')}/{s.labels[0][1]}": s.value
        for family in service.metrics()
        for s in family.samples
    }
    assert len(found) == len(LEVEL_METERS) * 2
    assert (found["forwarded_total/5s"], found["forwarded_total/1m"]) == (1, 0)
    assert (found["read/5s"], found["read/1m"]) == (1, 1)
    assert found["late_seconds/5s"] == 2
    assert (found["overdue_seconds/5s"], found["overdue_seconds/1m"]) == (2, 0)
    assert (found["partitions/5s"], found["partitions_stalled/5s"]) == (2, 1)
    (problem,) = service.health().problems
    assert (problem.kind, problem.severity, problem.partition) == ("target", "warning", 0)
    assert "no such topic" in problem.reason
    member.loop.lost([*member.loop.partitions])
    assert service.health().problems == []
    assert {s.value for f in service.metrics() if f.name.endswith("forwarded_total") for s in f.samples} == {1, 0}


def stuck_after(service: LevelService, member: Member, seconds: int, *, turns: bool = True) -> list[str]:
    """Return what is stuck after so many seconds with turns, looks at the cluster and looks of the watchdog."""
    look = service._look
    assert look is not None
    for _ in range(seconds):
        member.cluster.clock.advance(1)
        if turns:
            member.run()
        look.look()
        service.health()
    return [p.reason for p in service.health().problems if p.kind == "stuck"]


def test_a_level_that_makes_no_progress_with_work_is_not_served() -> None:
    cluster = FakeLevels()
    member, service = Member(cluster), service_of(cluster)
    service.watch(member.loop, member.cluster.ids())
    cluster.put("5s", b"a")
    assert stuck_after(service, member, 40) == []
    cluster.auto = False
    cluster.put("5s", b"unconfirmed")
    assert stuck_after(service, member, 33) == []
    (reason,) = stuck_after(service, member, 3)
    assert re.fullmatch(r"delays.5s \[0\] was not forwarded for 3\d s: the brokers have not confirmed a unit", reason)
    assert not service.health().is_serving
    cluster.finish()
    member.run()
    assert service.health().problems == []
    member.source.next[MINUTE] = 1 << 30  # type: ignore[attr-defined]
    member.source.paused.add(MINUTE)  # type: ignore[attr-defined]
    cluster.put("1m", b"unread")
    (reason,) = stuck_after(service, member, 32)
    assert re.fullmatch(r"delays.1m \[0\] was not read for 3\d s: it was read up to offset 0, and ends at 1", reason)
    assert stuck_after(service, member, 32, turns=False)[0].startswith("the loop made no turn for 3")


def test_a_partition_whose_offset_the_group_does_not_say_is_stuck_and_begins_when_it_does() -> None:
    cluster = FakeLevels(levels="5s")
    cluster.is_silent = True
    member, service = Member(cluster), service_of(cluster)
    service.watch(member.loop, cluster.ids())
    cluster.put("5s", b"a")
    (reason,) = stuck_after(service, member, 33)
    assert re.fullmatch(r"delays.5s \[0\] was not read for 3\d s: the group does not say where to begin", reason)
    cluster.is_silent = False
    assert stuck_after(service, member, 10) == []
    assert cluster.values() == [b"a"]


def test_a_unit_whose_producer_is_finished_goes_out_through_another() -> None:
    cluster = FakeLevels(levels="5s")
    cluster.auto = False
    member = Member(cluster)
    for value in (b"a", b"b"):
        cluster.put("5s", value)
    member.run()
    member.after(5)
    (send,) = cluster.under_way
    cluster.under_way.clear()
    send.done(UnitOutcome(End.UNDECIDED, frozenset({0, 1}), reason="fatal"))
    cluster.auto = True
    member.run()
    member.after(COMMIT_S)
    assert cluster.values() == [b"a", b"b"]
    assert cluster.committed == {FIVE: (2, "one")}


def test_a_topic_of_a_level_that_is_made_anew_ends_the_service_and_the_next_one_begins_at_its_start() -> None:
    cluster = FakeLevels(levels="5s")
    member, service = Member(cluster), service_of(cluster)
    service.watch(member.loop, member.cluster.ids())
    for value in (b"a", b"b"):
        cluster.put("5s", value)
    member.run()
    member.after(5)
    member.after(COMMIT_S)
    assert cluster.committed == {FIVE: (2, "one")}
    cluster.make_anew("5s", b"c", b"d", b"e")  # longer than what was read
    assert service._look is not None
    service._look.look()
    assert isinstance(service._failure, WrongSource)
    assert service._stop.is_set()
    member.loop.close()
    again = Member(cluster)
    again.run()
    again.after(5)
    assert cluster.values() == [b"a", b"b", b"c", b"d", b"e"]


def member_status(member: Member) -> Any:
    service = service_of(member.cluster)
    service.watch(member.loop, member.cluster.ids())
    return service.status()


@pytest.mark.parametrize("policy", ["retry", "dead-letter"])
def test_a_record_that_its_target_never_takes_is_a_dead_letter(policy: str) -> None:
    cluster = FakeLevels()
    cluster.refused["mails"] = Refusal("too large", is_lasting=policy == "retry")
    member = Member(cluster, on_target_error=policy)
    cluster.put("5s", b"a")
    member.run()
    member.after(5)
    member.after(COMMIT_S)
    (dead,) = cluster.out
    assert (dead.topic, dead.value) == ("delays.dlt", b"a")
    assert dict(dead.headers)["filewheel-error"] == b"mails: too large"
    assert cluster.committed == {FIVE: (1, "one")}


def test_a_long_queue_pauses_its_partition_and_memory_stays_bounded() -> None:
    cluster = FakeLevels(partitions=2)
    member = Member(cluster)
    for n in range(3 * RECORDS_MAX):
        cluster.put("1m", b"%d" % n)
    for _ in range(40):
        cluster.put("5s", bytes(BYTES_MAX // 8), partition=1)
    member.run()
    long, large = member.loop.partitions[MINUTE].queue, member.loop.partitions["delays.5s", 1].queue
    assert RECORDS_MAX < long.waiting <= RECORDS_MAX + 500
    assert large.is_paused
    member.after(5)
    member.after(60)
    assert len(cluster.out) == 3 * RECORDS_MAX + 40
    assert cluster.values()[-3 * RECORDS_MAX :] == [b"%d" % n for n in range(3 * RECORDS_MAX)]


def test_a_service_ends_at_stop_and_runs_once() -> None:
    cluster = FakeLevels()
    service = service_of(cluster)
    thread = threading.Thread(target=service.run)
    thread.start()
    eventually(lambda: len(service.status()) == 2, timeout_s=60)
    service.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert not cluster.members
    with pytest.raises(BadArgument, match="runs once"):
        service.run()


# -- the command ----------------------------------------------------------------------------------------------


def test_on_a_real_broker_the_examples_make_the_topics_and_a_node_forwards_and_ends_with_0(
    kafka: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    from confluent_kafka import Consumer, Producer

    name, target = f"t-{uuid.uuid4().hex[:12]}", topic()
    words = {"localhost:9092": kafka, "delays": name, "5s,30s,1m,10m": "1s,1h"}
    make, run = ([words.get(word, word) for word in line.split()[1:]] for line in examples("kafka", "levels"))
    assert f"there is no topic {name}.1s" in invoke(*run).err
    made = invoke(*make, "--partitions", "2")
    assert made.code == 0
    assert [name in made.out for name in (f"{name}.1s", f"{name}.1h", f"{name}.dlt")] == [True] * 3
    log = tmp_path / "log"
    with log.open("w") as stderr:
        command = [PYTHON, "-m", "cli", *run, "--listen", "127.0.0.1:0"]
        node = subprocess.Popen(command, cwd=REPO, env=environment(), stderr=stderr)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        producer = Producer({"bootstrap.servers": kafka})
        headers: Any = {"scheduler-target-topic": target}
        sent_ms = time.time() * 1000
        for n in range(10):
            producer.produce(f"{name}.1s", b"%d" % n, headers=headers)
        producer.produce(f"{name}.1h", b"not yet", headers=headers)
        assert producer.flush(60) == 0
        consumer.subscribe([target])
        found: list[Any] = []

        def arrived() -> bool:
            found.extend(message for message in consumer.consume(10, 0.2) if not message.error())
            return len(found) >= 10

        eventually(arrived, timeout_s=60)
        assert sorted(message.value() for message in found) == [b"%d" % n for n in range(10)]
        assert all(message.timestamp()[1] >= sent_ms + 1000 - 1 for message in found)
        (url,) = re.findall(r"/health are at (http\S+)", log.read_text())
        metrics = read(f"{url}/metrics")
        node.send_signal(signal.SIGTERM)
        node.wait(60)
    finally:
        consumer.close()
        node.kill()
        node.wait()
    assert node.returncode == 0, log.read_text()
    assert re.search(r'level_partitions\{topic="[^"]+",node="[^"]+",level="1h"\} 2\n', metrics)
    assert re.search(rf"{name}\.1s \[\d\]: this node forwards it", log.read_text())


def test_records_that_retention_deleted_before_they_were_forwarded_are_said_to_be_lost(
    kafka: str, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    name = f"t-{uuid.uuid4().hex[:12]}"
    config = {"bootstrap.servers": kafka}
    levels = parse_levels("500ms")
    make_level_topics(config, name, levels, partitions=1)
    source = f"{name}.500ms"

    def put(*values: bytes) -> None:
        producer = Producer(config)
        for value in values:
            producer.produce(source, value, headers={"scheduler-target-topic": f"{name}.dlt"})
        assert producer.flush(60) == 0

    def gaps(service: LevelService) -> float:
        (found,) = [f for f in service.metrics() if f.name == "filewheel_kafka_level_gaps_total"]
        return found.samples[0].value

    def run(forwarded: int) -> LevelService:
        service = level_service(config, name, levels, group=name, node="node")
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            eventually(lambda: sum(status.forwarded for status in service.status()) == forwarded, timeout_s=60)
        finally:
            service.stop()
            thread.join(60)
        return service

    put(b"a")
    assert gaps(run(1)) == 0  # a new group is no gap
    put(b"b", b"c", b"d")
    admin = AdminClient(config)  # a name, because the answer comes only while it lives
    (deleted,) = admin.delete_records([TopicPartition(source, 0, 3)]).values()
    deleted.result(60)
    assert gaps(run(1)) >= 1
    assert f"{source} [0]: its log was deleted before it was forwarded" in caplog.text


@pytest.mark.parametrize(("levels", "why"), [("1m,5s", "stands after"), ("0s", "longer than 0"), ("", "missing")])
def test_wrong_levels_are_refused_before_the_cluster_is_asked(levels: str, why: str) -> None:
    result = invoke("kafka", "levels", "-b", "127.0.0.1:1", "-t", "delays", "--levels", levels)
    assert result.code == 2
    assert why in result.err
    if levels:
        assert invoke("kafka", "init", "-b", "127.0.0.1:1", "-t", "delays", "--levels", levels).code == 2


@pytest.mark.parametrize("verb", [("levels", "--levels", "5s"), ("run", "--data", "data")])
def test_a_wrong_address_to_listen_at_is_refused_before_a_broker_is_waited_for(verb: tuple[str, ...]) -> None:
    result = invoke("kafka", verb[0], "-b", "127.0.0.1:1", "-t", "delays", *verb[1:], "--listen", "nowhere")
    assert result.code == 2
    assert "'nowhere' is no address to listen at" in result.err


def test_a_service_that_waits_begins_when_a_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    answers: list[Exception | None] = [NoBroker("nobody answers"), NoBroker("nobody answers"), None]

    def check(transport: ConfluentLevels) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(ConfluentLevels, "check", check)
    config = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(NoBroker):
        level_service(config, "delays", parse_levels("5s"), group="g", node="n")
    assert level_service(config, "delays", parse_levels("5s"), group="g", node="n", waits=True).status() == []
    assert not answers


def test_a_retention_shorter_than_a_level_is_refused() -> None:
    result = invoke("kafka", "init", "-b", "127.0.0.1:1", "-t", "x", "--levels", "5s,2h", "--retention", "1h")
    assert result.code == 2
    assert "records of the level 2h wait longer" in result.err
