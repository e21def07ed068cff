"""What is measured of a system: the rate from a backlog, lateness at a rate, memory while many jobs wait, and limits.

Every measure ends by the clock, whether or not the system has done all of it: then it says how far it came.
Invariant: filling, and starting the server, are outside of every clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.cell import Metric, cpu_s, memory_mib
from tests.bench.jobs import wheels
from tests.bench.jobs.job import LATE_US
from tests.bench.jobs.limited import COLD, SLOW_START, WARM, Case
from tests.bench.jobs.system import System
from tests.bench.jobs.systems import BY_KEY, OURS, STORES
from tests.bench.load import US, percentile
from tests.bench.store import Missing

BACKLOG = 40_000
WAITING = 1_000_000
FILL_S_MAX = 180.0
FIRST_CALL_S_MAX = 30.0
QUIET_S_MAX = 30.0
_SAMPLE_S = 0.002
_LEAD_S = 2.0
_LEAD_EACH_S = 200e-6
_QUIET_SHARE = 0.03
_QUIET_S = 3


@dataclass
class Cell:
    """What a measure is given."""

    key: str
    directory: Path
    seconds: float
    """How long a rate is measured at most; lateness twice as long."""
    scale: float
    """By how much counts are multiplied."""

    def count(self, count: int) -> int:
        """Return a count at this scale."""
        return max(100, int(count * self.scale))

    def fill(self, count: int, lead_us: int, span_us: int) -> int:
        """Have a process of its own put in this many jobs, due evenly over a span; return when that begins.

        It begins `lead_us` after that process is ready to put them in: however long a busy machine takes to start one.
        """
        order = {"fill": [count, lead_us, span_us], "peer": self.key, "directory": str(self.directory)}
        command = [sys.executable, "-m", "tests.bench.jobs.child", json.dumps(order)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FILL_S_MAX)
        except subprocess.TimeoutExpired:
            raise Missing(f"{count:,} jobs are not put in after {FILL_S_MAX:.0f} s") from None
        if done.returncode:
            raise RuntimeError("filling: " + (done.stderr.strip().splitlines() or ["it ended"])[-1])
        return int(done.stdout)


def dues_us(count: int, start_us: int, span_us: int) -> list[int]:
    """Return times that lie evenly over a span."""
    return [start_us + i * span_us // count for i in range(count)]


Measure = Callable[[Cell, System], list[Metric]]


def backlog(cell: Cell, system: System) -> list[Metric]:
    """Call jobs that are all due: how many a second from the first call on."""
    count = cell.count(BACKLOG)
    cell.fill(count, -60 * US, 50 * US)
    begun_s = time.perf_counter()
    system.start()
    before, at_s = _first_call(system, begun_s)
    if before == count:  # too few to be seen at work
        before, at_s = 0, begun_s
    done, now_s = before, at_s
    while done < count and now_s - at_s < cell.seconds:
        time.sleep(_SAMPLE_S)
        done, now_s = system.called(), time.perf_counter()
    rate = (done - before) / (now_s - at_s) if now_s > at_s else count / (time.perf_counter() - begun_s)
    return [Metric("rate", rate, "/s"), Metric(f"called, of {count:,}", float(done), "jobs")]


def _first_call(system: System, begun_s: float) -> tuple[int, float]:
    """Wait for the first call; return how many there were when it was seen, and when that was."""
    while not (count := system.called()):
        if time.perf_counter() - begun_s > FIRST_CALL_S_MAX:
            raise RuntimeError(f"nothing was called in {FIRST_CALL_S_MAX:.0f} s")
        time.sleep(_SAMPLE_S)
    return count, time.perf_counter()


def late(cell: Cell, system: System, rate: int) -> list[Metric]:
    """Call jobs that come due at a rate, all of them enqueued beforehand: how late each call begins.

    Those that were not called when the time was up (it is given twice) count with what they were late by then.
    """
    span_us = int(cell.seconds * 2 * US)
    count = max(1, rate * span_us // US)
    start_us = cell.fill(count, int((_LEAD_S + _LEAD_EACH_S * count) * US), span_us)
    system.start()
    if _now_us() > start_us:
        raise RuntimeError("filling took longer than it was given")
    time.sleep((start_us - _now_us()) / US)
    pids = [os.getpid(), *system.pids()]
    spent_s, at_s = cpu_s(pids), time.perf_counter()
    end_us = start_us + 2 * span_us
    while system.called() < count and _now_us() < end_us:
        time.sleep(0.01)
    cpu = (cpu_s(pids) - spent_s) / (time.perf_counter() - at_s)
    found = LATE_US[:count]
    missing = count - len(found)
    now_us = _now_us()
    late_ms = [us / 1000 for us in found]
    late_ms += [(now_us - due) / 1000 for due in dues_us(count, start_us, span_us)[len(found) :]]
    return [
        Metric("p50", percentile(late_ms, 0.5), "ms", up=False),
        Metric("p99", percentile(late_ms, 0.99), "ms", up=False),
        Metric("max", max(late_ms), "ms", up=False),
        Metric("processor", cpu * 100, "% of a core", up=False),
        Metric("early", float(sum(ms < 0 for ms in late_ms)), "jobs", up=False),
        Metric(f"not called, of {count:,}", float(missing), "jobs", up=False),
    ]


def memory(cell: Cell, system: System) -> list[Metric]:
    """Let a million jobs wait for tomorrow, and call one: what the process that calls, and its server, then hold."""
    count = cell.count(WAITING)
    imported = memory_mib([os.getpid()])
    cell.fill(count, 86_400 * US, 3600 * US)
    cell.fill(1, -US, 1)
    system.start()
    _first_call(system, time.perf_counter())
    pids = [os.getpid(), *system.pids()]
    share = _settled_share(pids)
    process = memory_mib([os.getpid()])
    server = memory_mib(system.pids())
    return [
        Metric("process and server", process + server, "MiB", up=False),
        Metric("process", process, "MiB", up=False),
        Metric("the most it was", _most_mib(), "MiB", up=False),
        Metric("before it starts", imported, "MiB", up=False),
        Metric("processor", share * 100, "% of a core", up=False),
        Metric("waiting", float(count), "jobs"),
    ]


def limited(cell: Cell, system: System, case: Case) -> list[Metric]:
    """Call the jobs of a handler that may not be called more than twice at once: how long all of it takes."""
    count = cell.count(case.count)
    seconds = system.limited(case, count)
    return [Metric("took", seconds, "s", up=False), Metric(f"of {count:,}", count / seconds, "/s")]


def keys(cell: Cell, system: System) -> list[Metric]:
    """Enqueue with unique keys, beside the same without."""
    return wheels.keyed(cell.directory, cell.seconds)


def looks(cell: Cell, system: System) -> list[Metric]:
    """Look at a million messages of which nothing is dealt, again and again."""
    return wheels.looks(cell.directory, cell.count(WAITING))


def _settled_share(pids: list[int]) -> float:
    """Wait until what an opening leaves to be done is done; return the share of a core that is used from then on."""
    end_s = time.monotonic() + QUIET_S_MAX
    shares: list[float] = []
    while True:
        spent_s, at_s = cpu_s(pids), time.monotonic()
        time.sleep(1)
        shares.append((cpu_s(pids) - spent_s) / (time.monotonic() - at_s))
        last = shares[-_QUIET_S:]
        if (len(last) == _QUIET_S and max(last) < _QUIET_SHARE) or time.monotonic() > end_s:
            return sum(last) / len(last)


def _most_mib() -> float:
    """Return the most memory that this process has had resident."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True)
