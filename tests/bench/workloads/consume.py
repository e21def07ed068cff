"""Consuming: a backlog that is fired and acknowledged, a day off that is caught up with, cancels."""

from __future__ import annotations

import time

from tests.bench.cell import Cell, Metric
from tests.bench.load import Load, timed
from tests.bench.store import Missing, Session

_BATCH = 1000


def fire(cell: Cell) -> list[Metric]:
    """Fire and acknowledge messages that are all due, a thousand at a time."""
    count = cell.count(300_000)
    return [Metric("rate", _drain(cell.backlog(count, "ten minutes", 700), count, cell.seconds * 10), "/s")]


def catch_up(cell: Cell) -> list[Metric]:
    """Fire what came due over a day in which nobody was there."""
    count = cell.count(300_000)
    start = time.perf_counter()
    session = cell.backlog(count, "a day", 86_500)
    del start
    return [Metric("rate", _drain(session, count, cell.seconds * 10), "/s")]


def _drain(session: Session, count: int, seconds: float) -> float:
    """Claim and acknowledge until nothing is left, or the time is up; opening the consumer is part of it."""
    start = time.perf_counter()
    done = 0
    while done < count and time.perf_counter() - start < seconds:
        batch = session.claim(min(_BATCH, count - done))
        session.ack(batch)
        done += len(batch)
    elapsed = time.perf_counter() - start
    session.close()
    return done / elapsed


def cancel(cell: Cell) -> list[Metric]:
    """Cancel: what was just enqueued one by one, what has lain for a while one by one, and by the thousand."""
    store = cell.store
    store.start()
    session = store.session()
    load = Load(cell.seed)
    count = cell.count(100_000)
    handles = _enqueued(session, load, count)
    store.settle(session)
    store.stop()
    store.start()
    session = store.session()
    young = _enqueued(session, load, min(count, 10_000))
    metrics = []
    done, elapsed = timed(lambda i: session.cancel(young[i]), cell.seconds, len(young))
    metrics.append(Metric("one, just enqueued", done / elapsed, "/s"))
    done, elapsed = timed(lambda i: session.cancel(handles[i]), cell.seconds, len(handles) // 2)
    metrics.append(Metric("one, settled", done / elapsed, "/s"))
    rest = handles[done:]
    try:
        done, elapsed = timed(
            lambda i: session.cancel_many(rest[i * 1000 : i * 1000 + 1000]), cell.seconds, len(rest) // 1000
        )
    except Missing:
        return metrics
    if done:
        metrics.append(Metric("batches of 1,000", done * 1000 / elapsed, "/s"))
    return metrics


def _enqueued(session: Session, load: Load, count: int) -> list[object]:
    handles: list[object] = []
    while count > 0:
        some = min(count, 10_000)
        handles += session.enqueue_many(load.payloads(some), load.dues_us(some))
        count -= some
    return handles
