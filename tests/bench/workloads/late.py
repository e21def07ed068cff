"""Lateness: from the due time to the moment when the consumer has the message. And what waiting costs."""

from __future__ import annotations

import json
import os
import time

from tests.bench.cell import Cell, Metric, cpu_s
from tests.bench.load import Load, percentile
from tests.bench.store import US, Session

_LEAD_S = 1.5


def steady(cell: Cell, rate: int) -> list[Metric]:
    """Let another process enqueue at a rate, due a second and a half later, and fire."""
    seconds = max(2.0, cell.seconds * 5)
    cell.store.start(consume=True)
    session = cell.store.session()
    session.ack(session.claim(1))
    producer = cell.helper("steady", rate=rate, seconds=seconds, lead_s=_LEAD_S)
    assert producer.stdout is not None
    assert producer.stdin is not None
    producer.stdout.readline()
    producer.stdin.write("go\n")
    producer.stdin.flush()
    late_ms: list[float] = []
    begun, spent = time.monotonic(), _used_s(cell)
    end = begun + seconds + _LEAD_S + 10
    expected: int | None = None
    while time.monotonic() < end and (expected is None or len(late_ms) < expected):
        late_ms += _fired(session, 0.2)
        if expected is None and producer.poll() is not None:
            expected = json.loads(producer.stdout.read())
    cpu = (_used_s(cell) - spent) / (time.monotonic() - begun)
    producer.communicate()
    session.close()
    return [
        Metric("p50", percentile(late_ms, 0.5), "ms", up=False),
        Metric("p99", percentile(late_ms, 0.99), "ms", up=False),
        Metric("max", max(late_ms), "ms", up=False),
        Metric("early", float(sum(v < 0 for v in late_ms)), "messages", up=False),
        Metric("missing", float((expected or 0) - len(late_ms)), "messages", up=False),
        Metric("fired", float(len(late_ms)), "messages"),
        Metric("consumer's and server's processor", cpu * 100, "% of a core", up=False),
    ]


def _fired(session: Session, wait_s: float) -> list[float]:
    """Fire what is due; return how late each is, in milliseconds. Waits when nothing is."""
    batch = session.claim(1000)
    now_us = time.time_ns() // 1000
    late_ms = [(now_us - due) / 1000 for due in session.dues_us(batch)] if len(batch) else []
    session.ack(batch)
    if not late_ms:
        session.wait(wait_s)
    return late_ms


def _used_s(cell: Cell) -> float:
    return cpu_s([os.getpid(), *cell.store.pids()])


def hot_second(cell: Cell) -> list[Metric]:
    """Fire a second that holds half a million."""
    count = cell.count(500_000)
    ready_s = 4 + count / 16_000
    moment_us = (time.time_ns() // 1000 // US + int(ready_s)) * US
    session = cell.populate(count, Load(cell.seed, shape="one second", start_us=moment_us))
    session.close()
    cell.store.stop()
    cell.store.start(consume=True)
    session = cell.store.session()
    session.ack(session.claim(1))
    if time.time_ns() // 1000 > moment_us:
        raise RuntimeError("populating took longer than it was given")
    late_ms: list[float] = []
    while len(late_ms) < count:
        late_ms += _fired(session, 0.5)
    session.close()
    return [
        Metric("last", late_ms[-1] / 1000, "s late", up=False),
        Metric("p50", percentile(late_ms, 0.5) / 1000, "s late", up=False),
    ]


def idle(cell: Cell) -> list[Metric]:
    """Let a million wait, and measure what the consumer and its server spend on it."""
    cell.populate(cell.count(1_000_000), Load(cell.seed)).close()
    cell.store.stop()
    watcher = cell.helper("open", watch_s=max(5.0, cell.seconds * 10))
    assert watcher.stdout is not None
    opened = json.loads(watcher.communicate()[0].splitlines()[-1])
    return [
        Metric("idle", opened["cpu"] * 100, "% of a core", up=False),
        Metric("memory", opened["rss_mib"], "MiB", up=False),
    ]
