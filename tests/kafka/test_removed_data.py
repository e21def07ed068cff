"""`rm -rf` under a node that runs: its wheels are filled from the log again, and nobody else gets the directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filewheel.errors import Locked, WheelFull
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.partition.data_lock import DataLock
from tests.conftest import assert_whole
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands, MemoryWheel
from tests.kafka.test_standby import pair
from tests.kafka.test_standby import put as put_in_memory
from tests.support import FakeClock


def a_node(cluster: Cluster, path: Path, **settings: object) -> Hands:
    clock = FakeClock(cluster.now_ms * 1000)
    node = Hands(cluster, clock=clock, disk=Folder(path, clock), settings=NodeSettings(**settings))  # type: ignore[arg-type]
    node.run()
    return node


def test_what_waits_in_a_wheel_that_was_removed_is_read_again_and_goes_out_once(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    node = a_node(cluster, tmp_path)
    put(cluster, b"gone", after_ms=500)
    put(cluster, b"waits", after_ms=60_000)
    node.run()
    node.after(3)
    assert cluster.values() == [b"gone"]
    shutil.rmtree(tmp_path)
    node.after(6)  # nothing is due: it is looked for
    node.after(2)
    assert (tmp_path / "delay" / "0" / "keeper.lock").exists()
    (status,) = node.node.status()
    assert status.state is PartitionState.ACTIVE
    assert not node.node.health().problems
    node.after(60)
    assert cluster.values() == [b"gone", b"waits"]
    node.node.owner.revoked([0])
    assert_whole(tmp_path / "delay" / "0")


def test_an_idle_wheel_that_was_removed_is_filled_anew_before_anything_is_due(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    node = a_node(cluster, tmp_path)
    put(cluster, b"waits", after_ms=86_400_000)
    node.run()
    for _ in range(40):
        node.after(1)  # all its upkeep is done
    shutil.rmtree(tmp_path)
    for _ in range(8):
        node.after(1)
    assert (tmp_path / "delay" / "0" / "keeper.lock").exists()
    assert node.node.owner.owned[0].wheel.waiting == 1  # type: ignore[union-attr]


def test_what_is_due_while_its_wheel_is_gone_is_not_called_done(tmp_path: Path) -> None:
    cluster = Cluster(partitions=1)
    node = a_node(cluster, tmp_path)
    for n in range(20):
        put(cluster, b"%d" % n, after_ms=1000 + 2000 * (n % 2))
    node.run()
    shutil.rmtree(tmp_path)
    put(cluster, b"new", after_ms=4000)
    node.clock.advance(2)
    node.run()  # no look has been taken yet
    for _ in range(12):
        node.after(1)
    assert sorted(cluster.values()) == sorted([b"new", *(b"%d" % n for n in range(20))])


def test_the_wheel_of_a_standby_that_was_removed_is_filled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=2)
    for n in range(4):
        put_in_memory(cluster, b"%d" % n, after_ms=60_000)
    _, second = pair(cluster)
    old = second.disk.wheels[0]
    assert len(old.pending) == 4
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "is_gone", property(lambda wheel: wheel is old))
        second.disk.wheels.pop(0)
        second.after(6)
    second.after(1)
    assert second.disk.wheels[0] is not old
    assert len(second.disk.wheels[0].pending) == 4


def test_a_standby_whose_disk_was_full_follows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=2)
    _, second = pair(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryWheel, "take_in", full)
        for n in range(4):
            put_in_memory(cluster, b"%d" % n, after_ms=600_000)
        second.settle_down()
    assert second.node.standby is not None
    assert 0 not in second.node.standby.positions()
    second.after(61)
    second.after(1)
    assert len(second.disk.wheels[0].pending) == 4


def full(wheel: object, puts: object) -> None:
    raise WheelFull("no space left", path="here")


def test_the_lock_of_data_that_was_removed_is_taken_again_or_the_node_ends(tmp_path: Path) -> None:
    first = DataLock(tmp_path / "data", "delays")
    first.keep()
    shutil.rmtree(tmp_path / "data")
    first.keep()
    with pytest.raises(Locked, match="another node of the service uses this data"):
        DataLock(tmp_path / "data", "delays")
    shutil.rmtree(tmp_path / "data")
    second = DataLock(tmp_path / "data", "delays")
    with pytest.raises(Locked, match="another node of the service uses this data"):
        first.keep()
    second.close()
    first.close()
