"""Enqueueing: one by one against the bare system calls, in threads, in batches with the keeper dealing beside.

Invariant: the yardstick of a durable figure is measured in the same run, on the same file system, turn about.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from filewheel import Wheel

from .figure import Figure, Report, fresh, median, python

PAYLOAD = bytes(100)
SPREAD_S = 7200


DEALING_KEEPER = """
import sys, threading
from filewheel import Keeper
with Keeper(sys.argv[1]) as keeper:
    print("up", flush=True)
    def stop():
        sys.stdin.readline()
        keeper.wake()
        done.set()
    done = threading.Event()
    threading.Thread(target=stop, daemon=True).start()
    while not done.is_set():
        keeper.ack(keeper.claim(1000))
        keeper.wait(0.1)
"""


def run(directory: Path, count: int, report: Report) -> None:
    """Measure single enqueues: durable, durable in threads, and not synced."""
    _single(directory, count, report)
    _threads(directory, count, report)
    _unsynced(directory, count * 20, report)


def _single(directory: Path, count: int, report: Report) -> None:
    rounds = 7
    each = max(100, count // rounds)
    bare: list[float] = []
    ours: list[float] = []
    path = fresh(directory, "single.wheel")
    with Wheel.create(path) as wheel:
        fd = os.open(directory / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        record = bytes(220)

        def commit(i: int) -> None:
            os.pwrite(fd, record, i * len(record))
            os.fdatasync(fd)

        try:
            os.pwrite(fd, bytes(each * len(record)), 0)
            os.fdatasync(fd)
            for _ in range(5):
                wheel.enqueue(PAYLOAD, delay=3600)
            for _ in range(rounds):
                bare.append(_rate(each, commit))
                ours.append(_rate(each, lambda i: wheel.enqueue(PAYLOAD, delay=3600 + i, topic="mail")))
        finally:
            os.close(fd)
            os.unlink(directory / "bare")
    report(Figure("pwrite + fdatasync into zero-filled space, one thread", median(bare), "/s"))
    report(Figure("enqueue one, durable, one thread", median(ours), "/s", "the line above"))
    ratio = median([o / b for o, b in zip(ours, bare, strict=True)])
    report(Figure("... as a share of the bare system calls", ratio, "", "goal 0.9"))


def _rate(count: int, act: Callable[[int], object]) -> float:
    start = time.perf_counter()
    for i in range(count):
        act(i)
    return count / (time.perf_counter() - start)


def _threads(directory: Path, count: int, report: Report) -> None:
    threads = 8
    each = max(50, count // threads)
    with Wheel.create(fresh(directory, "threads.wheel")) as wheel:
        workers = [
            threading.Thread(target=_rate, args=(each, lambda i: wheel.enqueue(PAYLOAD, delay=3600)))
            for _ in range(threads)
        ]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        report(Figure("enqueue one, durable, 8 threads", threads * each / (time.perf_counter() - start), "/s"))


def _unsynced(directory: Path, count: int, report: Report) -> None:
    with Wheel.create(fresh(directory, "unsynced.wheel"), sync="never") as wheel:
        rate = _rate(count, lambda i: wheel.enqueue(PAYLOAD, delay=3600))
        report(Figure('enqueue one, sync="never", one thread', rate, "/s"))


def batches(directory: Path, count: int, report: Report) -> None:
    """Measure batches of 1,000, durable and sustained: a keeper deals all of it before the clock is stopped."""
    path = fresh(directory, "batches.wheel")
    Wheel.create(path).close()
    keeper = python(DEALING_KEEPER, path)
    assert keeper.stdout is not None
    assert keeper.stdin is not None
    keeper.stdout.readline()
    rng = random.Random(1)
    payloads = [rng.randbytes(100) for _ in range(1000)]
    start = time.perf_counter()
    with Wheel(path) as wheel:
        for _ in range(count // 1000):
            delays = [60 + SPREAD_S * rng.random() for _ in range(1000)]
            wheel.enqueue_many(payloads, delay=delays, topic="mail")
    enqueued = time.perf_counter() - start
    keeper.stdin.write("stop\n")
    keeper.stdin.close()
    keeper.wait()
    dealt = time.perf_counter() - start
    report(Figure(f"enqueue batches of 1,000, durable, {count:,} in all", count / enqueued, "/s"))
    report(Figure("... until the last of them is dealt into the laps", count / dealt, "/s"))
