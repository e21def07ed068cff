"""Troubles that once lost records, or ended a partition for good, though they pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from filewheel.errors import ClusterError, WheelFull
from filewheel.kafka.node.owner import PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import Polled
from tests.kafka.fake import Cluster
from tests.kafka.fake_readers import FakeFollower
from tests.kafka.hands import Disk, Hands
from tests.kafka.test_standby import pair, put


def test_a_standby_whose_wheel_was_taken_and_given_back_at_once_reads_again_what_it_dropped() -> None:
    cluster = Cluster(partitions=2)
    put(cluster, b"old", after_ms=60_000)
    first, second = pair(cluster)
    assert sorted(first.node.owner.owned) == [0]
    standby = second.node.standby
    assert standby is not None
    new = [put(cluster, b"%d" % n, after_ms=60_000 + n) for n in range(3)]
    follower: Any = standby._follower

    class Meanwhile(FakeFollower):
        """A takeover of partition 0 begins and ends while a poll waits."""

        def poll(self, limit: int, timeout_s: float) -> tuple[Polled, Sequence[tuple[int, bytes]]]:
            found = super().poll(limit, timeout_s)
            second.node.owner.assigned([0])
            while second.background:
                second.background.pop(0)()
            second.node.owner.revoked([0])
            self.__class__ = FakeFollower
            return found

    follower.__class__ = Meanwhile
    standby.step(second.node.owner.busy)  # its records have no wheel any more
    put(cluster, b"last", after_ms=70_000)
    second.settle_down()
    held = second.disk.wheels[0]
    assert sorted(m.payload for m in held.pending.values()) == [b"0", b"1", b"2", b"last", b"old"]
    assert held.ingested == new[-1] + 2


def test_a_gap_that_opens_behind_the_takeover_of_a_new_partition_is_a_loss() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster)
    node.run()
    for n in range(10):
        put(cluster, b"%d" % n)
    cluster.keep_from(0, 4)
    node.run()
    (status,) = node.node.status()
    assert status.state is PartitionState.FAILED
    assert "begins at offset 4; offset 0 is the next to read" in status.reason
    assert cluster.values() == []


def test_a_gap_that_is_to_be_skipped_is_counted_from_the_last_record_that_was_read() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster, settings=NodeSettings(on_gap="skip"))
    node.run()
    for n in range(10):
        put(cluster, b"%d" % n)
    node.node.source.poll(3, 0.0)
    node.node.intake.put(node.node.source.poll(0, 0.0))
    cluster.keep_from(0, 7)
    node.run()
    (status,) = node.node.status()
    assert (status.state, status.skipped) == (PartitionState.ACTIVE, 7)
    assert cluster.values() == [b"7", b"8", b"9"]


def test_a_log_that_cannot_be_asked_after_a_gap_is_asked_again() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster, settings=NodeSettings(on_gap="skip"))
    node.run()
    for n in range(10):
        put(cluster, b"%d" % n)
    cluster.keep_from(0, 7)
    node.node.poll_step()
    cluster.is_down = True
    node.run()
    node.after(3)
    (status,) = node.node.status()
    assert (status.state, status.reason) != (PartitionState.FAILED, "")
    assert "is down" in status.reason
    cluster.is_down = False
    node.after(3)
    assert cluster.values() == [b"7", b"8", b"9"]
    assert node.node.status()[0].reason == ""


def test_a_disk_that_is_full_at_the_takeover_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(partitions=1)
    put(cluster, b"one")
    disk = Disk()
    node = Hands(cluster, disk=disk)

    def full(partition: int) -> Any:
        raise WheelFull("no space left", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(node.node.owner, "_open_wheel", full)
        node.after(5)
        assert "no space left" in node.node.status()[0].reason
    node.after(2)
    assert cluster.values() == [b"one"]
    assert node.node.status()[0].reason == ""


@pytest.mark.parametrize("answers", [(0, -1001), (-1001, 5), (-1001, -1001)])
def test_an_end_of_the_log_that_the_brokers_do_not_know_is_no_end(answers: tuple[int, int]) -> None:
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'filewheel[kafka]'")
    from filewheel.kafka.client.reader import LogReader

    reader = LogReader({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}, "delay.cursor")
    real, reader._consumer = reader._consumer, SimpleNamespace(get_watermark_offsets=lambda where, timeout: answers)
    with pytest.raises(ClusterError, match="do not say where it ends"):
        reader.range_of("delay", 0)
    real.close()


_SERVES = """
import signal, sys, threading, time, traceback
from filewheel.kafka.node.service import DelayService
from filewheel.kafka.node.settings import NodeSettings
from tests.kafka.fake import Cluster, FakeTransport
from tests.kafka.hands import Disk, Rendering, understand

transport = FakeTransport(Cluster(partitions=1))
service = DelayService(transport, Disk().open, Rendering(), understand, NodeSettings(), topics=transport.check())
signal.signal(signal.SIGTERM, lambda number, frame: service.stop())

def report(main=threading.get_ident()):  # as a thread of the client: it gets the signal
    while [f.name for f in traceback.extract_stack(sys._current_frames()[main])][-3:] != ["run", "wait", "_pass"]:
        time.sleep(0.01)
    print("ready", flush=True)
    threading.Event().wait()

threading.Thread(target=report, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
service.run()
print("ended", flush=True)
"""


def test_a_signal_that_another_thread_gets_ends_the_node() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _SERVES], stdout=subprocess.PIPE, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        try:
            out, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert out == b"ended\n"


def test_a_log_that_ends_before_what_was_read_is_waited_for_while_a_node_runs() -> None:
    cluster = Cluster(partitions=1)
    node = Hands(cluster)
    put(cluster, b"one", after_ms=60_000)
    put(cluster, b"two", after_ms=60_000)
    node.run()
    log = cluster.logs["delay", 0]
    lost = log.entries.pop()  # by an unclean election
    node.node.owner.gap_seen(node.node.owner.owned[0])
    node.after(3)
    (status,) = node.node.status()
    assert status.state is PartitionState.ACTIVE
    assert "ends at offset 1, and offset 1 was read before" in status.reason
    log.entries.append(lost)
    put(cluster, b"three")
    node.after(3)
    assert (cluster.values(), node.node.status()[0].reason) == ([b"three"], "")
