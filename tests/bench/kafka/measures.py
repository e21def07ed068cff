"""What is measured of each side. Counts are at scale 1; each measure begins with fresh topics and fresh data.

Invariant: a figure of a measure that lost a record, doubled one or fired one early says so beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.cell import Metric
from tests.bench.kafka.rig import PARTITIONS, Arrived, Failed, Names, Rig, finish, now_ms, send
from tests.bench.kafka.side import REPO, WAIT_S, Server, Side

HOUR_MS = 3_600_000
INGEST, FIRE, REBUILD = 300_000, 200_000, 1_000_000
RATE = 1_000
"""Records a second of the measures of lateness."""
LATE_S = 10
SLOWEST = 1_000
"""Records a second below which a side counts as stuck."""
SESSION_S = 10.0
QUIET_S = 1.0
"""A target at rest grew no more for this time."""


@dataclass
class Cell:
    """One side in one measure, once."""

    rig: Rig
    side: Side
    folder: Path
    scale: float
    pending: int
    names: Names
    servers: list[Server] = field(default_factory=list)

    def count(self, count: int) -> int:
        """Return a count at this scale."""
        return max(1_000, int(count * self.scale))

    def server(self, node: str = "one") -> Server:
        """Start a process of the side; return it when it serves at least one partition."""
        server = self.side.start(self.rig.bootstrap, self.names, self.folder, node)
        self.servers.append(server)
        return server

    def ready(self, node: str = "one") -> Server:
        """Start a process of the side; return it when it serves all partitions."""
        server = self.server(node)
        server.wait(lambda now: now["active"] >= PARTITIONS)
        return server

    def end(self) -> None:
        """End its processes."""
        for server in self.servers:
            server.end()

    def rest(self, expected: int, wait_s: float = WAIT_S) -> None:
        """Return when the target holds as many records as expected, and grows no more."""
        give_up = time.monotonic() + wait_s
        size, since = 0, time.monotonic()
        while size < expected or time.monotonic() < since + QUIET_S:
            now = self.rig.end_of(self.names)
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() > give_up:
                raise Failed(f"{size} of {expected} records arrived in {wait_s:g} s; {self.servers[0].tail()}")
            for server in self.servers:
                server.figures()
            time.sleep(0.1)


@contextmanager
def cell(rig: Rig, side: Side, folder: Path, scale: float, pending: int) -> Iterator[Cell]:
    """Give a cell with fresh topics; its processes and topics are gone afterwards."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        names = rig.topics(levels=getattr(side, "levels", ""))
        stack.callback(rig.drop, names)
        made = Cell(rig, side, folder, scale, pending, names)
        stack.callback(made.end)
        yield made


def ingest(cell: Cell) -> list[Metric]:
    """Records that wait in the topic are taken in; the service slept while they were produced."""
    count = cell.count(INGEST)
    server = cell.ready()
    server.signal(signal.SIGSTOP)
    far = now_ms() + HOUR_MS
    cell.rig.produce(cell.names, (far + n % HOUR_MS for n in range(count)))
    cpu = server.cpu_s()
    begun = time.monotonic()
    server.signal(signal.SIGCONT)
    ended = server.wait(lambda now: now["taken"] >= count)
    used = server.cpu_s() - cpu
    return [Metric("rate", count / (ended - begun), "/s"), _cost(used, count)]


def fire(cell: Cell) -> list[Metric]:
    """Records that are all due at one moment go to their target."""
    count = cell.count(FIRE)
    server = cell.ready()
    due = now_ms() + 6_000 + count // 20
    cell.rig.produce(cell.names, (due for _ in range(count)))
    server.wait(lambda now: now["taken"] >= count)
    if now_ms() > due:
        raise Failed("records were due before all were taken in: this machine is too busy")
    cpu = server.cpu_s()
    cell.rest(count)
    used = server.cpu_s() - cpu
    found = cell.rig.arrived(cell.names, count)
    size = cell.rig.bytes_on_disk(cell.names)
    seconds = (max(found.appended_ms) - due) / 1000
    return [
        Metric("rate", count / seconds, "/s"), _cost(used, count),
        Metric("broker", size / count, "B", up=False), *_wrong(found),
    ]  # fmt: skip


