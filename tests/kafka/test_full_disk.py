"""A node whose disk is full waits, instead of trying again and again: it once used half a core for 40 minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from filewheel.errors import WheelFull
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.partition import partition as partition_module
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder
from tests.kafka.hands import Hands, MemoryWheel
from tests.kafka.nodes import BOTH
from tests.kafka.parts import a_put, killed, offsets, open_partition, pending
from tests.kafka.test_standby import put
from tests.support import FakeClock


def test_a_partition_whose_disk_is_full_is_tried_again_after_growing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=2)
    node = Hands(cluster, settings=NodeSettings(poll=2))
    node.run()
    tries: list[float] = []
    wheel = node.disk.wheels[0]
    started_us = node.clock.steady_us()

    def full(puts: Any) -> None:
        tries.append((node.clock.steady_us() - started_us) / 1e6)
        raise WheelFull("no space left", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(wheel, "take_in", full)
        for n in range(20):  # ten batches
            put(cluster, b"%d" % n, after_ms=60_000)
        put(cluster, b"other", partition=1)
        node.settle_down()
        for _ in range(60):
            node.after(1)
    assert tries == [0, 1, 3, 7, 15, 25, 35, 45, 55]
    assert cluster.values() == [b"other"]  # nothing else waits for it
    node.after(10)
    assert len(wheel.pending) + len(cluster.values()) == 21


def test_a_full_disk_that_stays_full_is_not_written_to_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = open_partition(tmp_path / "wheel", FakeClock())
    partition.take_in([a_put(0, 100)])
    tries = []

    def full(*args: Any, **more: Any) -> None:
        tries.append(args)
        raise WheelFull("no space left", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(partition._keeper, "add_puts", full)
        patch.setattr(partition._disk, "free_bytes", lambda: 4096)
        for _ in range(20):
            with pytest.raises(WheelFull):
                partition.take_in([a_put(1, 100)])
        assert len(tries) == 1
        patch.setattr(partition._disk, "free_bytes", lambda: 1 << 20)  # a quota may still refuse
        with pytest.raises(WheelFull):
            partition.take_in([a_put(1, 100)])
        assert len(tries) == 2
    partition.take_in([a_put(1, 100)])
    assert partition.ingested == 2
    partition.close()


def test_a_takeover_on_a_full_disk_fires_what_is_due_so_that_it_frees_room(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    first = Hands(cluster, settings=NodeSettings(poll=2))
    first.run()
    for n in range(4):
        put(cluster, b"%d" % n, after_ms=5000)
    first.run()
    first.after(1)
    first.crash(position=2)  # its wheel has all four
    cluster.leave(first.source)
    for n in range(4, 8):
        put(cluster, b"%d" % n, after_ms=5000)
    second = Hands(cluster, disk=first.disk, clock=first.clock, settings=NodeSettings(poll=2), name="second")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "take_in", full)
        second.after(1)
        (status,) = second.node.status()
        assert status.state is PartitionState.RESTORING
        second.after(10)
        assert cluster.values() == [b"0", b"1"]  # what was not read again is not spoken of by the marker
    second.after(10)
    assert sorted(cluster.values()) == [b"%d" % n for n in range(8)]
    assert second.node.status()[0].state is PartitionState.ACTIVE


def test_a_takeover_of_a_keyed_topic_on_a_full_disk_fires_nothing_that_may_have_been_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(partitions=1)
    monkeypatch.setattr(MemoryWheel, "is_keyed", True)
    first = Hands(cluster)
    first.run()
    put(cluster, b"one", after_ms=5000)
    first.run()
    first.after(1)
    first.crash()
    cluster.leave(first.source)
    put(cluster, b"two", after_ms=5000)
    second = Hands(cluster, disk=first.disk, clock=first.clock, name="second")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "take_in", full)
        second.after(30)
        assert cluster.values() == []
    second.after(20)
    assert cluster.values() == [b"one", b"two"]


def test_a_takeover_that_fires_early_and_is_fenced_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    first = Hands(cluster, exactly_once=True, settings=NodeSettings(exactly_once=True, poll=2))
    first.run()
    for n in range(2):
        put(cluster, b"%d" % n, after_ms=5000)
    first.run()
    first.after(1)
    first.crash(position=2)
    cluster.leave(first.source)
    for n in range(2, 4):
        put(cluster, b"%d" % n, after_ms=5000)
    second = Hands(cluster, disk=first.disk, clock=first.clock, exactly_once=True, name="second")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "take_in", full)
        second.run()
        second.clock.advance(6)
        second.node.housekeeping_step()
        second.settle_down()
        assert cluster.under_way
        cluster.epochs[0] += 1  # another node was the owner for a moment
        second.run()
        second.after(11)
        assert cluster.values() == [b"0", b"1"]
    second.after(11)
    assert cluster.values() == [b"0", b"1", b"2", b"3"]


def test_records_of_an_earlier_handle_wait_until_they_were_read_again(tmp_path: Path) -> None:
    clock = FakeClock()
    partition = open_partition(tmp_path / "wheel", clock)
    partition.take_in([a_put(n, 10 + n) for n in range(3)])
    partition.flush()
    partition.take_in([a_put(n, n) for n in range(3, 6)])
    killed(partition)
    partition = open_partition(tmp_path / "wheel", clock)
    assert partition.ingested == 3
    clock.advance(20)
    chunk = partition.next_chunk(10)
    assert (offsets(chunk), chunk.ingested, chunk.is_all) == ([0, 1, 2], 3, True)
    partition.settle(chunk)
    partition.take_in([a_put(3, 3)])
    assert offsets(partition.next_chunk(10)) == [3]
    partition.advance(6)
    assert offsets(partition.next_chunk(10)) == [4, 5]
    partition.close()


def test_with_too_many_unread_records_nothing_is_said_to_be_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "_AHEAD_MAX", 2)
    clock = FakeClock()
    partition = open_partition(tmp_path / "wheel", clock)
    partition.take_in([a_put(n, 5) for n in range(8)])
    killed(partition)
    partition = open_partition(tmp_path / "wheel", clock)
    clock.advance(20)
    chunk = partition.next_chunk(2)
    assert (offsets(chunk), chunk.is_all) == ([], False)
    assert partition.next_due_us() is None
    partition.take_in([a_put(n, 5) for n in range(8)])
    assert offsets(partition.next_chunk(10)) == list(range(8))
    partition.close()


def test_a_partition_reserves_little_for_a_full_disk_also_in_a_wheel_that_had_more(tmp_path: Path) -> None:
    clock = FakeClock()
    partition = open_partition(tmp_path / "wheel", clock)
    ballast = tmp_path / "wheel" / "ballast"
    assert ballast.stat().st_blocks * 512 <= 256 << 10
    partition.close()
    ballast.write_bytes(bytes(2 << 20))  # of an older version
    partition = open_partition(tmp_path / "wheel", clock)
    partition.take_in([a_put(0, 1)])
    clock.advance(20)
    partition.housekeep()
    assert ballast.stat().st_size == 256 << 10
    partition.close()


@BOTH
def test_a_disk_that_is_full_of_records_frees_itself_once_they_went_out(small_disk: Path, exactly_once: bool) -> None:
    """Their drops alone need more than what is reserved for a full disk."""
    cluster = Cluster(partitions=1)
    clock = FakeClock(cluster.now_ms * 1000)
    settings = NodeSettings(exactly_once=exactly_once, poll=5000)
    node = Hands(
        cluster, clock=clock, disk=Folder(small_disk, clock), exactly_once=exactly_once, settings=settings
    )  # fmt: skip
    names = [b"%05d" % n for n in range(45_000)]
    for n, name in enumerate(names):
        due = b"%d" % (cluster.now_ms + 30_000 + n // 1000)
        headers = [("filewheel-due-ms", due), ("scheduler-target-topic", b"target")]
        cluster.put(name.ljust(1000), headers=headers)

    def turns(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1)
            node.node.housekeeping_step()
            while node.turn() or cluster.finish_all():
                if owned.full_until_us > clock.steady_us() and not cluster.under_way and not node.background:
                    break  # it waits for room

    node.turn()
    node.turn()
    owned = node.node.owner.owned[0]
    turns(25)
    assert [p.kind for p in node.node.health().problems] == ["disk_full"]
    assert cluster.values() == []
    info = os.statvfs(small_disk)
    with (small_disk / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(info.f_bavail * info.f_frsize - (100 << 10), 1))
    turns(90)
    assert sorted(value.strip() for value in cluster.values() if value) == names
    assert node.node.health().problems == []
    node.node.source.close()
    assert pending(small_disk / "delay" / "0") == []


def test_a_claim_that_finds_no_room_keeps_what_was_claimed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    partition = open_partition(tmp_path / "wheel", clock)
    partition.take_in([a_put(n, 1) for n in range(5)])
    clock.advance(20)
    claim, claims = partition._keeper.claim, iter([2, 0])

    def tight(limit: int, **more: Any) -> Any:
        room = next(claims)
        if not room:
            raise WheelFull("no message is handed out that could not be acknowledged", path="here")
        return claim(room, **more)

    with monkeypatch.context() as patch:
        patch.setattr(partition._keeper, "claim", tight)
        chunk = partition.next_chunk(10)
    assert (offsets(chunk), chunk.is_all) == ([0, 1], False)
    partition.settle(chunk)
    assert offsets(partition.next_chunk(10)) == [2, 3, 4]
    partition.close()


def test_a_partition_whose_wheel_has_no_room_to_hand_anything_out_fires_again_when_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster)
    node.run()
    put(cluster, b"one", after_ms=1000)

    def no_room(wheel: Any, limit: int, now_us: int) -> Any:
        raise WheelFull("no message is handed out that could not be acknowledged", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "next_chunk", no_room)
        (problem,) = node.watched(40)
        assert (problem.kind, problem.severity) == ("stuck", "failing")
        assert "no message is handed out" in problem.reason
        assert node.node.status()[0].state is PartitionState.ACTIVE
    assert node.watched(2) == []
    assert cluster.values() == [b"one"]


def full(wheel: Any, puts: Any) -> None:
    raise WheelFull("no space left", path="here")
