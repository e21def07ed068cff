"""A day's work at 100 times speed: a producer walks the trace, this process fires, and both are asked what they saw.

The hour around the hot second (10:00:00) by default; the whole day, which takes 864 s, when `WHOLE_DAY` is set in the
environment. What was enqueued before the window is left out.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from pathlib import Path
from typing import Any

from tests.bench.cell import Cell, Metric, cpu_s
from tests.bench.load import US, percentile
from tests.bench.store import Session, Store
from tests.bench.trace import DAY_S, SPEED

WHOLE_DAY = "FILEWHEEL_BENCH_WHOLE_DAY"
HOT_S = 10 * 3600
GRACE_S = 5.0


def window(scale: float) -> tuple[float, float]:
    """Return which part of the day is replayed, in seconds since midnight: shorter at a small scale."""
    if os.environ.get(WHOLE_DAY):
        return 0, DAY_S
    half_s = max(2, int(30 * min(1.0, scale))) * 60
    return HOT_S - half_s, HOT_S + half_s


def replay(cell: Cell) -> list[Metric]:
    """Fire while another process replays the trace; then hold what fired against what should have."""
    start_s, end_s = window(cell.scale)
    cell.store.start(consume=True)
    session = cell.store.session()
    session.ack(session.claim(1))
    producer = cell.helper("trace", start_s=start_s, end_s=end_s)
    assert producer.stdout is not None
    assert producer.stdin is not None
    if producer.stdout.readline() != "ready\n":
        raise RuntimeError("the producer did not start")
    start_us = time.time_ns() // 1000 + 300_000
    producer.stdin.write(f"{start_us}\n")
    producer.stdin.flush()
    end_us = start_us + int((end_s - start_s) / SPEED * US)
    before = _used_s(cell.store)
    fired = _fire_until(session, end_us + 300_000)  # what is due last is fired at its time, too
    consumer_s = _used_s(cell.store) - before
    said = json.loads(producer.communicate()[0].splitlines()[-1])
    more = _fire_until(session, int((time.time() + 0.5) * US), seek=_seek(cell.directory, end_us, fired))
    session.close()
    fired += more
    return [
        *_judge(cell.directory, fired, end_us),
        Metric("producer behind, max", said["behind_ms"], "ms", up=False),
        Metric("producer's processor", said["cpu_s"], "s", up=False),
        Metric("consumer's and server's processor", consumer_s, "s", up=False),
    ]


Fired = tuple[int, int, int]
"""number of the message, when its claim was asked for, when it was there: microseconds"""


def _used_s(store: Store) -> float:
    return cpu_s([os.getpid(), *store.pids()])


def _fire_until(session: Session, end_us: int, seek: set[int] | None = None) -> list[Fired]:
    """Claim and acknowledge until a moment; with `seek`, past it for as long as some of these are awaited."""
    fired: list[Fired] = []
    deadline_us = end_us + int(GRACE_S * US)
    while (asked_us := time.time_ns() // 1000) < end_us or (seek and asked_us < deadline_us):
        batch = session.claim(1000)
        if len(batch):
            now_us = time.time_ns() // 1000
            numbers = [int.from_bytes(p[:4], "big") for p in session.payloads(batch)]
            fired += [(n, asked_us, now_us) for n in numbers]
            if seek:
                seek.difference_update(numbers)
        session.ack(batch)
        if not len(batch):
            session.wait(0.05)
    return fired


def _tables(directory: Path) -> tuple[array[int], array[int]]:
    """Read what the producer noted: when each message was due, and when its cancel had returned (0: none)."""
    dues, cancels = array("q"), array("q")
    dues.frombytes((directory / "dues").read_bytes())
    cancels.frombytes((directory / "cancels").read_bytes())
    return dues, cancels


def _seek(directory: Path, end_us: int, fired: list[Fired]) -> set[int]:
    dues, cancels = _tables(directory)
    seen = {n for n, _, _ in fired}
    return {n for n, due in enumerate(dues) if due < end_us and not cancels[n] and n not in seen}


def _judge(directory: Path, fired: list[Fired], end_us: int) -> list[Metric]:
    """Return lateness of what was due in the window, and counts of what must not happen."""
    dues, cancels = _tables(directory)
    seen: dict[int, Any] = {}
    for number, _, now_us in fired:
        seen.setdefault(number, now_us)
    late_ms = [(now_us - dues[n]) / 1000 for n, now_us in seen.items() if dues[n] < end_us]
    due = {n for n, d in enumerate(dues) if d < end_us and not cancels[n]}
    counts = {
        "early": sum(v < 0 for v in late_ms),
        "missing": len(due - seen.keys()),
        "fired after cancel": sum(0 < cancels[n] < asked_us for n, asked_us, _ in fired),
        "fired twice": len(fired) - len(seen),
    }
    return [
        Metric("enqueued", len(dues), "messages"),
        Metric("cancelled", sum(c > 0 for c in cancels), "messages"),
        Metric("fired", len(seen), "messages"),
        Metric("p50", percentile(late_ms, 0.5), "ms", up=False),
        Metric("p99", percentile(late_ms, 0.99), "ms", up=False),
        Metric("max", max(late_ms), "ms", up=False),
        *[Metric(name, count, "messages", up=False) for name, count in counts.items()],
    ]
