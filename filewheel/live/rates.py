"""How many messages a second fire and fail, and how late: from what a scheduler publishes, or from the history of runs.

A scheduler publishes its counters every few seconds (metrics/published.py). Two publications of one process give a
rate. A keeper that publishes nothing (`filewheel run`, a Keeper of your own) has ends in its history.
Invariant: a rate is a difference between two counters of one process, or a count of ends; else it is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from filewheel.message import US_PER_S
from filewheel.metrics.metrics import BOUNDS_S, PREFIX, quantile_of
from filewheel.metrics.prometheus import Family
from filewheel.metrics.published import Published
from filewheel.runs.run import ACKED, DEAD, RETRIED, Ended

ENDS_MAX = 5_000
"""Of the history at most the last this many ends count."""
COUNTERS = ("enqueued", "fired", "acknowledged", "retried", "dead", "skipped", "timed_out")
_OLDEST_US = 60 * US_PER_S
"""The rates are over this time at most."""


@dataclass(frozen=True)
class Rates:
    """A scheduler's rates, and how late it started its handlers."""

    per_s: dict[str, float] | None
    """By counter; None until two publications were seen."""
    over_s: float | None
    """The time between the two publications; None: the lateness is since the scheduler started."""
    late_p50_s: float | None
    late_p99_s: float | None
    age_us: int
    """How old the last publication is; 0 of the history."""
    is_stale: bool
    """Its publisher is dead, stuck, or no longer the keeper."""
    source: str = "published"
    """"published" or "history"."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return {
            "per_s": self.per_s,
            "over_s": self.over_s,
            "late_p50_s": self.late_p50_s,
            "late_p99_s": self.late_p99_s,
            "age_s": self.age_us / US_PER_S,
            "stale": self.is_stale,
            "source": self.source,
        }


@dataclass(frozen=True)
class _Publication:
    """The sums over all handlers that one publication has."""

    at_us: int
    pid: int
    counters: dict[str, float]
    late: list[int]
    """Counts of the buckets of lateness; not cumulative."""


class RateMeter:
    """Remembers the publications of the last minute. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: list[_Publication] = []

    def rates(self, published: Published | None, now_us: int, keeper_pid: int | None) -> Rates | None:
        """Return the rates up to this publication; None when nothing was published."""
        if published is None:
            self._seen.clear()
            return None
        newest = _publication(published)
        self._seen = [s for s in self._seen if s.pid == newest.pid and s.at_us > newest.at_us - _OLDEST_US]
        if not self._seen or self._seen[-1].at_us < newest.at_us:
            self._seen.append(newest)
        first = self._seen[0]
        is_stale = published.is_stale(now_us, keeper_pid)
        over_s = (newest.at_us - first.at_us) / US_PER_S
        per_s, late = None, newest.late
        if over_s > 0 and not is_stale:
            per_s = {name: max(0.0, newest.counters[name] - first.counters[name]) / over_s for name in COUNTERS}
            late = [max(0, b - a) for a, b in zip(first.late, newest.late, strict=True)]
        return Rates(
            per_s,
            over_s if per_s else None,
            quantile_of(late, 0.5),
            quantile_of(late, 0.99),
            published.age_us(now_us),
            is_stale,
        )


def _publication(published: Published) -> _Publication:
    families = {family.name: family for family in published.families}
    counters = {name: _sum_of(families.get(f"{PREFIX}{name}_total")) for name in COUNTERS}
    return _Publication(
        published.at_us, published.pid, counters, _buckets_of(families.get(f"{PREFIX}lateness_seconds"))
    )


def _sum_of(family: Family | None) -> float:
    return 0.0 if family is None else sum(sample.value for sample in family.samples)


def _buckets_of(family: Family | None) -> list[int]:
    """Add up the buckets of all handlers; none where another version has other bounds."""
    bounds = [*BOUNDS_S, float("inf")]
    totals = dict.fromkeys(bounds, 0)
    for sample in () if family is None else family.samples:
        if sample.name.endswith("_bucket"):
            le = float(dict(sample.labels)["le"])
            if le not in totals:
                return [0] * len(bounds)
            totals[le] += int(sample.value)
    return [totals[b] - (totals[bounds[i - 1]] if i else 0) for i, b in enumerate(bounds)]


def rates_of_ends(ends: Iterable[Ended], now_us: int) -> Rates | None:
    """Return the rates of the ends of the last minute, the newest first; None without an end.

    Only what ends in the history is known: `enqueued` is left out.
    """
    found = [e for e in islice(ends, ENDS_MAX) if e.ended_us > now_us - _OLDEST_US]
    if not found:
        return None
    # With more ends than are read, the minute is shorter.
    over_us = _OLDEST_US if len(found) < ENDS_MAX else max(1, now_us - found[-1].ended_us)
    per_s = {
        "fired": sum(e.begun_us is not None for e in found),
        "acknowledged": sum(e.outcome == ACKED for e in found),
        "retried": sum(e.outcome == RETRIED for e in found),
        "dead": sum(e.outcome == DEAD for e in found),
    }
    late = sorted(max(0, e.begun_us - e.due_us) for e in found if e.begun_us is not None)
    return Rates(
        {name: number * US_PER_S / over_us for name, number in per_s.items()},
        over_us / US_PER_S,
        _quantile(late, 0.5),
        _quantile(late, 0.99),
        0,
        False,
        "history",
    )


def _quantile(values_us: list[int], q: float) -> float | None:
    return values_us[min(len(values_us) - 1, int(q * len(values_us)))] / US_PER_S if values_us else None
