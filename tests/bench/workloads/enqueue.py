"""Enqueueing: one by one, in threads, in processes, in batches; by due time and by payload."""

from __future__ import annotations

import json
import threading
import time

from tests.bench.cell import Cell, Metric
from tests.bench.load import Load, timed
from tests.bench.store import Missing, Session

WORKERS = 8
_DUES = 100_000


def one(cell: Cell) -> list[Metric]:
    """Enqueue one after the other from one thread."""
    cell.store.start()
    return [Metric("rate", _singles(cell.store.session(), Load(cell.seed), cell.seconds), "/s")]


def _singles(session: Session, load: Load, seconds: float) -> float:
    payloads, dues = load.payloads(_DUES), load.dues_us(_DUES)
    for i in range(20):
        session.enqueue(payloads[i], dues[i])
    done, elapsed = timed(lambda i: session.enqueue(payloads[i % _DUES], dues[i % _DUES]), seconds)
    return done / elapsed


def threads(cell: Cell) -> list[Metric]:
    """Enqueue from eight threads of one process."""
    if not cell.store.threads:
        raise Missing("one thread only")
    cell.store.start()
    gate = threading.Barrier(WORKERS + 1)
    counts: list[int] = []

    def work(session: Session, seed: int) -> None:
        load = Load(seed)
        payloads, dues = load.payloads(_DUES), load.dues_us(_DUES)
        session.enqueue(payloads[0], dues[0])
        gate.wait()
        counts.append(timed(lambda i: session.enqueue(payloads[i % _DUES], dues[i % _DUES]), cell.seconds)[0])

    workers = [threading.Thread(target=work, args=(cell.store.session(), cell.seed + n)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    gate.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return [Metric("rate", sum(counts) / (time.perf_counter() - start), "/s")]


def processes(cell: Cell) -> list[Metric]:
    """Enqueue from eight processes."""
    if not cell.store.processes:
        raise Missing("one process only")
    cell.store.start()
    workers = [cell.helper("singles", seconds=cell.seconds, number=n) for n in range(WORKERS)]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "ready\n":
            raise RuntimeError("a worker did not start")
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    counts = []
    for worker in workers:
        assert worker.stdout is not None
        counts.append(json.loads(worker.stdout.readline()))
    elapsed = time.perf_counter() - start
    for worker in workers:
        worker.communicate()
    return [Metric("rate", sum(counts) / elapsed, "/s")]


def batches(cell: Cell, size: int) -> list[Metric]:
    """Enqueue batches of one size, for a while."""
    cell.store.start()
    return [Metric("rate", _batches(cell.store.session(), Load(cell.seed), size, cell.seconds), "/s")]


def _batches(session: Session, load: Load, size: int, seconds: float) -> float:
    payloads = load.payloads(size)
    rounds = [load.dues_us(size) for _ in range(max(1, min(200, 400_000 // size)))]
    session.enqueue_many(payloads, rounds[0])
    done, elapsed = timed(lambda i: session.enqueue_many(payloads, rounds[i % len(rounds)]), seconds)
    return done * size / elapsed


def sustained(cell: Cell, shape: str = "two hours", most: int = 3_000_000, seconds: float = 6) -> list[Metric]:
    """Enqueue batches of 1,000 until millions are in or the time is up; then until all of it is settled."""
    cell.store.start()
    session = cell.store.session()
    load = Load(cell.seed, shape=shape)
    payloads = load.payloads(1000)
    fixed = None if shape == "soon" else [load.dues_us(1000) for _ in range(400)]
    start = time.perf_counter()
    done, elapsed = timed(
        lambda i: session.enqueue_many(payloads, fixed[i % 400] if fixed else load.dues_us(1000)),
        cell.seconds * seconds, cell.count(most) // 1000,
    )  # fmt: skip
    cell.store.settle(session)
    return [
        Metric("enqueued", done * 1000 / elapsed, "/s"),
        Metric("until settled", done * 1000 / (time.perf_counter() - start), "/s"),
    ]


def shape(cell: Cell, shape: str) -> list[Metric]:
    """The same with another spread of due times, for less long."""
    return sustained(cell, shape, 500_000, 2)


def payload(cell: Cell, size: int) -> list[Metric]:
    """Enqueue payloads of one size: one by one, and a hundred at a time."""
    cell.store.start()
    session = cell.store.session()
    load = Load(cell.seed, size)
    payloads, dues = load.payloads(1000), load.dues_us(1000)
    session.enqueue(payloads[0], dues[0])
    done, elapsed = timed(lambda i: session.enqueue(payloads[i % 1000], dues[i % 1000]), cell.seconds / 2)
    return [
        Metric("one", done / elapsed, "/s"),
        Metric("batches of 100", _batches(session, load, 100, cell.seconds / 2), "/s"),
    ]
