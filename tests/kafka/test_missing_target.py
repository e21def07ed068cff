"""A target that does not exist holds nothing else up; one that refuses holds its partition, and the log says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel.errors import BadArgument
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.records.options import Policy
from tests.kafka.fake import Cluster, Log
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands
from tests.support import FakeClock

MISSING = Refusal("Broker: Unknown topic or partition", is_missing=True)


def node(cluster: Cluster, path: Path, policy: Policy, *, exactly_once: bool = False) -> Hands:
    clock = FakeClock(cluster.now_ms * 1000)
    return Hands(
        cluster, clock=clock, disk=Folder(path, clock, policy), exactly_once=exactly_once,
        settings=NodeSettings(exactly_once=exactly_once),
    )  # fmt: skip


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_record_for_a_missing_topic_is_put_back_and_what_is_behind_it_goes_out(
    tmp_path: Path, exactly_once: bool
) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["typo"] = MISSING
    put(cluster, b"lost", target="typo")
    put(cluster, b"behind")
    first = node(cluster, tmp_path, Policy("delay"), exactly_once=exactly_once)
    first.run()
    assert cluster.values() == [b"behind"]
    cluster.logs["typo", 0] = Log()
    del cluster.refused["typo"]
    first.after(9)
    assert cluster.values("typo") == []
    first.after(2)
    assert cluster.values("typo") == [b"lost"]
    headers = dict(cluster.logs["typo", 0].entries[0].headers)
    assert (headers["filewheel-id"], headers["filewheel-attempt"]) == (b"delay-0-0", b"1")


def test_a_record_whose_topic_stays_missing_is_a_dead_letter_after_the_attempts(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["typo"] = MISSING
    put(cluster, b"lost", target="typo")
    first = node(cluster, tmp_path, Policy("delay", attempts_max=3))
    for _ in range(3):
        first.after(11)
        assert cluster.values("delay.dlt") == []
    first.after(11)
    assert cluster.values("delay.dlt") == [b"lost"]
    reason = dict(cluster.logs["delay.dlt", 0].entries[0].headers)["filewheel-error"] or b""
    assert reason.startswith(b"typo: Broker: Unknown topic")
    first.after(60)
    assert len(cluster.logs["delay", 0].entries) == 4


def test_in_a_keyed_topic_such_a_record_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["typo"] = MISSING
    put(cluster, b"lost", target="typo", key=b"k")
    put(cluster, b"behind", key=b"other")
    node(cluster, tmp_path, Policy("delay", keyed=True)).run()
    assert (cluster.values("delay.dlt"), cluster.values()) == ([b"lost"], [b"behind"])
    with pytest.raises(BadArgument, match="keyed and on_missing_target='put-back' exclude each other"):
        Policy("delay", keyed=True, on_missing_target="put-back")


def test_a_missing_topic_is_waited_for_where_that_was_asked_for(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["typo"] = MISSING
    put(cluster, b"lost", target="typo")
    put(cluster, b"behind", after_ms=1)
    first = node(cluster, tmp_path, Policy("delay", on_missing_target="retry"))
    first.run()
    first.after(100)
    assert (cluster.values(), len(cluster.logs["delay", 0].entries)) == ([], 2)
    cluster.logs["typo", 0] = Log()
    del cluster.refused["typo"]
    first.after(20)
    assert (cluster.values("typo"), cluster.values()) == ([b"lost"], [b"behind"])


@pytest.mark.parametrize(
    ("policy", "refusal", "fate"),
    [
        (Policy("delay"), Refusal("not authorized"), "it is tried again"),
        (Policy("delay"), Refusal("no such topic", is_missing=True), "it goes to delay"),
        (Policy("delay", on_target_error="dead-letter"), Refusal("not authorized"), "it goes to delay.dlt"),
    ],
    ids=["retry", "put back", "dead letter"],
)
def test_a_target_that_refuses_is_named_once_in_the_log_and_in_the_health_until_it_takes_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: Policy, refusal: Refusal, fate: str
) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["closed"] = refusal
    put(cluster, b"one", target="closed")
    put(cluster, b"two", target="closed", after_ms=5000)
    first = node(cluster, tmp_path, policy)
    for _ in range(5):
        first.after(10)
        problems = first.node.health().problems
        assert [(p.kind, p.severity, p.partition) for p in problems] == [("target", "warning", 0)]
        assert problems[0].reason == f"target closed refuses records: {refusal.reason}"
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("target")]
    assert said == [f"target closed refuses a record: {refusal.reason}; {fate}"]
    del cluster.refused["closed"]
    cluster.logs["closed", 0] = Log()
    put(cluster, b"three", target="closed", after_ms=50_000)
    first.after(20)
    assert b"three" in cluster.values("closed")
    assert first.node.health().problems == []


def test_a_target_that_nobody_writes_to_any_more_is_forgotten(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["closed"] = Refusal("not authorized")
    put(cluster, b"one", target="closed")
    first = node(cluster, tmp_path, Policy("delay", on_target_error="dead-letter"))
    first.after(1)
    assert [p.kind for p in first.node.health().problems] == ["target"]
    first.watched(61)
    assert first.node.health().problems == []


def test_the_client_tells_a_missing_topic_from_one_that_may_not_be_written() -> None:
    kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    from filewheel.kafka.client.trouble import refusal_of

    missing = refusal_of(kafka.KafkaError(kafka.KafkaError._UNKNOWN_TOPIC))
    closed = refusal_of(kafka.KafkaError(kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert missing is not None
    assert closed is not None
    assert (missing.is_missing, closed.is_missing) == (True, False)
