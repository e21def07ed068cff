"""The workloads by name, what they show, and the peers that are compared in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tests.bench.cell import Workload
from tests.bench.stores import BOUNDED, DURABLE, PEERS, RELAXED
from tests.bench.workloads import consume, enqueue, growth, late, replay


@dataclass(frozen=True)
class Entry:
    """A workload, and who takes part."""

    name: str
    title: str
    run: Workload
    peers: list[str]
    group: str


def _of(*promises: str, but: tuple[str, ...] = ()) -> list[str]:
    return [p.key for p in PEERS if p.promise in promises and p.key not in but]


_ALL = _of(DURABLE, BOUNDED, RELAXED)
_DURABLE = _of(DURABLE)
_STORES = [k for k in _DURABLE if k != "bare"]
_TIMED = ["filewheel", "sqlite", "sqlite-clustered", "redis"]
_QUICK = ["bare", "filewheel", "sqlite", "sqlite-clustered", "redis", "beanstalkd", "rocksdb", "lmdb"]
_THREE = ["filewheel", "sqlite", "redis"]
_TREES = _QUICK[1:]

WORKLOADS = [
    Entry("one", "enqueue one, one thread", enqueue.one, _ALL, "enqueue"),
    Entry("threads", "enqueue one, 8 threads", enqueue.threads, _ALL, "enqueue"),
    Entry("processes", "enqueue one, 8 processes", enqueue.processes, _ALL, "enqueue"),
    *[
        Entry(f"batch-{n}", f"enqueue in batches of {n:,}", partial(enqueue.batches, size=n), _QUICK, "batch")
        for n in (10, 100, 1000, 10_000)
    ],
    Entry("sustained", "batches of 1,000, millions, until settled", enqueue.sustained, _QUICK, "batch"),
    *[
        Entry(
            f"due-{s.replace(' ', '-')}",
            f"batches of 1,000, due {t}",
            partial(enqueue.shape, shape=s),
            _TREES,
            "due",
        )
        for s, t in (
            ("two hours", "within two hours"),
            ("one second", "all in one second"),
            ("soon", "mostly within ten seconds"),
            ("a year", "within a year"),
        )
    ],
    *[
        Entry(f"payload-{n}", f"payloads of {t}", partial(enqueue.payload, size=n), _QUICK, "payload")
        for n, t in ((16, "16 B"), (100, "100 B"), (1024, "1 KiB"), (102_400, "100 KiB"))
    ],
    Entry("fire", "fire and acknowledge a backlog", consume.fire, _STORES, "consume"),
    Entry("catch-up", "fire what came due in a day off", consume.catch_up, _STORES, "consume"),
    Entry("cancel", "cancel", consume.cancel, [k for k in _STORES if k != "persist-queue"], "consume"),
    *[
        Entry(
            f"late-{n}",
            f"lateness at {n:,} a second",
            partial(late.steady, rate=n),
            _THREE,
            "late",
        )
        for n in (100, 1000, 10_000)
    ],
    Entry("hot-second", "one second that holds 500,000", late.hot_second, _TIMED, "late"),
    Entry("idle", "idle with a million pending", late.idle, _TIMED, "late"),
    Entry("growth", "from a thousand pending to ten million", growth.growth, _THREE, "growth"),
    Entry("replay", "a day's work at 100 times speed", replay.replay, _THREE, "replay"),
]
BY_NAME = {entry.name: entry for entry in WORKLOADS}
