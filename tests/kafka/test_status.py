"""The notes of nodes in the group, and the state of a service that comes of them. No broker."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cli.commands.kafka.status import _row
from filewheel.errors import DiskError
from filewheel.kafka import status
from filewheel.kafka.client import group_view
from filewheel.kafka.client.group_view import GroupMember, GroupSnapshot
from filewheel.kafka.node.note import BYTES_MAX, About, Note
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.options import Policy
from filewheel.kafka.status import reports_of
from tests.kafka.fake import Cluster
from tests.kafka.hands import Hands

NOW_MS = 1_800_000_000_000
NOTE = Note("n1", "host", 7, "/data", False, False, "active", 3, 2, 0, "", NOW_MS)


def put(cluster: Cluster, name: bytes, *, after_ms: int = 0) -> None:
    cluster.put(name, headers=[("due-ms", str(cluster.now_ms + after_ms).encode())])


def notes_of(node: Hands) -> dict[int, Note]:
    node.clock.advance(6)
    node.node.housekeeping_step()
    node.run()
    found = {p: Note.unpack(text) for p, text in node.node.source.notes.items()}  # type: ignore[attr-defined]
    assert all(found.values())
    return found  # type: ignore[return-value]


def test_an_owner_leaves_a_note_of_what_waits_beside_the_committed_offset() -> None:
    cluster = Cluster()
    put(cluster, b"later", after_ms=60_000)
    put(cluster, b"too", after_ms=90_000)
    node = Hands(cluster)
    node.node.about = About("n1", "host", 7, "/data", keyed=True, standby=False)
    node.run()
    note = notes_of(node)[0]
    assert (note.node, note.host, note.pid, note.data, note.keyed) == ("n1", "host", 7, "/data", True)
    assert (note.state, note.waiting, note.low, note.late_ms, note.problem) == ("active", 2, 0, 0, "")
    assert node.node.source.committed[0] == 2  # type: ignore[attr-defined]


def test_a_partition_whose_target_refuses_says_so_and_how_late_the_record_is() -> None:
    cluster = Cluster()
    cluster.refused["target"] = Refusal("no such topic")
    put(cluster, b"due", after_ms=1000)
    node = Hands(cluster)
    node.run()
    node.after(1)
    note = notes_of(node)[0]
    assert note.problem == "target: target target refuses records: no such topic"
    assert note.late_ms >= 5000


def test_a_partition_that_failed_keeps_its_note_with_the_reason() -> None:
    cluster = Cluster()
    node = Hands(cluster)
    node.run()
    node.node.owner.fail(node.node.owner.owned[0], DiskError("broken"))
    note = notes_of(node)[0]
    assert (note.state, note.problem) == ("failed", "failed: broken")


def test_a_partition_that_was_given_away_gets_no_note_of_this_node() -> None:
    cluster = Cluster()
    node = Hands(cluster, settings=NodeSettings())
    node.run()
    node.clock.advance(6)
    node.node.housekeeping_step()  # the note waits for the thread of the source
    node.node.owner.lost([0])
    node.node.source.notes.clear()  # type: ignore[attr-defined]
    node.run()
    assert 0 not in node.node.source.notes  # type: ignore[attr-defined]


def test_a_note_is_short_and_understood_again() -> None:
    assert Note.unpack(NOTE.pack()) == NOTE
    long = replace(NOTE, problem="ü" * 5000, data="\U0001f600" * 5000, host="\0" * 5000, node="é" * 5000)
    assert len(long.pack().encode()) <= BYTES_MAX
    found = Note.unpack(long.pack())
    assert found is not None
    assert found.low == 2


@pytest.mark.parametrize(
    "text",
    [
        None, "", "x", "5", "[]", "{}", '{"v":2}', '{"v":1}', NOTE.pack().replace("7", '"7"'),
        NOTE.pack().replace('"active"', "5"), "[" * 100_000,
    ],
)  # fmt: skip
def test_a_text_that_is_no_note_is_none(text: str | None) -> None:
    assert Note.unpack(text) is None


def view(**changes: Any) -> GroupSnapshot:
    """One partition of n1, all well."""
    found = GroupSnapshot({0: (0, 10)}, {0: (8, NOTE.pack())}, (GroupMember("n1", "/10.0.0.1", frozenset({0})),))
    return replace(found, **changes)


def test_a_partition_of_a_living_node_is_reported_as_its_note_says() -> None:
    (report,) = reports_of(view(), NOW_MS)
    assert (report.owner, report.host, report.state, report.waiting, report.lag) == ("n1", "host", "active", 3, 2)
    assert (report.low, report.log_start, report.log_end, report.late_ms, report.standbys) == (2, 0, 10, 0, 0)
    assert report.problem == ""


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (view(members=()), "no owner"),
        (view(ranges={0: None}), "no leader"),
        (view(committed={0: (8, replace(NOTE, problem="stalled: x").pack())}), "stalled: x"),
        (view(committed={0: (8, replace(NOTE, at_ms=NOW_MS - 61_000).pack())}), "silent: .* for 61 s"),
        (view(ranges={0: (3, 10)}), "gap: the log begins at offset 3"),
        (view(members=None, committed={}), "nothing is known"),
    ],
)
def test_what_is_wrong_with_a_partition_is_named(seen: GroupSnapshot, problem: str) -> None:
    (report,) = reports_of(seen, NOW_MS)
    import re

    assert re.match(problem, report.problem), report


def test_nodes_that_deliver_in_two_ways_are_named() -> None:
    once, least = Policy("delays").delivery(exactly_once=True), Policy("delays").delivery(exactly_once=False)
    first, second = replace(NOTE, delivery=once), replace(NOTE, node="n2", delivery=least)
    both = (GroupMember("n1", "", frozenset({0})), GroupMember("n2", "", frozenset({1})))
    seen = GroupSnapshot({0: (0, 9), 1: (0, 9)}, {0: (8, first.pack()), 1: (8, second.pack())}, both)
    for report in reports_of(seen, NOW_MS):
        assert report.problem.startswith("nodes differ: n2 serves at least once, --on-target-error retry, ")
        assert "n1 serves exactly once" in report.problem
    dead = replace(seen, members=(GroupMember("n1", "", frozenset({0})), GroupMember("n3", "", frozenset({1}))))
    assert [report.problem for report in reports_of(dead, NOW_MS)] == ["", ""]


def test_what_other_options_deliver_again_is_counted_for_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    seen = GroupSnapshot({0: (0, 10), 1: (4, 9), 2: (0, 0)}, {0: (8, NOTE.pack())}, ())
    marker = Marker(((7, b"\1" * 16),), low=2)
    packed = {0: marker.pack(), 1: marker.pack(), 2: None}
    monkeypatch.setattr(status, "GroupView", lambda *args: SimpleNamespace(look=lambda: seen))
    reader = SimpleNamespace(last=packed.__getitem__, close=lambda: None)
    monkeypatch.setattr(status, "LogReader", lambda *args: reader)
    found = status.repeats_of_other_options({}, "delays", group="g")
    assert found == [
        status.Repeats(0, 2, 8, 3), status.Repeats(1, 4, 7, None), status.Repeats(2, 0, 0, None)
    ]  # fmt: skip
    assert [one.again for one in found] == [3, 3, 0]


def test_a_report_says_how_long_ago_the_owner_was_seen() -> None:
    (report,) = reports_of(view(committed={0: (8, replace(NOTE, at_ms=NOW_MS - 8_500).pack())}), NOW_MS)
    assert report.seen_s == 8.5
    assert _row(report)[2] == "not seen for 8 s"
    assert _row(replace(report, seen_s=5.0))[2] == "active"


def test_a_note_of_an_older_release_is_understood() -> None:
    found = Note.unpack(NOTE.pack().replace(',"delivery":""', ""))
    assert found == NOTE


def test_the_note_of_an_owner_of_before_says_nothing_of_the_new_one() -> None:
    seen = view(members=(GroupMember("n2", "/10.0.0.2", frozenset({0})),))
    (report,) = reports_of(seen, NOW_MS)
    assert (report.owner, report.state, report.waiting, report.problem) == ("n2", None, None, "")


def test_without_the_right_to_see_members_the_notes_name_the_owner() -> None:
    (report,) = reports_of(view(members=None), NOW_MS)
    assert (report.owner, report.problem) == ("n1", "")


def test_living_nodes_that_follow_are_the_standbys_of_a_partition() -> None:
    other = replace(NOTE, node="n2", standby=True)
    seen = GroupSnapshot(
        {0: (0, 1), 1: (0, 1), 2: (0, 1)},
        {0: (0, NOTE.pack()), 1: (0, other.pack()), 2: (0, replace(other, node="gone").pack())},
        (GroupMember("n1", "", frozenset({0, 2})), GroupMember("n2", "", frozenset({1}))),
    )
    assert [report.standbys for report in reports_of(seen, NOW_MS)] == [1, 0, 1]


class Admin:
    """An administrator of the client, with the answers of a test."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def list_topics(self, timeout: float) -> Any:
        partitions = dict.fromkeys(range(2))
        return SimpleNamespace(topics={"delays": SimpleNamespace(error=None, partitions=partitions)})

    def list_offsets(self, places: Any, **options: Any) -> Any:
        return {place: self._future(self.answers["offsets"], place.partition) for place in places}

    def list_consumer_group_offsets(self, asked: Any, **options: Any) -> Any:
        return {"g": self._future(self.answers["committed"])}

    def describe_consumer_groups(self, groups: Any, **options: Any) -> Any:
        return {"g": self._future(self.answers["members"])}

    def _future(self, answer: Any, partition: int | None = None) -> Future[Any]:
        future: Future[Any] = Future()
        found = answer[partition] if partition is not None else answer
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
        return future


