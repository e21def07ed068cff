"""What a wheel itself takes for what a program asks of it all the time: enqueues with keys, and looks at what waits.

Each rate is measured plain and with keys in turn, in one process, so that their share says what a key costs.
Invariant: a look comes after a message that was enqueued just before, so it is not answered from memory alone.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filewheel import AsyncScheduler, AsyncWheel, Keeper, Wheel
from filewheel.format.settings import Sync
from tests.bench.cell import Metric

TASKS = 200
THREADS = 16
CALL = 1000
PAYLOAD = b"x" * 100
LOOKS = 101
_FAR_S = 86_400.0
_FILL = 10_000
_TURNS = 3


def keyed(directory: Path, seconds: float) -> list[Metric]:
    """Enqueue with keys: how many a second, and what share that is of the rate without."""
    found: list[Metric] = []
    ways: list[tuple[str, Callable[[Path, float, bool], float]]] = [
        (f"{TASKS} tasks", by_tasks),
        (f"{TASKS} tasks, AsyncScheduler", by_calls_of_handlers),
        (f"{THREADS} threads", by_threads),
        (f"{CALL:,} a call", by_calls),
        ("one by one", lambda path, s, has_key: one_by_one(path, s, has_key, "always")),
        ('one by one, sync="never"', lambda path, s, has_key: one_by_one(path, s, has_key, "never")),
    ]
    for name, way in ways:
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * _TURNS):
            rates[bool(turn % 2)].append(way(directory / f"{name}-{turn}.wheel", seconds / _TURNS, bool(turn % 2)))
        plain, with_keys = statistics.median(rates[False]), statistics.median(rates[True])
        found += [Metric(name, with_keys, "/s"), Metric(f"{name}: of plain", with_keys / plain * 100, "%")]
    return found


def by_tasks(path: Path, seconds: float, has_key: bool) -> float:
    """Enqueue from tasks of one event loop."""

    async def body() -> float:
        async with AsyncWheel.create(path) as wheel:
            return await _in_tasks(lambda key: wheel.enqueue(PAYLOAD, delay=_FAR_S, key=key), seconds, has_key)

    return asyncio.run(body())


def by_calls_of_handlers(path: Path, seconds: float, has_key: bool) -> float:
    """Enqueue calls of a handler from tasks of the loop that has the scheduler."""

    async def body() -> float:
        async with AsyncScheduler(path) as scheduler:
            scheduler.on("call")(_handler)
            return await _in_tasks(lambda key: scheduler.enqueue("call", (1,), delay=_FAR_S, key=key), seconds, has_key)

    return asyncio.run(body())


async def _handler(number: int) -> None:
    """Never called: it is due tomorrow."""


async def _in_tasks(enqueue: Callable[[str | None], Awaitable[object]], seconds: float, has_key: bool) -> float:
    begun_s = time.perf_counter()

    async def task(number: int) -> int:
        count = 0
        while time.perf_counter() - begun_s < seconds:
            await enqueue(f"{number}-{count}" if has_key else None)
            count += 1
        return count

    counts = await asyncio.gather(*map(task, range(TASKS)))
    return sum(counts) / (time.perf_counter() - begun_s)


def by_threads(path: Path, seconds: float, has_key: bool) -> float:
    """Enqueue from threads that share a wheel."""
    with Wheel.create(path) as wheel, ThreadPoolExecutor(THREADS) as pool:
        begun_s = time.perf_counter()

        def thread(number: int) -> int:
            count = 0
            while time.perf_counter() - begun_s < seconds:
                wheel.enqueue(PAYLOAD, delay=_FAR_S, key=f"{number}-{count}" if has_key else None)
                count += 1
            return count

        counts = list(pool.map(thread, range(THREADS)))
        return sum(counts) / (time.perf_counter() - begun_s)


def by_calls(path: Path, seconds: float, has_key: bool) -> float:
    """Enqueue many with each call."""
    with Wheel.create(path) as wheel:
        begun_s, count = time.perf_counter(), 0
        while time.perf_counter() - begun_s < seconds:
            keys: Sequence[str] | None = [f"{count + n}" for n in range(CALL)] if has_key else None
            wheel.enqueue_many([PAYLOAD] * CALL, delay=_FAR_S, keys=keys)
            count += CALL
        return count / (time.perf_counter() - begun_s)


def one_by_one(path: Path, seconds: float, has_key: bool, sync: Sync) -> float:
    """Enqueue one after the other."""
    with Wheel.create(path, sync=sync) as wheel:
        begun_s, count = time.perf_counter(), 0
        while time.perf_counter() - begun_s < seconds:
            wheel.enqueue(PAYLOAD, delay=_FAR_S, key=str(count) if has_key else None)
            count += 1
        return count / (time.perf_counter() - begun_s)


def looks(directory: Path, count: int) -> list[Metric]:
    """Ask a wheel of which nothing is dealt: for how long each look takes, after a message was enqueued."""
    path = directory / "looks.wheel"
    # A keeper that does nothing keeps its producers from dealing what waits.
    with Wheel.create(path) as wheel, Keeper(path, background=False), Wheel(path) as reader:
        for start in range(0, count, _FILL):
            wheel.enqueue_many([b"x"] * min(_FILL, count - start), delay=_FAR_S)
        found = [
            Metric(name, statistics.median(_timed(wheel, look)), "ms", up=False)
            for name, look in (("next_due", reader.next_due), ("peek", reader.peek), ("stats", reader.stats))
        ]
        stats = reader.stats()
        assert stats.journal_bytes > 0, "it was dealt"
        assert stats.file_bytes == 0, "it was dealt"
        return [*found, Metric("undealt", float(stats.pending), "jobs")]


def _timed(wheel: Wheel, look: Callable[[], object]) -> list[float]:
    """Return the milliseconds of looks; the first ones learn what the others remember."""
    took = []
    for n in range(LOOKS + 2):
        wheel.enqueue(b"y", delay=_FAR_S)
        begun_s = time.perf_counter()
        look()
        if n >= 2:
            took.append((time.perf_counter() - begun_s) * 1000)
    return took
