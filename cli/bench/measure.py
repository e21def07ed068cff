"""One run: spend a budget of seconds on rounds, a backlog and punctuality, and return the figures.

Invariant: every wheel is in the given directory, and is removed before the next round, so that the run needs the space
of one round.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from filewheel import Wheel

from .figures import Figures, percentile
from .firing import backlog, lateness
from .rounds import KINDS, Rounds

ROOM_BYTES = 500_000_000
"""More than one round needs on the fastest disk."""

_ROUND_S = 4.0
_SLICES_SHARE = 0.7  # of the budget; the rest is for making wheels and later steps
_LATENESS_SHARE = 0.15
_BACKLOG_MAX = 40_000


@dataclass(frozen=True)
class Plan:
    """How a budget is spent."""

    rounds: int
    slice_s: float
    backlog: int
    lateness_s: float


def plan(budget_s: float) -> Plan:
    """Divide a budget: at least three rounds, for a useful median."""
    rounds = max(3, round(budget_s / _ROUND_S))
    return Plan(
        rounds=rounds,
        slice_s=budget_s * _SLICES_SHARE / rounds / KINDS,
        backlog=max(1000, min(_BACKLOG_MAX, int(budget_s * 2000) // 1000 * 1000)),
        lateness_s=budget_s * _LATENESS_SHARE,
    )


def measure(directory: Path, budget_s: float, tick: Callable[[], None], *, force: bool) -> Figures:
    """Measure everything in a temporary directory; `tick` is called a few times a second."""
    parts = plan(budget_s)
    rounds = Rounds(directory, force=force)
    fire: list[float] = []
    for number in range(parts.rounds):
        path = directory / f"round-{number}.wheel"
        Wheel.create(path, force=force).close()
        rounds.run(path, number, parts.slice_s, tick)
        shutil.rmtree(path)
        path = directory / f"backlog-{number}.wheel"
        fire.append(backlog(path, parts.backlog, force=force))
        shutil.rmtree(path)
        tick()
    late_ms = lateness(directory / "late.wheel", parts.lateness_s, tick, force=force)
    return Figures(
        flush_us=median(rounds.flush_us),
        flush_p99_us=percentile(rounds.flush_us, 0.99),
        bare_per_s=rounds.rate("bare"),
        one_per_s=rounds.rate("one"),
        share=rounds.share("one", "bare"),
        threads_per_s=rounds.rate("threads"),
        batch_100_per_s=rounds.rate("batch_100"),
        batch_1000_per_s=rounds.rate("batch_1000"),
        interval_per_s=rounds.rate("interval"),
        never_per_s=rounds.rate("never"),
        fire_per_s=median(fire),
        late_p50_ms=median(late_ms),
        late_p99_ms=percentile(late_ms, 0.99),
        early=sum(late < 0 for late in late_ms),
    )
