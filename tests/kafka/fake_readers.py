"""What reads the cluster in memory without being in its group: the markers, and the wheels of a standby."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from filewheel.errors import ClusterError
from filewheel.kafka.node.transport import Polled
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.record import Record

if TYPE_CHECKING:
    from tests.kafka.fake import Cluster


class FakeMarkers:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def read(self, partition: int, barrier: int) -> bytes | None:
        if self.cluster.is_down:
            raise ClusterError("the cluster is down")
        self.cluster.allow("read", f"{self.cluster.topic}.cursor")
        log = self.cluster.logs[f"{self.cluster.topic}.cursor", partition]
        found = [e.value for e in log.entries[:barrier] if e.key == str(partition).encode()]
        return found[-1] if found else None

    def last(self, partition: int) -> bytes | None:
        return self.read(partition, self.cluster.logs[f"{self.cluster.topic}.cursor", partition].end)

    def close(self) -> None:
        """Nothing is open."""


class FakeFollower:
    """A reader outside of the group."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.next: dict[int, int] = {}
        self.next_marker: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def follow(self, starts: Mapping[int, tuple[int, int]]) -> None:
        self.epochs = {p: self.epochs.get(p, epoch) for p, (_, epoch) in starts.items()}
        self.next = {p: self.next.get(p, offset) for p, (offset, _) in starts.items()}
        self.next_marker = {p: self.next_marker.get(p, 0) for p in starts}

    def poll(self, limit: int, timeout_s: float) -> tuple[Polled[int], Sequence[tuple[int, bytes]]]:
        records: dict[int, list[Record]] = {}
        markers: list[tuple[int, bytes]] = []
        gone: list[int] = []
        read: dict[int, LastRead] = {}
        ends: dict[int, int] = {}
        for partition, offset in self.next.items():
            log = self.cluster.logs[self.cluster.topic, partition]
            if log.is_gone(offset, self.epochs[partition]):
                gone.append(partition)
                continue
            for n, entry in enumerate(log.entries[offset:], offset):
                self.epochs[partition] = entry.epoch
                if not entry.is_control:
                    found = Record(partition, n, entry.key, entry.value, entry.headers, entry.timestamp_ms)
                    records.setdefault(partition, []).append(found)
                    read[partition] = LastRead(n, entry.epoch)
            ends[partition] = self.next[partition] = log.end
            log = self.cluster.logs[f"{self.cluster.topic}.cursor", partition]
            markers += [
                (partition, entry.value)
                for entry in log.entries[self.next_marker[partition] :]
                if entry.key == b"%d" % partition and entry.value is not None
            ]
            self.next_marker[partition] = log.end
        return Polled(records, ends, gone, last_read=read), markers

    def close(self) -> None:
        """Nothing is open."""
