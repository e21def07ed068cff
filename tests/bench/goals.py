"""The goals that filewheel set itself, and what a run says of each, met or not.

A goal is a ratio to a peer that must be reached, or a limit that must not be passed.
Invariant: every goal has a line, also one that was not measured or not met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.bench.result import Run
from tests.bench.table import number

LARGE, SMALL = "10,000,000", "10,000"


@dataclass(frozen=True)
class Goal:
    """What has to be so."""

    what: str
    than: str
    """What it is compared with, or the unit of what must not be passed."""
    bound: float
    at_least: bool
    value: Callable[[Run, str], float | None]


def _over(workload: str, metric: str, theirs: str, ours: str = "filewheel") -> Callable[[Run, str], float | None]:
    return lambda run, place: run.ratio(place, workload, metric, ours, theirs)


def _over_best(workload: str, metric: str, theirs: Iterable[str]) -> Callable[[Run, str], float | None]:
    def value(run: Run, place: str) -> float | None:
        ratios = [run.ratio(place, workload, metric, "filewheel", peer) for peer in theirs]
        return min((r for r in ratios if r is not None), default=None)

    return value


def _median(workload: str, metric: str) -> Callable[[Run, str], float | None]:
    return lambda run, place: run.median(place, workload, "filewheel", metric)


def _growth(metric: str) -> Callable[[Run, str], float | None]:
    def value(run: Run, place: str) -> float | None:
        large, small = (run.median(place, "growth", "filewheel", f"{metric} at {n}") for n in (LARGE, SMALL))
        return large / small if large and small else None

    return value


_SQLITES = ("sqlite", "sqlite-clustered")
_SETTLED = "batches of 1,000, durable, over millions, until settled"

GOALS = [
    Goal("enqueue one, durable, one thread", "× bare `pwrite` + `fdatasync`", 0.9, True, _over("one", "rate", "bare")),
    *[
        Goal("enqueue one, durable, one thread", f"× {title}", 1, True, _over("one", "rate", key))
        for key, title in (("sqlite", "SQLite"), ("redis", "Redis"), ("beanstalkd", "beanstalkd"))
    ],
    Goal("enqueue one, durable, 8 threads", "× the best SQLite", 3, True, _over_best("threads", "rate", _SQLITES)),
    Goal("enqueue one, durable, 8 processes", "× the best SQLite", 3, True, _over_best("processes", "rate", _SQLITES)),
    *[
        Goal('enqueue one, `sync="never"`', f"× {title}", 10, True, _over("one", "rate", key, "filewheel-never"))
        for key, title in (("sqlite-normal", "SQLite, NORMAL"), ("beanstalkd-never", "beanstalkd -F"))
    ],
    *[
        Goal(what, f"× {title}", bound, True, _over("sustained", metric, key))
        for what, metric in ((_SETTLED.partition(", until")[0], "enqueued"), (_SETTLED, "until settled"))
        for key, title, bound in (("sqlite", "SQLite", 10), ("redis", "Redis", 5), ("rocksdb", "RocksDB", 2))
    ],
    Goal("fire and acknowledge a backlog", "× SQLite", 10, True, _over("fire", "rate", "sqlite")),
    Goal("fire and acknowledge a backlog", "× Redis, `ZPOPMIN`", 1, True, _over("fire", "rate", "redis")),
    Goal(f"an enqueue with {LARGE} pending", f"× one with {SMALL}", 1.1, False, _growth("one")),
    Goal(f"a batch with {LARGE} pending", f"× one with {SMALL}", 1.1, False, _growth("batches of 1,000")),
    Goal(f"memory with {LARGE} pending", "MiB", 95, False, _median("growth", f"memory at {LARGE}")),
    Goal(f"open files with {LARGE} pending", "files", 64, False, _median("growth", f"open files at {LARGE}")),
    Goal(
        f"open and first fire with {LARGE} pending", "s", 1, False, _median("growth", f"open and first fire at {LARGE}")
    ),
    Goal("one second that holds 500,000: the last is late by", "s", 2, False, _median("hot-second", "last")),
    Goal("lateness at 1,000 a second, 99th percentile", "ms", 5, False, _median("late-1000", "p99")),
    Goal("idle with 1,000,000 pending", "% of a core", 0.5, False, _median("idle", "idle")),
]


def goals(run: Run, place: str) -> str:
    """Return the table of goals."""
    lines = ["| what | goal | measured | met |", "| --- | --- | ---: | --- |"]
    for goal in GOALS:
        value = goal.value(run, place)
        sign = "at least" if goal.at_least else "at most"
        met = (
            "-"
            if value is None
            else "yes"
            if (value >= goal.bound) == goal.at_least or value == goal.bound
            else "**no**"
        )
        shown = "not measured" if value is None else number(value)
        lines.append(f"| {goal.what} | {sign} {number(goal.bound)} {goal.than} | {shown} | {met} |")
    return "\n".join(lines)