class Entry:
    """A measure, and who takes part; what the harness calls a workload."""

    name: str
    title: str
    run: Measure
    peers: list[str]
    rounds_max: int


_EACH_ONCE = [p.key for p in STORES if p.module != "wheel" or p.key == OURS]
_BOTH = [OURS, "futures"]
MEASURES = [
    Entry("backlog", f"calls from a backlog of {BACKLOG:,} due jobs", backlog, [p.key for p in STORES], 9),
    Entry("late-100", "lateness at 100 jobs a second", partial(late, rate=100), _EACH_ONCE, 2),
    Entry("late-1000", "lateness at 1,000 jobs a second", partial(late, rate=1000), _EACH_ONCE, 2),
    Entry(
        "memory", f"memory with {WAITING:,} jobs waiting", memory, [k for k in _EACH_ONCE if k != "huey-redis-1s"], 1
    ),
    Entry("processes", f"{WARM.count:,} calls by 2 warm processes", partial(limited, case=WARM), _BOTH, 9),
    Entry(
        "slow-import",
        f"{COLD.count:,} calls by 2 new processes that import for 1.5 s",
        partial(limited, case=COLD),
        _BOTH,
        3,
    ),
    Entry(
        "slow-start",
        f"{SLOW_START.count:,} calls, 2 at once, of which the first 2 take 1.5 s",
        partial(limited, case=SLOW_START),
        _BOTH,
        9,
    ),
    Entry("keys", "enqueues with unique keys", keys, ["filewheel"], 3),
    Entry("looks", f"looks at {WAITING:,} undealt messages", looks, ["filewheel"], 1),
]
BY_NAME = {entry.name: entry for entry in MEASURES}


def run_cell(key: str, name: str, directory: Path, seconds: float, scale: float) -> list[Metric]:
    """Run one measure on one system in a fresh directory; its server is gone on return."""
    system = BY_KEY[key].system(directory)
    try:
        system.serve()
        return BY_NAME[name].run(Cell(key, directory, seconds, scale), system)
    finally:
        system.stop()
