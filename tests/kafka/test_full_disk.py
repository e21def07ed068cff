"""A node whose disk is full waits, instead of trying again and again: it once used half a core for 40 minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from filewheel.errors import WheelFull
from filewheel.kafka.node.settings import Settings
from tests.kafka.fake import Cluster
from tests.kafka.hands import Hands
from tests.kafka.parts import a_put, open_partition
from tests.kafka.test_standby import put
from tests.support import FakeClock


def test_a_partition_whose_disk_is_full_is_tried_again_after_growing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=2)
    node = Hands(cluster, settings=Settings(poll=2))
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