def refusal(name: str) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException(KafkaError(getattr(KafkaError, name)))


def looked(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> GroupSnapshot:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    monkeypatch.setattr(group_view, "made", lambda *args, **options: admin)
    return group_view.GroupView({"bootstrap.servers": "x:1"}, "g", "delays").look()


def test_a_user_who_may_not_see_the_members_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import TopicPartition

    places = [TopicPartition("delays", 0, 8, NOTE.pack()), TopicPartition("other", 1, 5), TopicPartition("delays", 1)]
    seen = looked(
        monkeypatch,
        Admin(
            offsets={0: SimpleNamespace(offset=10), 1: refusal("LEADER_NOT_AVAILABLE")},
            committed=SimpleNamespace(topic_partitions=places),
            members=refusal("GROUP_AUTHORIZATION_FAILED"),
        ),
    )
    assert seen.members is None
    assert seen.ranges == {0: (10, 10), 1: None}
    assert seen.committed == {0: (8, NOTE.pack())}


def test_a_user_without_rights_and_a_cluster_without_an_answer_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel import NoBroker, NotAllowed

    every = {n: SimpleNamespace(offset=-1) for n in range(2)}
    with pytest.raises(NotAllowed, match="group g"):
        looked(monkeypatch, Admin(offsets=every, committed=refusal("GROUP_AUTHORIZATION_FAILED"), members=None))
    with pytest.raises(NoBroker):
        looked(
            monkeypatch,
            Admin(offsets=every, committed=SimpleNamespace(topic_partitions=[]), members=refusal("_TIMED_OUT")),
        )


def test_wrong_names_of_a_topic_and_a_group_are_refused() -> None:
    from filewheel import BadArgument

    with pytest.raises(BadArgument, match="topic is the name of a topic"):
        status.service_status({}, "a b", group="g")
    with pytest.raises(BadArgument, match="group is the name of a consumer group"):
        status.service_status({}, "delays", group="")


def test_whether_a_topic_is_keyed_is_what_its_latest_note_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel import BadArgument, ClusterError

    seen = view(committed={})
    monkeypatch.setattr(status, "GroupView", lambda *args: type("One", (), {"look": lambda self: seen})())
    with pytest.raises(ClusterError, match="no node of group g has said"):
        status.check_keyed({}, "delays", group="g")
    seen = view(committed={0: (8, NOTE.pack())})
    with pytest.raises(BadArgument, match="without --keyed"):
        status.check_keyed({}, "delays", group="g")
    newer = replace(NOTE, keyed=True, at_ms=NOW_MS + 1)
    seen = view(committed={0: (8, NOTE.pack()), 1: (8, newer.pack())})
    status.check_keyed({}, "delays", group="g")
