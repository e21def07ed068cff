"""What a node measures, and what it says of its health: on the cluster in memory, and by HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from filewheel import BadArgument
from filewheel.errors import ClusterError, WheelFull
from filewheel.kafka.node import listen
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.listen import CLIENTS_MAX, StatusServer, address_of
from filewheel.kafka.node.meters import BY_NAME, GROUPS, LEVEL_METERS, METERS, PREFIX, Kind
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import End, Refusal
from filewheel.kafka.node.watch import LOOK_S
from filewheel.kafka.records.headers import delayed_of, kind_of_reason
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Headers, Outgoing, Record
from filewheel.message import MessageId
from filewheel.metrics import render
from tests import grafana
from tests.kafka import dashboard
from tests.kafka.fake import Cluster, FakeTransport
from tests.kafka.folder import Folder
from tests.kafka.hands import Hands
from tests.support import REPO, FakeClock, eventually

DAY_S = 86_400


def a_node(cluster: Cluster, *, disk: Any = None, **settings: Any) -> Hands:
    """Return a node that owns all partitions, with a tally that knows the topics."""
    clock = FakeClock(cluster.now_ms * 1000)
    tally = NodeCounters(cluster.topic, f"{cluster.topic}.dlt", clock=clock)
    hands = Hands(cluster, clock=clock, disk=disk, settings=NodeSettings(**settings), tally=tally)
    hands.run()
    return hands


def put(cluster: Cluster, in_s: float, value: bytes = b"x", partition: int = 0) -> int:
    due_ms = cluster.now_ms + round(in_s * 1000)
    return cluster.put(value, partition=partition, headers=[("due-ms", b"%d" % due_ms)])


def values(hands: Hands) -> dict[str, float]:
    """Return each sample by name and label value."""
    return {
        "/".join([s.name.removeprefix(PREFIX), *(value for _, value in s.labels)]): s.value
        for family in hands.node.metrics.families()
        for s in family.samples
    }


def test_each_meter_has_a_name_of_its_kind_and_shows_up_in_a_busy_node(tmp_path: Path) -> None:
    cluster = Cluster(partitions=2)
    cluster.retention_ms = 1000 * DAY_S
    hands = a_node(cluster, standby="all")
    hands.node.metrics.clock_offset_us = lambda: 1500
    put(cluster, 5)
    hands.run()
    hands.after(LOOK_S)
    put(cluster, 60)
    hands.after(1)
    shown = {name.partition("/")[0] for name in values(hands)}
    for meter in METERS:
        assert meter.name.endswith("_total") == (meter.kind is Kind.COUNTER), meter.name
        assert (f"{meter.name}_count" if meter.kind is Kind.HISTOGRAM else meter.name) in shown or meter.name in (
            "standby_lag_records",  # of what others own
        ), meter.name
    assert len(BY_NAME) == len(METERS)
    assert values(hands)["clock_offset_seconds"] == 0.0015


def test_records_are_counted_by_where_they_went_and_lateness_runs_to_the_confirmation() -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, 5)
    put(cluster, 5)
    put(cluster, 60)
    hands.run()
    hands.clock.advance(5)
    hands.settle_down()
    hands.clock.advance(0.4)  # the cluster takes its time
    hands.run()
    found = values(hands)
    assert found["in_total/delayed"] == 3
    assert found["out_total/delivered"] == 2
    assert found["units_total/delivered"] == 1
    assert found["waiting/0"] == 1
    assert found["lateness_seconds_count"] == 2
    assert found["lateness_seconds_sum"] == pytest.approx(0.8)
    assert found["lateness_seconds_bucket/0.25"] == 0
    assert found["lateness_seconds_bucket/0.5"] == 2
    assert found["takeovers_total"] == 1
    assert found["partitions/active"] == 1


def test_a_refused_record_is_a_dead_letter_and_the_unit_before_it_counts_as_refused() -> None:
    cluster = Cluster(partitions=1)
    cluster.refused["target"] = Refusal("too large", is_lasting=True)
    hands = a_node(cluster)
    put(cluster, 1)
    hands.run()
    hands.after(1)
    found = values(hands)
    assert (found["out_total/dead_letter"], found["out_total/delivered"]) == (1, 0)
    assert found["dead_letters_total/refused"] == 1
    assert (found["units_total/refused"], found["units_total/delivered"]) == (1, 1)


def test_a_dead_target_stalls_the_partition_which_is_a_warning_with_the_reason() -> None:
    cluster = Cluster(partitions=2)
    cluster.refused["target"] = Refusal("no such topic")
    hands = a_node(cluster)
    put(cluster, 1)
    hands.run()
    hands.after(1)
    assert values(hands)["partitions_stalled"] == 1
    hands.clock.advance(20)
    assert values(hands)["overdue_seconds/0"] == pytest.approx(20, abs=1)
    health = hands.node.health()
    assert health.is_serving
    (problem,) = health.problems
    assert (problem.kind, problem.partition) == ("target", 0)
    assert problem.reason == "target target refuses records: no such topic"
    assert values(hands)["problems/warning"] == 1


@pytest.mark.parametrize("late_us", [[0], [-5, 0, 500, 501], [7_200_000_000, 3_600_000_000, 9], [1] * 50])
def test_lateness_by_ids_is_that_of_each_message(late_us: list[int]) -> None:
    now_us = 1_800_000_000_000_000
    ids = sorted(MessageId.make(now_us - us, 1, n) for n, us in enumerate(late_us))
    by_ids, one_by_one = NodeCounters(), NodeCounters()
    by_ids.was_late(ids, now_us)
    one_by_one.observe("lateness_seconds", late_us)
    (found, sum_s), (buckets, right_s) = by_ids.times("lateness_seconds"), one_by_one.times("lateness_seconds")
    assert found == buckets
    assert sum_s == pytest.approx(right_s, abs=1e-5)


def test_a_look_that_fails_in_an_unforeseen_way_ends_no_service(caplog: pytest.LogCaptureFixture) -> None:
    hands = a_node(Cluster(partitions=1))
    hands.node.watch._transport = None  # type: ignore[assignment]
    hands.after(LOOK_S)
    hands.after(LOOK_S)
    assert caplog.text.count("could not be looked at") == 1


def test_the_record_at_low_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    cluster.retention_ms = 10 * DAY_S * 1000
    hands = a_node(cluster)
    put(cluster, DAY_S)
    hands.run()
    hands.after(LOOK_S)
    monkeypatch.setattr(FakeTransport, "timestamp_at", None)
    hands.after(LOOK_S)
    assert values(hands)["margin_seconds/0"] == pytest.approx(10 * DAY_S - 2 * LOOK_S)


def test_a_record_whose_target_is_the_dead_letter_topic_has_no_reason() -> None:
    tally = NodeCounters("delay", "delay.dlt")
    tally.sent_out([Outgoing("delay.dlt", None, b"x"), Outgoing("target", None, b"y")], ())
    assert sum(tally.counts("dead_letters_total").values()) == 0
    assert tally.counts("out_total") == {"delivered": 1, "dead_letter": 1, "rolled": 0, "put_back": 0}


@pytest.mark.parametrize("end", [End.FAILED, End.FENCED, End.UNDECIDED])
def test_a_unit_that_ends_otherwise_is_counted_by_its_end(end: End) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster, exactly_once=True)
    put(cluster, 1)
    hands.settle_down()
    hands.clock.advance(1)
    hands.settle_down()
    cluster.finish(end)
    hands.settle_down()
    assert values(hands)[f"units_total/{end.value}"] == 1
    assert values(hands)["out_total/delivered"] == 0


def test_counts_stay_when_the_partition_goes() -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, 1)
    hands.run()
    hands.after(1)
    hands.node.owner.revoked([0])
    found = values(hands)
    assert found["out_total/delivered"] == 1
    assert "waiting/0" not in found
    assert found["partitions/active"] == 0


def test_every_reason_of_a_dead_letter_has_a_kind_of_its_own() -> None:
    policy = Policy("delay", horizon_s=60)
    due = ("filewheel-due-ms", b"1000")
    target = ("scheduler-target-topic", b"t")

    def kind(*headers: tuple[str, bytes | None]) -> str:
        verdict = delayed_of(Record(0, 0, None, b"x", list(headers), 1000), policy)
        return kind_of_reason(getattr(verdict, "reason", "delivered"))

    assert kind(target) == "no_due"
    assert kind(due) == "no_target"
    assert kind(("filewheel-due-ms", b"soon"), target) == "malformed"
    assert kind(("filewheel-due-ms", b"999999999"), target) == "horizon"
    assert kind_of_reason("it has 70000000 bytes, and a wheel takes 67108864") == "too_large"
    assert set(BY_NAME["dead_letters_total"].values) == {
        "no_due", "no_target", "malformed", "horizon", "too_large", "refused"
    }  # fmt: skip


def test_dead_letters_of_real_rules_are_counted_by_reason(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster, disk=Folder(tmp_path, FakeClock(cluster.now_ms * 1000)))
    no_target: Headers = [("filewheel-due-ms", b"1")]
    cluster.put(b"a", headers=no_target)
    cluster.put(b"b")
    hands.run()
    hands.after(1)
    found = values(hands)
    assert found["in_total/dead_letter"] == 2
    assert found["out_total/dead_letter"] == 2
    assert (found["dead_letters_total/no_target"], found["dead_letters_total/no_due"]) == (1, 1)


# -- retention ------------------------------------------------------------------------------------------------


def test_a_record_that_waits_longer_than_the_retention_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(partitions=1)
    cluster.retention_ms = 7 * DAY_S * 1000
    hands = a_node(cluster)
    hands.after(0)
    with caplog.at_level(logging.WARNING):
        put(cluster, 6 * DAY_S)
        hands.run()
        assert values(hands)["beyond_retention_total"] == 0
        put(cluster, 8 * DAY_S)
        hands.run()
        put(cluster, 9 * DAY_S)
        hands.run()
    assert values(hands)["beyond_retention_total"] == 2
    (said,) = [r.getMessage() for r in caplog.records if "retention.ms" in r.getMessage()]
    assert "691200 s" in said
    assert "604800 s" in said


def test_the_retention_is_known_before_the_first_record_comes() -> None:
    cluster = Cluster(partitions=1)
    cluster.retention_ms = 60_000
    clock = FakeClock(cluster.now_ms * 1000)
    hands = Hands(cluster, clock=clock, tally=NodeCounters(cluster.topic, clock=clock))
    hands.node.housekeeping_step()  # no partition is ours yet
    put(cluster, 600)
    hands.run()
    assert values(hands)["beyond_retention_total"] == 1
    hands.after(1.1)  # a look follows soon
    assert "margin_seconds/0" in values(hands)


def test_before_retention_deletes_what_waits_the_node_warns_by_log_metric_and_health(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(partitions=1)
    cluster.retention_ms = 10 * DAY_S * 1000
    hands = a_node(cluster)
    put(cluster, 20 * DAY_S)
    hands.run()
    hands.after(LOOK_S)
    assert not hands.node.health().problems
    assert values(hands)["margin_seconds/0"] == pytest.approx(10 * DAY_S - LOOK_S)
    with caplog.at_level(logging.WARNING):
        hands.clock.advance(9.5 * DAY_S)
        hands.node.poll_step()  # a turn of each thread, so that none seems stuck
        hands.after(LOOK_S)
        hands.after(LOOK_S)
    assert values(hands)["margin_seconds/0"] == pytest.approx(0.5 * DAY_S - 3 * LOOK_S)
    (problem,) = hands.node.health().problems
    assert (problem.kind, problem.severity) == ("retention", "warning")
    assert len([r for r in caplog.records if "cannot be rebuilt" in r.getMessage()]) == 1


def test_when_retention_has_deleted_what_waits_the_margin_is_below_zero(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, DAY_S)
    hands.run()
    cluster.put(b"y", headers=[("due-ms", b"%d" % (cluster.now_ms + DAY_S * 1000))])
    hands.run()
    cluster.keep_from(0, 1)
    hands.after(LOOK_S)
    assert values(hands)["margin_records/0"] == -1
    assert [p.kind for p in hands.node.health().problems] == ["retention"]
    assert "Keep this data directory" in caplog.text


def test_a_cluster_that_does_not_answer_leaves_the_last_figures(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    put(cluster, DAY_S)
    hands.run()
    hands.after(LOOK_S)
    cluster.is_down = True
    hands.after(LOOK_S)
    assert values(hands)["log_start_offset/0"] == 0
    cluster.is_down = False
    cluster.keep_from(0, 1)
    hands.after(LOOK_S)
    assert values(hands)["log_start_offset/0"] == 1


def test_an_offset_that_the_brokers_do_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    from filewheel.kafka.client.reader import LogReader

    def range_of(topic: str, partition: int, limit_s: float) -> tuple[int, int]:
        if partition == 0:
            raise ClusterError("delay [0]: the brokers do not say where it ends", hint="call again")
        return 7, 7

    reader = LogReader({"group.id": "nobody", "log_level": 0}, "delay.cursor")
    monkeypatch.setattr(reader, "range_of", range_of)
    assert reader.ranges([("delay", 0), ("delay", 1)]) == {("delay", 1): (7, 7)}


# -- health ---------------------------------------------------------------------------------------------------


def test_a_partition_that_failed_or_has_no_room_is_not_served() -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    owned = hands.node.owner.owned[0]
    owned.error = WheelFull("no space left", path="/data")
    assert [(p.kind, p.severity) for p in hands.node.health().problems] == [("disk_full", "failing")]
    assert values(hands)["partitions_disk_full"] == 1
    hands.node.owner.fail(owned, owned.error)
    assert [p.kind for p in hands.node.health().problems] == ["failed"]
    assert values(hands)["partitions/failed"] == 1
    assert not hands.node.health().is_serving


# -- by HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[tuple[Hands, StatusServer]]:
    hands = a_node(Cluster(partitions=1))
    service = SimpleNamespace(metrics=hands.node.metrics.families, health=hands.node.health)
    with StatusServer.of(service, "127.0.0.1:0", labels={"topic": 'a"b'}) as listener:
        yield hands, listener


def get(listener: StatusServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", listener.port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), str(answer.getheader("Content-Type"))
    finally:
        connection.close()


def test_metrics_are_the_text_of_prometheus_with_the_labels_of_the_node(served: tuple[Hands, StatusServer]) -> None:
    hands, listener = served
    status, text, kind = get(listener, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=0.0.4")
    assert 'filewheel_kafka_partitions{topic="a\\"b",state="active"} 1\n' in text
    assert text.count("# TYPE") == len(hands.node.metrics.families())
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    assert len(list(text_string_to_metric_families(text))) == text.count("# TYPE")


def test_health_is_200_when_all_is_served_and_503_with_reasons_when_not(served: tuple[Hands, StatusServer]) -> None:
    hands, listener = served
    assert get(listener, "/health")[:2] == (200, '{"status": "ok", "problems": []}\n')
    owned = hands.node.owner.owned[0]
    hands.node.owner.fail(owned, WheelFull("no space left", path="/data"))
    status, text, kind = get(listener, "/health")
    assert (status, kind) == (503, "application/json")
    found = json.loads(text)
    assert found["status"] == "failing"
    assert found["problems"][0]["partition"] == 0
    assert "no space left" in found["problems"][0]["reason"]
    assert get(listener, "/health", "HEAD")[:2] == (503, "")


def test_other_paths_and_methods_are_refused(served: tuple[Hands, StatusServer]) -> None:
    _, listener = served
    assert get(listener, "/secret")[0] == 404
    assert get(listener, "/metrics", "POST")[0] == 501


def test_clients_too_many_are_hung_up_on_and_those_who_leave_make_room(
    served: tuple[Hands, StatusServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, listener = served
    monkeypatch.setattr(listen._Request, "timeout", 600)  # the idle ones stay, however slow this machine is
    idle = [socket.create_connection(("127.0.0.1", listener.port), timeout=30) for _ in range(CLIENTS_MAX)]
    eventually(lambda: listener.clients == CLIENTS_MAX, timeout_s=30)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        get(listener, "/health")
    for client in idle:
        client.close()
    eventually(lambda: listener.clients == 0, timeout_s=30)
    assert get(listener, "/health")[0] == 200


def test_a_metric_that_fails_answers_500_and_the_listener_goes_on() -> None:
    def broken() -> str:
        raise RuntimeError("no")

    with StatusServer(
        "127.0.0.1:0", metrics=broken, health=lambda: NodeHealth([Problem("x", "warning", "y")])
    ) as listener:
        assert get(listener, "/metrics")[0] == 500
        assert get(listener, "/health?full=1")[0] == 200


@pytest.mark.parametrize(
    ("text", "found"),
    [("9464", ("127.0.0.1", 9464)), (":1", ("127.0.0.1", 1)), ("0.0.0.0:2", ("0.0.0.0", 2)), ("[::1]:3", ("::1", 3))],
)
def test_an_address_is_a_port_or_a_host_with_one(text: str, found: tuple[str, int]) -> None:
    assert address_of(text) == found


@pytest.mark.parametrize("text", ["", "localhost", "localhost:http", "localhost:65536", "localhost:-1", "x:²"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="no address"):
        address_of(text)


def test_a_taken_port_and_a_host_that_is_not_here_are_refused_with_the_next_step(
    served: tuple[Hands, StatusServer],
) -> None:
    _, listener = served
    for address in (f"127.0.0.1:{listener.port}", "192.0.2.1:9464"):
        with pytest.raises(BadArgument, match="cannot listen") as caught:
            StatusServer(address, metrics=str, health=lambda: NodeHealth([]))
        assert "--listen" in str(caught.value.hint)


def test_the_text_of_a_node_without_partitions_is_valid() -> None:
    cluster = Cluster(partitions=1)
    hands = a_node(cluster)
    hands.node.owner.revoked([0])
    assert render(hands.node.metrics.families()).endswith("\n")


# -- what is made from the table ------------------------------------------------------------------------------


def test_the_page_and_the_dashboard_are_those_that_the_table_makes() -> None:
    page = (REPO / "docs" / "kafka.md").read_text(encoding="utf-8")
    assert dashboard.table() in page, "python -m tests.kafka.dashboard --table"
    assert dashboard.table(LEVEL_METERS) in page, "python -m tests.kafka.dashboard --table"
    found = (REPO / "docs" / "examples" / "kafka" / "grafana.json").read_text(encoding="utf-8")
    assert found == grafana.as_json(dashboard.dashboard()), (
        "python -m tests.kafka.dashboard > docs/examples/kafka/grafana.json"
    )


def test_the_dashboard_has_a_panel_for_each_meter_and_none_lies_on_another() -> None:
    panels = dashboard.dashboard()["panels"]
    asked = " ".join(panel["targets"][0]["expr"] for panel in panels if panel["type"] != "row")
    assert all(meter.full_name in asked for meter in (*METERS, *LEVEL_METERS))
    assert len(panels) == len(METERS) + len(LEVEL_METERS) + len(GROUPS)
    cells = grafana.cells_of(dashboard.dashboard())
    assert len(cells) == len(set(cells))


def test_each_metric_that_the_alarms_of_the_page_name_exists() -> None:
    page = (REPO / "docs" / "kafka.md").read_text(encoding="utf-8")
    known = {meter.full_name for meter in (*METERS, *LEVEL_METERS)} | {
        f"{meter.full_name}_bucket" for meter in METERS if meter.kind is Kind.HISTOGRAM
    }
    named = set(re.findall(r"filewheel_kafka_\w+", page))
    assert named <= known
    assert len(named) >= len(METERS)


def test_the_page_names_each_kind_of_problem_with_its_severity() -> None:
    page = (REPO / "docs" / "kafka.md").read_text(encoding="utf-8")
    _, _, after = page.partition("| kind | severity | meaning |")
    named = set(re.findall(r"^\| `(\w+)` \| (failing|warning) \|", after, re.MULTILINE))
    source = (REPO / "filewheel" / "kafka" / "node" / "units.py").read_text(encoding="utf-8")
    assert named == {("stuck", "failing"), *re.findall(r'Problem\("(\w+)", "(\w+)"', source)}
