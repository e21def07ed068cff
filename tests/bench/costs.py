"""What small things cost, one by one: the figures that pages and docstrings quote beside the benchmarks.

    python -m tests.bench.costs [DIR [OTHER]]

DIR is where the wheels for the measuring are made: put it on the disk that is meant. Each line is a median. With OTHER,
on another file system, it is measured what an enqueue costs with a mirrored copy there, beside one copy in either
place; they take turns, so that what else the disks do falls on each alike.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from filewheel import Cron, Wheel
from filewheel.disk.directory import open_directory
from filewheel.metrics.metrics import Metrics
from filewheel.roster.roster import Member, Roster, change_roster
from filewheel.scheduling.events import Events

Act = Callable[[int], object]
ROUNDS = 25


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


def mirrored(where: str, other: str, times: int) -> Iterator[tuple[str, float]]:
    """Yield (what, microseconds) of an enqueue with a mirrored copy, and of one without in either place."""
    with contextlib.ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=where)))
        there = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=other)))
        wheels = {
            "one copy": stack.enter_context(Wheel.create(here / "one")),
            "one copy in the other place": stack.enter_context(Wheel.create(there / "one")),
            "a mirrored copy": stack.enter_context(make_pair(here / "two", there / "two")),
        }
        for threads in (1, 8):
            found: dict[str, list[float]] = {what: [] for what in wheels}
            for _ in range(ROUNDS):
                for what, wheel in wheels.items():
                    found[what] += in_threads(wheel, threads, max(1, times // ROUNDS))
            for what, some in found.items():
                yield f"{what}, {threads} thread{'s' * (threads > 1)}", statistics.median(some)


def make_pair(path: Path, mirror: Path) -> Wheel:
    """Make a wheel with a mirrored copy, and open it."""
    for each in (path, mirror):
        Wheel.create(each).close()
    ours, theirs = (open_directory(each, write=True) for each in (path, mirror))
    member = Member(theirs.path, theirs.settings.id, "mirror", "current")
    roster = Roster("costs", 1, "primary", ours.path, ours.settings.id, (member,))
    change_roster(ours, lambda _: roster)
    change_roster(theirs, lambda _: replace(roster, role="backup"))
    wheel = Wheel(path)
    wheel._writer().follow(roster)
    if wheel.enqueue(b"x", delay=3600).copies != 2:
        raise RuntimeError("the mirror was not written to")
    return wheel


def in_threads(wheel: Wheel, threads: int, times: int) -> list[float]:
    """Enqueue so many times in each of these threads; return what each enqueue took, in microseconds."""
    took: list[float] = []

    def enqueue() -> None:
        mine = []
        for _ in range(times):
            begun = time.perf_counter_ns()
            wheel.enqueue(bytes(100), delay=3600)
            mine.append((time.perf_counter_ns() - begun) / 1000)
        took.extend(mine)

    some = [threading.Thread(target=enqueue) for _ in range(threads)]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()
    return took


def main(where: str, other: str | None, times: int = 1000) -> None:
    """Print a table."""
    found = dict(costs(where, times) if other is None else mirrored(where, other, times))
    for what, us in found.items():
        print(f"{what:<38}{us:>10.2f} µs")
    if other is not None:
        for n in ("1 thread", "8 threads"):
            ratio = found[f"a mirrored copy, {n}"] / found[f"one copy, {n}"]
            print(f"{f'two copies to one, {n}':<38}{ratio:>10.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".", sys.argv[2] if len(sys.argv) > 2 else None)
