"""One cell: one peer doing one workload once, in one fresh directory, in a process of its own.

What a workload measures is a list of metrics. Invariant: populating and warming up are outside of every clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.load import Load
from tests.bench.store import US, Session, Store
from tests.bench.stores import BY_KEY, Peer


@dataclass(frozen=True)
class Metric:
    """One measured number of a cell."""

    name: str
    value: float
    unit: str
    up: bool = True
    """Whether more is better."""


@dataclass
class Cell:
    """What a workload is given."""

    peer: Peer
    store: Store
    directory: Path
    seconds: float
    """How long a rate is measured."""
    scale: float
    """By how much counts are multiplied; 1 is the size that docs tell."""
    seed: int

    def count(self, count: int) -> int:
        """Return a count at this scale; of slow peers, a hundredth."""
        return max(100, int(count * self.scale / (100 if self.store.slow else 1)))

    def populate(self, count: int, load: Load) -> Session:
        """Start the store, put this many messages in, and return when they are where they wait."""
        self.store.start()
        session = self.store.session()
        self.fill(session, count, load)
        self.store.settle(session)
        return session

    def fill(self, session: Session, count: int, load: Load) -> None:
        """Enqueue this many messages in large batches."""
        while count > 0:
            some = min(count, 10_000)
            session.enqueue_many(load.payloads(some), load.dues_us(some))
            count -= some

    def backlog(self, count: int, shape: str, ahead_s: int) -> Session:
        """Return a consumer for which this many messages are due."""
        shifts = self.store.shifts
        start_us = time.time_ns() // 1000 + (60 * US if shifts else -86_400 * US)
        session = self.populate(count, Load(self.seed, shape=shape, start_us=start_us))
        session.close()
        self.store.stop()
        self.store.start(consume=True)
        return self.store.session(ahead_s * US if shifts else 0)

    def helper(self, task: str, **args: Any) -> subprocess.Popen[str]:
        """Start another process that works on this cell's store (see worker.py)."""
        order = {"task": task, "peer": self.peer.key, "directory": str(self.directory), "seed": self.seed, **args}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", json.dumps(order)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


Workload = Callable[[Cell], list[Metric]]


def run_cell(key: str, workload: Workload, directory: Path, seconds: float, scale: float, seed: int) -> list[Metric]:
    """Run a workload on a peer in a fresh directory; its processes are gone on return."""
    peer = BY_KEY[key]
    store = peer.store(directory)
    try:
        return workload(Cell(peer, store, directory, seconds, scale, seed))
    finally:
        store.stop()


def memory_mib(pids: list[int]) -> float:
    """Return the resident memory of processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pids: list[int]) -> float:
    """Return the processor time that processes have used: exact for this one, in hundredths for others."""
    ticks = 0
    for pid in set(pids) - {os.getpid()}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK") + (time.process_time() if os.getpid() in pids else 0)


def as_json(metrics: list[Metric]) -> str:
    """Return metrics as one line."""
    return json.dumps([asdict(m) for m in metrics])
