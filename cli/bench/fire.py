"""Firing: a backlog fired and acknowledged, messages on time, one dense second, hints between processes.

Invariant: lateness is measured from the due time that the message carries to the moment its consumer has it.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from filewheel import Keeper, Wheel

from .figure import Figure, Report, fresh, percentile, python

PRODUCER = """
import json, sys, time
from filewheel import Wheel
path, rate, seconds, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
with Wheel(path, sync="never") as wheel:
    start = time.monotonic()
    sent = 0
    while (now := time.monotonic() - start) < seconds:
        while sent < now * rate:
            wheel.enqueue(b"x" * 100, delay=delay, topic="mail")
            sent += 1
        time.sleep(0.001)
print(sent)
"""


def backlog(directory: Path, count: int, report: Report) -> None:
    """Measure firing and acknowledging a backlog that lies in the laps, all of it due."""
    path = fresh(directory, "backlog.wheel")
    now = time.time()
    rng = random.Random(1)
    with Wheel.create(path, sync="never") as wheel, Keeper(path):
        payloads = [rng.randbytes(100) for _ in range(1000)]
        for _ in range(count // 1000):
            # Due from a minute ahead, so that they are dealt and not fired; then they are made to have been due.
            wheel.enqueue_many(payloads, at=[now + 60 + rng.random() * 600 for _ in range(1000)], topic="mail")
    with Keeper(path, clock=_Later(700)) as keeper:
        start = time.perf_counter()
        fired = bytes_fired = 0
        for batch in keeper.batches(limit=1000, wait=False):
            for message in batch:
                bytes_fired += len(message.payload)
            fired += keeper.ack(batch)
        elapsed = time.perf_counter() - start
    assert fired == count
    report(Figure(f"fire and acknowledge a backlog of {count:,}, batches of 1,000", fired / elapsed, "/s"))


class _Later:
    """The system's clock, some seconds ahead."""

    def __init__(self, ahead_s: int) -> None:
        self._ahead_us = ahead_s * 1_000_000

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_us

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1000


def lateness(directory: Path, rate: int, seconds: float, report: Report) -> None:
    """Measure how late messages are when another process enqueues `rate` of them a second."""
    for delay, what in ((1.5, "due 1.5 s after their enqueue"), (0.0, "without delay, from another process")):
        path = fresh(directory, "lateness.wheel")
        Wheel.create(path).close()
        late_ms: list[float] = []
        with Keeper(path) as keeper:
            producer = python(PRODUCER, path, rate, seconds, delay)
            deadline = time.monotonic() + seconds + delay + 5
            expected: int | None = None
            while time.monotonic() < deadline and (expected is None or len(late_ms) < expected):
                batch = keeper.claim(1000)
                now = time.time_ns() // 1000
                late_ms += [(now - m.due_us) / 1000 for m in batch]
                keeper.ack(batch)
                if not batch:
                    keeper.wait(0.2)
                if expected is None and producer.poll() is not None:
                    assert producer.stdout is not None
                    expected = int(producer.stdout.read())
            producer.wait()
        for share, name in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
            limit = "limit 20 ms" if delay == 0 else "limit 5 ms"
            value = percentile(late_ms, share)
            report(Figure(f"lateness {name}, {rate:,}/s {what}", value, "ms", limit if share == 0.99 else ""))
        report(Figure(f"... fired early, {what}", float(sum(v < 0 for v in late_ms)), "messages", "limit 0"))


def second(directory: Path, count: int, report: Report) -> None:
    """Measure one second that holds `count` messages: how late the last of them is."""
    path = fresh(directory, "second.wheel")
    with Wheel.create(path, sync="never") as wheel:
        moment = float(int(time.time()) + 8 + count // 100_000)
        payloads = [b"x" * 100] * 1000
        rng = random.Random(1)
        with Keeper(path) as keeper:
            for _ in range(count // 1000):
                wheel.enqueue_many(payloads, at=[moment + rng.random() * 0.999999 for _ in range(1000)], topic="mail")
            fired = 0
            last_due = 0
            while fired < count:
                batch = keeper.claim(1000)
                if batch:
                    fired += len(batch)
                    last_due = batch[-1].due_us
                    keeper.ack(batch)
                else:
                    keeper.wait(0.5)
            late_s = (time.time_ns() // 1000 - last_due) / 1e6
    report(Figure(f"one second holding {count:,} messages: the last is late by", late_s, "s", "limit 2 s"))


def pending(directory: Path, count: int, report: Report) -> None:
    """Measure memory, open files and start time with `count` messages pending over two hours."""
    path = fresh(directory, "pending.wheel")
    rng = random.Random(1)
    payloads = [rng.randbytes(100) for _ in range(1000)]
    with Wheel.create(path, sync="never") as wheel:
        keeper = python(MEASURED_KEEPER, path, 0)
        assert keeper.stdout is not None
        keeper.stdout.readline()
        for _ in range(count // 1000):
            wheel.enqueue_many(payloads, delay=[600 + 7200 * rng.random() for _ in range(1000)], topic="mail")
        busy = _stop(keeper)
        assert wheel.stats().pending == count
        wheel.enqueue(b"first")
        start = time.perf_counter()
        keeper = python(MEASURED_KEEPER, path, 1)
        assert keeper.stdout is not None
        started = json.loads(keeper.stdout.readline())
        process_s = time.perf_counter() - start
        idle = _stop(keeper)
    n = f"{count:,} pending"
    report(Figure(f"open and first fire, {n}", started["open_s"], "s", "limit 1 s"))
    report(Figure("... with the start of the Python process", process_s, "s"))
    report(Figure(f"resident memory after start, {n}", idle["rss_mib"], "MiB", "limit 100 MB"))
    report(Figure(f"peak resident memory while they came in, {n}", busy["peak_mib"], "MiB", "limit 100 MB"))
    report(Figure(f"open files, {n}", max(idle["files"], busy["files"]), "files", "limit 64"))
    report(Figure(f"idle, {n}", idle["cpu"] * 100, "% of a core", "limit 0.5 %"))


MEASURED_KEEPER = """
import json, os, re, sys, threading, time
from filewheel import Keeper
start = time.perf_counter()
with Keeper(sys.argv[1]) as keeper:
    if sys.argv[2] == "1":
        while not (batch := keeper.claim(1)):
            keeper.wait(0.01)
        keeper.ack(batch)
    print(json.dumps({"open_s": time.perf_counter() - start}), flush=True)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set(), keeper.wake()), daemon=True).start()
    files, begun, cpu = 0, time.monotonic(), time.process_time()
    while not stop.is_set():
        keeper.ack(keeper.claim(1000))
        keeper.wait(0.5)
        files = max(files, len(os.listdir("/proc/self/fd")))
    spent = (time.process_time() - cpu) / (time.monotonic() - begun)
    status = open("/proc/self/status").read()
    number = lambda key: int(re.search(key + r":\\s+(\\d+)", status)[1]) / 1024
    figures = {"rss_mib": number("VmRSS"), "peak_mib": number("VmHWM"), "files": files, "cpu": spent}
    print(json.dumps(figures), flush=True)
"""


def _stop(keeper: object) -> dict[str, float]:
    import subprocess

    assert isinstance(keeper, subprocess.Popen)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    time.sleep(5)
    keeper.stdin.write("stop\n")
    keeper.stdin.close()
    figures: dict[str, float] = json.loads(keeper.stdout.readline())
    keeper.wait()
    return figures