def late(cell: Cell) -> list[Metric]:
    """1,000 records a second come due; nothing else runs."""
    count = cell.count(RATE * LATE_S)
    server = cell.ready()
    first = now_ms() + 4_000
    cell.rig.produce(cell.names, (first + n * 1000 // RATE for n in range(count)))
    cpu = server.cpu_s()
    cell.rest(count)
    used = server.cpu_s() - cpu
    found = cell.rig.arrived(cell.names, count)
    size = Metric("broker", cell.rig.bytes_on_disk(cell.names) / count, "B", up=False)
    return [*_lateness(found.late), _cost(used, count), size, *_wrong(found)]


def live(cell: Cell) -> list[Metric]:
    """1,000 records a second are produced, wait 1 to 3 s, and are seen by a reader."""
    cell.ready()
    return _live(cell)


def live_2(cell: Cell) -> list[Metric]:
    """The same with two nodes."""
    first, second = cell.server("one"), cell.server("two")
    give_up = time.monotonic() + WAIT_S
    while min(server.figures().get("active", 0) for server in (first, second)) < PARTITIONS // 2:
        if time.monotonic() > give_up:
            raise Failed(f"the nodes do not share the partitions: {first.figures()} {second.figures()}")
        time.sleep(0.1)
    return _live(cell)


def _live(cell: Cell) -> list[Metric]:
    count = cell.count(RATE * LATE_S)
    order = {"bootstrap": cell.rig.bootstrap, "target": cell.names.target, "partitions": PARTITIONS, "count": count}
    reader = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.kafka.reader", json.dumps(order)], cwd=REPO, stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        _paced(cell, count, lambda n: 1_000 + n * 7919 % 2_000)
        line = reader.stdout.readline()
        if not line:
            raise Failed("the reader did not see every record")
        found = json.loads(line)
    finally:
        reader.kill()
        reader.wait()
    stamped = cell.rig.arrived(cell.names, count)
    return [
        Metric("p50", found["p50"], "ms", up=False), Metric("p99", found["p99"], "ms", up=False),
        Metric("max", found["max"], "ms", up=False), Metric("stamped p99", stamped.late(0.99), "ms", up=False),
        Metric("wrong", found["wrong"], "records", up=False),
    ]  # fmt: skip


def _paced(cell: Cell, count: int, delay_ms: Callable[[int], int]) -> list[int]:
    """Produce 1,000 records a second; return their dues."""
    producer = cell.rig.producer()
    begun = time.monotonic()
    dues = []
    for n in range(count):
        ahead = begun + n / RATE - time.monotonic()
        if ahead > 0.002:
            time.sleep(ahead)
        dues.append(now_ms() + delay_ms(n))
        send(producer, cell.names, dues[-1], n, n % PARTITIONS)
    finish(producer)
    return dues


def takeover(cell: Cell) -> list[Metric]:
    """One of two nodes is killed with -9 while records come due."""
    count = cell.count(RATE * 40)
    first, second = cell.server("one"), cell.server("two")
    give_up = time.monotonic() + WAIT_S
    while min(server.figures().get("active", 0) for server in (first, second)) < PARTITIONS // 2:
        if time.monotonic() > give_up:
            raise Failed(f"the nodes do not share the partitions: {first.figures()} {second.figures()}")
        time.sleep(0.1)
    start = now_ms() + 8_000
    cell.rig.produce(cell.names, (start + n * 1000 // RATE for n in range(count)))
    time.sleep(max(start + 3_000 - now_ms(), 0) / 1000)
    killed = time.monotonic()
    first.end()
    cell.servers.remove(first)
    taken = second.wait(lambda now: now["active"] >= PARTITIONS)
    cell.rest(count, WAIT_S + count / RATE)
    found = cell.rig.arrived(cell.names, count)
    return [
        Metric("takeover", taken - killed, "s", up=False),
        Metric("latest", found.late(1.0) / 1000, "s", up=False), *_wrong(found),
    ]  # fmt: skip


def rebuild(cell: Cell) -> list[Metric]:
    """A node whose data was deleted serves a million waiting records again."""
    count = cell.count(REBUILD)
    first = cell.ready()
    far = now_ms() + HOUR_MS
    cell.rig.produce(cell.names, (far + n % HOUR_MS for n in range(count)))
    first.wait(lambda now: now["taken"] >= count, WAIT_S + count / SLOWEST)
    first.end()
    cell.servers.remove(first)
    shutil.rmtree(cell.folder / "one")
    time.sleep(SESSION_S + 1)  # the group waits for the dead member, which is no part of a rebuild
    begun = time.monotonic()
    server = cell.server()
    ended = server.wait(lambda now: now["active"] >= PARTITIONS, WAIT_S + count / SLOWEST)
    return [Metric("time", ended - begun, "s", up=False), _cost(server.cpu_s(), count)]


def memory(cell: Cell) -> list[Metric]:
    """The resident memory of a node with many waiting records, a minute's worth of them near."""
    count = cell.pending
    server = cell.ready()
    empty = server.memory_mib()
    far = now_ms() + HOUR_MS
    peak = [empty]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            peak.append(server.memory_mib())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        cell.rig.produce(cell.names, (far + n * 7919 % HOUR_MS for n in range(count)))
        server.wait(lambda now: now["taken"] >= count, WAIT_S + count / SLOWEST)
    finally:
        ended.set()
        watcher.join()
    folder = sum(f.stat().st_size for f in cell.folder.rglob("*") if f.is_file())
    return [
        Metric("empty", empty, "MiB", up=False), Metric("most", max(peak), "MiB", up=False),
        Metric("pending", server.memory_mib(), "MiB", up=False), Metric("disk", folder / count, "B", up=False),
    ]  # fmt: skip


def _lateness(late: Callable[[float], float]) -> list[Metric]:
    return [Metric(name, late(share), "ms", up=False) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))]


def _cost(cpu_s: float, count: int) -> Metric:
    return Metric("processor", cpu_s / count * 1e6, "µs", up=False)


def _wrong(found: Arrived) -> list[Metric]:
    """Count what a record must not be: lost, doubled or early."""
    return [Metric("wrong", found.missing + found.twice + found.early, "records", up=False)]


def load() -> float:
    """Return the load of the last minute: above the number of cores the figures are those of a busy machine."""
    return os.getloadavg()[0]


@dataclass(frozen=True)
class Measure:
    """One measure."""

    name: str
    title: str
    play: Callable[[Cell], list[Metric]]
    goal: str = ""


MEASURES = [
    Measure("ingest", "300,000 records of 100 B are taken in", ingest, "100,000/s a node"),
    Measure("fire", "200,000 records that are due at once go out", fire, "50,000/s, exactly once 20,000/s"),
    Measure("late", "lateness of 1,000 a second, as the broker stamps them", late, "p99 20 ms"),
    Measure("live", "lateness of 1,000 a second that are produced meanwhile, as a reader sees them", live),
    Measure("live-2", "the same with two nodes", live_2),
    Measure("takeover", "one of two nodes is killed (-9)", takeover, "session time-out (10 s) and 2 s"),
    Measure("rebuild", "a node whose data was deleted serves 1,000,000 waiting records again", rebuild),
    Measure("memory", "memory with many waiting records", memory, "flat"),
]
BY_NAME = {measure.name: measure for measure in MEASURES}
