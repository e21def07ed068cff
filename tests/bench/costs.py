"""What small things cost, one by one: the figures that pages and docstrings quote beside the benchmarks.

    python -m tests.bench.costs [DIR]

DIR is where the wheels for the measuring are made: put it on the disk that is meant. Each line is a median.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filewheel import Cron, Wheel
from filewheel.metrics import Metrics
from filewheel.scheduling.events import Events

Act = Callable[[int], object]


def median_us(act: Act, times: int) -> float:
    """Call it so many times with a number, and return the median in microseconds."""
    took = []
    for n in range(times):
        begun = time.perf_counter_ns()
        act(n)
        took.append(time.perf_counter_ns() - begun)
    return statistics.median(took) / 1000


def by_the_thousand(act: Callable[[], object]) -> Act:
    """Return what calls it a thousand times: for what takes less than looking at the clock."""

    def many(n: int) -> None:
        for _ in range(1000):
            act()

    return many


def costs(where: str, times: int) -> Iterator[tuple[str, float]]:
    """Yield (what, microseconds)."""
    with tempfile.TemporaryDirectory(dir=where) as made, Wheel.create(Path(made) / "w") as wheel:
        yield "enqueue", median_us(lambda n: wheel.enqueue(b"x", delay=3600), times)
        yield "enqueue with a key", median_us(lambda n: wheel.enqueue(b"x", delay=3600, key=str(n)), times)
        replace = median_us(lambda n: wheel.enqueue(b"x", delay=3600, key="k", on_conflict="replace"), times)
        yield "enqueue that replaces", replace
        yield (
            "enqueue with a key, not flushed",
            median_us(lambda n: wheel.enqueue(b"x", delay=3600, key=f"n{n}", sync="never"), times),
        )
    metrics, events = Metrics(), Events()
    few = max(3, times // 20)
    yield "a count", median_us(by_the_thousand(lambda: metrics.count("fired", "mail")), few) / 1000
    yield "an observation", median_us(by_the_thousand(lambda: metrics.observe("handler", "mail", 0.01)), few) / 1000
    yield "an event nobody asked for", median_us(by_the_thousand(lambda: events.emit("fired", "mail")), few) / 1000
    berlin, utc = Cron("0 9 * * mon-fri", "Europe/Berlin"), Cron("0 9 * * mon-fri")
    yield "the next time in a zone", median_us(lambda n: berlin.after(n * 10**12), times)
    yield "the next time in UTC", median_us(lambda n: utc.after(n * 10**12), times)


def main(where: str, times: int = 1000) -> None:
    """Print a table."""
    for what, us in costs(where, times):
        print(f"{what:<34}{us:>10.2f} µs")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
