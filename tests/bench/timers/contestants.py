"""What is measured: each scheme and each of Python's timers, behind one small interface.

All get the same work: `fill` starts timers that stay pending; then rounds of starts, stops, pairs and ticks. The delays
are spread evenly over the hour after the next, so nothing is due while it is measured.
Invariant: the measured loops call the timer's own methods, with nothing of this module in between.
"""

from __future__ import annotations

import asyncio
import random
import sched
import threading
from collections.abc import Callable, Coroutine
from time import perf_counter_ns
from typing import Any

from filewheel.timers import (
    BinaryHeap,
    Growing,
    HashedOrdered,
    HashedUnordered,
    Hierarchical,
    LoopWheel,
    OrderedList,
    OrderedTree,
    Scheme,
    SimpleWheel,
    UnorderedList,
)

TICK_S = 0.01
NEAREST, FURTHEST = 360_000, 720_000
"""Delays in ticks of 10 ms: one hour to two."""
BATCH = 1000
"""An event loop runs once after so many."""


def never() -> None:
    """The callback; it is not called while anything is measured."""


class Contestant:
    """One kind of timer."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        """It is measured with so many pending timers at most; more would take minutes."""
        self.refills = False
        """Whether it is filled from the start for each size, because a second filling would take minutes."""
        self.random = random.Random(1)
        self.handles: list[Any] = []

    def delays(self, count: int) -> list[int]:
        """Return delays in ticks."""
        return [self.random.randrange(NEAREST, FURTHEST) for _ in range(count)]

    def open(self) -> None:
        """Begin."""

    def fill(self, count: int) -> None:
        """Start so many timers that stay."""
        raise NotImplementedError

    def starts(self, count: int) -> int:
        """Start so many timers, and return the nanoseconds."""
        raise NotImplementedError

    def stops(self) -> int:
        """Stop the timers of `starts`, and return the nanoseconds."""
        raise NotImplementedError

    def pairs(self, count: int) -> int:
        """Start and stop so many timers in turn, and return the nanoseconds."""
        raise NotImplementedError

    def ticks(self, count: int) -> int | None:
        """Let so many ticks pass, and return the nanoseconds; None for a timer that does not tick."""
        return None

    def close(self) -> None:
        """Stop everything."""


class OfScheme(Contestant):
    """A scheme of filewheel.timers; its unit is the tick."""

    def __init__(self, name: str, most: int, make: Callable[[], Scheme[Any]]) -> None:
        super().__init__(name, most)
        self._make = make

    def open(self) -> None:
        self.scheme = self._make()

    def fill(self, count: int) -> None:
        start, now = self.scheme.start, self.scheme.now
        # In order, so that even an ordered list is filled in linear time.
        for delay in sorted(self.delays(count)):
            start(now + delay, never)

    def starts(self, count: int) -> int:
        start, now = self.scheme.start, self.scheme.now
        dues = [now + delay for delay in self.delays(count)]
        begun = perf_counter_ns()
        self.handles = [start(due, never) for due in dues]
        return perf_counter_ns() - begun

    def stops(self) -> int:
        stop = self.scheme.stop
        begun = perf_counter_ns()
        for handle in self.handles:
            stop(handle)
        taken = perf_counter_ns() - begun
        self.handles = []
        return taken

    def pairs(self, count: int) -> int:
        start, stop, now = self.scheme.start, self.scheme.stop, self.scheme.now
        dues = [now + delay for delay in self.delays(count)]
        begun = perf_counter_ns()
        for due in dues:
            stop(start(due, never))
        return perf_counter_ns() - begun

    def ticks(self, count: int) -> int | None:
        advance, now = self.scheme.advance, self.scheme.now
        begun = perf_counter_ns()
        for tick in range(now + 1, now + 1 + count):
            advance(tick, never_expired)
        return perf_counter_ns() - begun


def never_expired(entry: object) -> None:
    """The expiry of a timer that must not be due yet."""
    raise AssertionError(f"{entry!r} is due while it is measured")


class OfLoop(Contestant):
    """`call_later` of an event loop, or of a wheel in it."""

    def __init__(self, name: str, most: int, new_loop: Callable[[], Any], *, has_wheel: bool = False) -> None:
        super().__init__(name, most)
        self._new_loop = new_loop
        self._has_wheel = has_wheel

    def open(self) -> None:
        self._runner = asyncio.Runner(loop_factory=self._new_loop)
        self.call_later: Callable[..., Any] = self._run(self._bind())

    def _run(self, body: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(body)

    async def _bind(self) -> Any:
        loop = asyncio.get_running_loop()
        return LoopWheel(loop, tick_s=TICK_S).call_later if self._has_wheel else loop.call_later

    def seconds(self, count: int) -> list[float]:
        """Return delays in seconds."""
        return [delay * TICK_S for delay in self.delays(count)]

    def fill(self, count: int) -> None:
        async def body() -> None:
            start = self.call_later
            for delay in self.seconds(count):
                start(delay, never)
            await asyncio.sleep(0)

        self._run(body())

    def starts(self, count: int) -> int:
        async def body() -> int:
            start = self.call_later
            delays = self.seconds(count)
            begun = perf_counter_ns()
            self.handles = [start(delay, never) for delay in delays]
            return perf_counter_ns() - begun

        return int(self._run(body()))

    def stops(self) -> int:
        async def body() -> int:
            begun = perf_counter_ns()
            for handle in self.handles:
                handle.cancel()
            self.handles = []
            await asyncio.sleep(0)  # here uvloop frees what was cancelled
            return perf_counter_ns() - begun

        return int(self._run(body()))

    def pairs(self, count: int) -> int:
        async def body() -> int:
            start = self.call_later
            delays = self.seconds(count)
            begun = perf_counter_ns()
            for at in range(0, count, BATCH):
                for delay in delays[at : at + BATCH]:
                    start(delay, never).cancel()
                await asyncio.sleep(0)
            return perf_counter_ns() - begun

        return int(self._run(body()))

    def close(self) -> None:
        self._runner.close()


class OfSched(Contestant):
    """Python's `sched`."""

    def open(self) -> None:
        self._sched = sched.scheduler(timefunc=lambda: 0.0)

    def fill(self, count: int) -> None:
        for delay in self.delays(count):
            self._sched.enter(delay, 0, never)

    def starts(self, count: int) -> int:
        start, delays = self._sched.enter, self.delays(count)
        begun = perf_counter_ns()
        self.handles = [start(delay, 0, never) for delay in delays]
        return perf_counter_ns() - begun

    def stops(self) -> int:
        stop = self._sched.cancel
        begun = perf_counter_ns()
        for handle in self.handles:
            stop(handle)
        taken = perf_counter_ns() - begun
        self.handles = []
        return taken

    def pairs(self, count: int) -> int:
        start, stop, delays = self._sched.enter, self._sched.cancel, self.delays(count)
        begun = perf_counter_ns()
        for delay in delays:
            stop(start(delay, 0, never))
        return perf_counter_ns() - begun


