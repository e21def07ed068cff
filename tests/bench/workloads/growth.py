"""Growth: what an enqueue costs, what a consumer holds, and how it starts, as ever more is pending."""

from __future__ import annotations

import json
import os
from functools import partial

from tests.bench.cell import Cell, Metric
from tests.bench.load import Load, timed
from tests.bench.store import Session

_BATCHES = 20
LEVELS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)


def growth(cell: Cell) -> list[Metric]:
    """Fill the store level by level; at each, enqueue for a while, then start a consumer in a fresh process."""
    store = cell.store
    load = Load(cell.seed)
    metrics: list[Metric] = []
    pending = 0
    for level in LEVELS:
        if level > LEVELS[-1] * cell.scale:
            break
        session = cell.populate(level - pending, load)
        session.close()
        store.stop()
        store.start()
        session = store.session()
        os.sync()  # what was populated is not the enqueues' to write
        payloads, dues = load.payloads(50_000), load.dues_us(50_000)
        for i in range(20):
            session.enqueue(payloads[i], dues[i])
        singles, elapsed = timed(partial(_one, session, payloads, dues), cell.seconds, 49_000)
        metrics.append(Metric(f"one at {level:,}", elapsed / singles * 1e6, "us", up=False))
        # As many at each level, or the longer of two would also pay for what goes on beside it.
        batches, elapsed = timed(
            partial(_thousand, session, payloads, dues), 60, _BATCHES if level > _BATCHES * 100 else 2
        )
        metrics.append(Metric(f"batches of 1,000 at {level:,}", elapsed / batches * 1e3, "us", up=False))
        store.settle(session)
        session.close()
        store.stop()
        pending = level + singles + batches * 1000
        opened = json.loads(cell.helper("open", watch_s=1).communicate()[0].splitlines()[-1])
        metrics += [
            Metric(f"open and first fire at {level:,}", opened["open_s"], "s", up=False),
            Metric(f"memory at {level:,}", opened["rss_mib"], "MiB", up=False),
            Metric(f"open files at {level:,}", opened["files"], "files", up=False),
        ]
    return metrics


def _one(session: Session, payloads: list[bytes], dues: list[int], i: int) -> None:
    session.enqueue(payloads[i], dues[i])


def _thousand(session: Session, payloads: list[bytes], dues: list[int], i: int) -> None:
    start = i % 50 * 1000
    session.enqueue_many(payloads[:1000], dues[start : start + 1000])
