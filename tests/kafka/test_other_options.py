"""Nodes with other options give records other ids: such a node ends, before it takes anything in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from filewheel.errors import BadArgument
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.options import Policy
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands
from tests.support import FakeClock

OTHERS = [
    Policy("delay", horizon_s=60),
    Policy("delay", default_target="mails"),
    Policy("delay", keyed=True),
    Policy("delay", horizon_s=60, on_horizon="roll"),
]


def last_marker(cluster: Cluster) -> Marker:
    values = [e.value for e in cluster.logs["delay.cursor", 0].entries if e.key == b"0"]
    assert values[-1] is not None
    return Marker.unpack(values[-1])


def node(
    cluster: Cluster,
    path: Path,
    policy: Policy,
    *,
    settings: NodeSettings | None = None,
    clock: FakeClock | None = None,
) -> Hands:
    clock = clock or FakeClock(cluster.now_ms * 1000)
    return Hands(cluster, clock=clock, disk=Folder(path, clock, policy), settings=settings)


def test_options_that_give_the_same_ids_have_one_digest() -> None:
    same = Policy("delay", on_target_error="dead-letter", keep_routing=True, put_back_s=3)
    assert same.digest == Policy("delay").digest
    assert len({Policy("delay").digest, *(other.digest for other in OTHERS)}) == 5


@pytest.mark.parametrize("exactly_once", [False, True])
def test_a_takeover_publishes_a_marker_before_anything_is_taken_in(exactly_once: bool) -> None:
    cluster = Cluster(partitions=1)
    for n in range(5):
        cluster.put(b"%d" % n, headers=[("due-ms", b"%d" % (cluster.now_ms + 60_000))])
    cluster.keep_from(0, 3)
    first = Hands(cluster, exactly_once=exactly_once)
    first.node.poll_step()
    first.background.pop(0)()
    marker = last_marker(cluster)
    assert (marker.options, marker.steps, marker.low) == ("those of the test", (), 3)
    assert first.disk.wheels[0].pending == {}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("has_fired", [False, True])
def test_a_node_with_other_options_ends_and_says_so(tmp_path: Path, other: Policy, has_fired: bool) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"waits", after_ms=60_000)
    put(cluster, b"one", after_ms=1000)
    first = node(cluster, tmp_path / "a", Policy("delay"))
    first.run()
    if has_fired:
        first.after(2)
    first.node.source.close()
    before = len(cluster.logs["delay.cursor", 0].entries)
    second = node(cluster, tmp_path / "b", other, clock=first.clock)
    with pytest.raises(
        BadArgument, match="was served by node with another --horizon, --on-horizon, --default-target or"
    ) as raised:
        second.run()
    assert "a new delay topic for the producers" in str(raised.value.hint)
    assert f"delivers up to {2 * has_fired} records of this partition a second time" in str(raised.value.hint)
    assert len(cluster.logs["delay.cursor", 0].entries) == before + 1  # its barrier
    assert not (tmp_path / "b").exists()


def test_a_wheel_that_was_filled_with_other_options_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one", after_ms=1000)
    first = node(cluster, tmp_path, Policy("delay"))
    first.run()
    first.node.source.close()
    cluster.logs["delay.cursor", 0].entries.clear()
    with pytest.raises(BadArgument, match="it was filled with another --horizon"):
        node(cluster, tmp_path, OTHERS[0]).run()


def test_a_standby_with_other_options_ends(tmp_path: Path) -> None:
    cluster = Cluster(partitions=2)
    every = NodeSettings(standby="all")
    second = node(cluster, tmp_path / "b", OTHERS[0], settings=every)
    first = node(cluster, tmp_path / "a", Policy("delay"), settings=every, clock=second.clock)
    with pytest.raises(BadArgument, match="another --horizon"):
        for _ in range(5):
            second.run()
            first.run()


def test_a_standby_ends_at_the_first_marker_of_other_options(tmp_path: Path) -> None:
    cluster = Cluster(partitions=2)
    node_ = node(cluster, tmp_path, Policy("delay"), settings=NodeSettings(standby="all"))
    cluster.members.clear()
    cluster.owners.clear()
    node_.node.source.coming.clear()  # type: ignore[attr-defined]  # it owns nothing and follows both
    node_.settle_down()
    marker = Marker(low=0, options="others", owner="b")
    cluster.put(marker.pack(), topic="delay.cursor", key=b"0")
    with pytest.raises(BadArgument, match="was served by b with another"):
        node_.settle_down()


def test_other_options_that_are_accepted_keep_low_and_lose_nothing(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"long", after_ms=100_000)
    put(cluster, b"one", after_ms=1000)
    put(cluster, b"two", after_ms=9000)
    first = node(cluster, tmp_path / "a", Policy("delay", horizon_s=60, on_horizon="roll"))
    first.run()
    first.after(10)  # a step at the id of `two`; `long` waits, and with other options its id is smaller
    first.node.source.close()
    assert cluster.values() == [b"one", b"two"]
    cluster.keep_from(0, 0)
    again = node(
        cluster,
        tmp_path / "b",
        Policy("delay", horizon_s=5),
        settings=NodeSettings(accept_options=True),
        clock=first.clock,
    )
    again.run()
    assert cluster.values("delay.dlt") == [b"long", b"two"]  # due at their timestamps
    assert cluster.values() == [b"one", b"two", b"one"]
    assert last_marker(cluster).options == Policy("delay", horizon_s=5).digest


def test_a_marker_without_options_and_one_with_fields_of_later_versions_are_read() -> None:
    packed = Marker(low=4, options="x").pack()
    fields = json.loads(packed)
    del fields["options"]
    assert Marker.unpack(json.dumps(fields).encode()) == Marker(low=4)
    assert Marker.unpack(json.dumps(fields | {"options": "x", "later": 1}).encode()) == Marker(low=4, options="x")


def test_a_wheel_of_an_earlier_version_takes_the_options_of_its_node(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one", after_ms=1000)
    clock = FakeClock(cluster.now_ms * 1000)
    folder = Folder(tmp_path, clock)
    folder.options = ""
    Hands(cluster, clock=clock, disk=folder).run()
    folder.crash()
    folder.options = folder.policy.digest
    folder.open(0, lambda wheel: None).close()
    other = Folder(tmp_path, clock, OTHERS[0])
    with pytest.raises(BadArgument, match="it was filled with another"):
        other.open(0, lambda wheel: None)


def test_a_node_that_delivers_in_another_way_than_the_last_owner_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(partitions=2)
    clock = FakeClock(cluster.now_ms * 1000)
    retry, dead = Policy("delay"), Policy("delay", on_target_error="dead-letter")
    for partition in range(2):
        put(cluster, b"one", partition=partition)
    first = node(cluster, tmp_path / "a", retry, clock=clock)
    first.run()
    first.node.source.close()
    again = node(cluster, tmp_path / "a", retry, clock=clock)
    again.run()
    again.node.source.close()
    assert "serves it" not in caplog.text
    second = node(cluster, tmp_path / "b", dead, clock=clock)
    second.run()
    (said,) = [r.getMessage() for r in caplog.records if "serves it" in r.getMessage()]
    assert "was served by node at least once, --on-target-error retry" in said
    assert "this node serves it at least once, --on-target-error dead-letter" in said
