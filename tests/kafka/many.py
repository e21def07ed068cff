"""A node with many partitions on a cluster in memory, with wheels on disk: what each partition costs.

    python -m tests.kafka.many 1000

Invariant: the clock is a test's own, so what is counted does not depend on the machine; memory and files do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from filewheel.kafka.partition.partition import Partition
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands
from tests.support import FakeClock

EACH = 5
"""Records of a partition."""
HOT = 4_000
"""Records of the first one: more than a unit."""
AFTER_MS = 60_000
IDLE_S = 60


@dataclass
class Costs:
    """What was counted."""

    partitions: int
    memory_kib: float
    """Resident memory for each partition, once all are served."""
    files: float
    """Open files for each partition."""
    upkeep: float
    """Calls of the upkeep for each partition in an idle minute."""
    starved: int
    """Partitions that had not fired when the hot one had fired its first unit."""
    fired: int
    seconds: float


class Counted(Partition):
    """A wheel that counts its upkeep."""

    calls = 0

    def housekeep(self) -> int | None:
        """Count the call."""
        Counted.calls += 1
        return super().housekeep()


def play(folder: Path, partitions: int) -> Costs:
    """Serve, wait, and fire; return the costs."""
    begun = time.monotonic()
    Counted.calls = 0
    cluster = Cluster(partitions=partitions)
    clock = FakeClock(cluster.now_ms * 1000)
    disk = Folder(folder, clock, wheel=Counted)
    memory, files = _memory_kib(), _files()
    hands = Hands(cluster, clock=clock, disk=disk)
    for partition in range(partitions):
        for n in range(HOT if partition == 0 else EACH):
            put(cluster, b"%d-%d" % (partition, n), after_ms=AFTER_MS, partition=partition)
    while hands.turn():
        pass
    _let(hands, clock, 3)
    costs = Costs(partitions, (_memory_kib() - memory) / partitions, (_files() - files) / partitions, 0, 0, 0, 0)
    Counted.calls = 0
    _let(hands, clock, IDLE_S - 10)
    costs.upkeep = Counted.calls / partitions * 60 / (IDLE_S - 10)
    clock.advance(30)
    hands.node.housekeeping_step()
    while hands.turn():
        pass
    cluster.finish_all()  # each partition's first unit
    first = {(value or b"").split(b"-")[0] for value in cluster.values()}
    costs.starved = partitions - len(first)
    hands.run()
    costs.fired = len(cluster.values())
    hands.node.source.close()
    hands.node.owner.close()
    costs.seconds = time.monotonic() - begun
    return costs


def _let(hands: Hands, clock: FakeClock, seconds: int) -> None:
    """Let time pass in steps of half a second."""
    for _ in range(seconds * 2):
        clock.advance(0.5)
        hands.node.housekeeping_step()
        hands.turn()


def _memory_kib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asdict(play(Path(directory), int(sys.argv[1]) if sys.argv[1:] else 1000)), indent=1))