class OfThreads(Contestant):
    """`threading.Timer`: a thread each. A stop counts until the thread has ended."""

    def open(self) -> None:
        self._kept: list[threading.Timer] = []

    def _start(self, delay: int) -> threading.Timer:
        timer = threading.Timer(delay * TICK_S, never)
        timer.daemon = True
        timer.start()
        return timer

    def fill(self, count: int) -> None:
        self._kept += [self._start(delay) for delay in self.delays(count)]

    def starts(self, count: int) -> int:
        delays = self.delays(count)
        begun = perf_counter_ns()
        self.handles = [self._start(delay) for delay in delays]
        return perf_counter_ns() - begun

    def stops(self) -> int:
        begun = perf_counter_ns()
        for handle in self.handles:
            handle.cancel()
            handle.join()
        taken = perf_counter_ns() - begun
        self.handles = []
        return taken

    def pairs(self, count: int) -> int:
        delays = self.delays(count)
        begun = perf_counter_ns()
        for delay in delays:
            timer = self._start(delay)
            timer.cancel()
            timer.join()
        return perf_counter_ns() - begun

    def close(self) -> None:
        for timer in self._kept:
            timer.cancel()
        for timer in self._kept:
            timer.join()


def contestants() -> list[Contestant]:
    """Return all that can run here, the schemes first; uvloop only where it is installed."""
    million = 1_000_000
    found: list[Contestant] = [
        OfScheme("unordered list", million, UnorderedList),
        OfScheme("ordered list", 100_000, OrderedList),
        OfScheme("binary heap", million, BinaryHeap),
        OfScheme("ordered tree", million, OrderedTree),
        OfScheme("simple wheel", million, lambda: SimpleWheel(FURTHEST // 10 + 2, tick=10)),
        OfScheme("hashed, ordered", million, lambda: HashedOrdered(4096)),
        OfScheme("hashed, unordered", million, lambda: HashedUnordered(4096)),
        OfScheme("hierarchical", million, Hierarchical),
        OfScheme("growing", million, lambda: Growing(64)),
        OfThreads("threading.Timer", 100),
        OfSched("sched", 100_000),
        OfLoop("asyncio", 10 * million, asyncio.new_event_loop),
    ]
    found[1].refills = True
    try:
        import uvloop
    except ImportError:
        pass
    else:
        found.append(OfLoop("uvloop", 10 * million, uvloop.new_event_loop))
    found.append(OfLoop("LoopWheel", 10 * million, asyncio.new_event_loop, has_wheel=True))
    return found
