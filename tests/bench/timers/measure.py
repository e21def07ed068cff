"""The costs of a timer with more and more of them pending.

Each figure is the median of rounds that take about as long as was asked for; the garbage collector rests, as in
`timeit`. Invariant: a contestant that takes longer than its share of the time is measured with fewer operations, and
never left out without a word.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .contestants import Contestant

ROUNDS = 5
COUNT_MOST = 20_000


@dataclass(frozen=True)
class Cost:
    """What an operation costs with `pending` timers, in nanoseconds."""

    name: str
    pending: int
    start_ns: float
    stop_ns: float
    pair_ns: float
    tick_ns: float | None


def sizes_of(contestant: Contestant, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that a contestant is measured with, at least one."""
    return [n for n in sorted(set(sizes)) if n <= contestant.most] or [contestant.most]


def measure(
    contestant: Contestant,
    sizes: Sequence[int],
    seconds: float,
    at_size: Callable[[int], None] = lambda n: None,
) -> Iterator[Cost]:
    """Yield a contestant's costs for each size; each figure takes about so many seconds. `at_size` is called when so
    many are pending."""
    was = gc.isenabled()
    gc.disable()
    contestant.open()
    pending = 0
    try:
        for size in sizes_of(contestant, sizes):
            if contestant.refills and pending:
                contestant.close()
                contestant.open()
                pending = 0
            contestant.fill(size - pending)
            pending = size
            at_size(size)
            yield _cost(contestant, size, seconds)
    finally:
        contestant.close()
        if was:
            gc.enable()


def _cost(contestant: Contestant, size: int, seconds: float) -> Cost:
    starts: list[float] = []
    stops: list[float] = []

    def start_and_stop(count: int) -> int:
        started, stopped = contestant.starts(count), contestant.stops()
        starts.append(started / count)
        stops.append(stopped / count)
        return started + stopped

    _rounds(start_and_stop, seconds, most=max(10, min(COUNT_MOST, size)))
    pair = _rounds(contestant.pairs, seconds, most=COUNT_MOST)
    tick = None
    if contestant.ticks(1) is not None:
        tick = _rounds(lambda count: contestant.ticks(count) or 0, seconds / 2, most=2000)
    return Cost(
        contestant.name, size, statistics.median(starts[-ROUNDS:]), statistics.median(stops[-ROUNDS:]), pair, tick
    )


def _rounds(work: Callable[[int], int], seconds: float, most: int) -> float:
    """Return the median cost of one of `work`, in nanoseconds, over rounds that take so many seconds together."""
    share_ns = seconds * 1e9 / ROUNDS
    count = 1
    taken = work(count)
    while taken < share_ns / 2 and count < most:
        count = min(most, max(count * 2, int(count * share_ns / 2 / max(taken, 1))))
        taken = work(count)
    return statistics.median(work(count) / count for _ in range(ROUNDS))
