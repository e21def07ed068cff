"""Pools: which of the waiting calls of a runner starts next, when its handlers have pools or priorities.

Without either, a call goes to its runner at once, and the runner's queue has them in due order. With them, calls wait
in the lanes of their handlers, and each runner begins only as many as it runs at once. So a call of a higher priority
starts at the next end of a call, whatever was claimed before it. One start of `FAIR` takes the call that was due
first, so a lower priority is slowed down and never stopped.
Each pool and priority has its own share of `in_flight`, so no backlog keeps another one from being claimed.
Invariant: at most `slots` calls of a pool run; the claims of a pool and priority never exceed their share.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Mapping
from typing import Generic, Protocol, TypeVar

from filewheel.checks import check_whole, shown
from filewheel.errors import BadArgument
from filewheel.message import Message

FAIR = 10
"""One start of so many ignores priorities."""
THREADS = 4
DEFAULT = "default"
"""The pool of handlers that name none."""


class Queue(Protocol):
    """The calls of one handler that wait, as a lane has them."""

    priority: int
    waiting: deque[Message]
    slots: int | None
    running: int

    def take_unlocked(self, now_us: int) -> list[Message]:
        """Return the messages of the next call that may start now, in a thread that has the lock of the pool."""

    def next_us(self, now_us: int) -> int | None:
        """Return when a waiting message may start; None when it waits for the end of another call."""


Q = TypeVar("Q", bound=Queue)


class Pool(Generic[Q]):
    """The calls of one runner: how many run, and which is next. Thread-safe; its lanes share its lock."""

    def __init__(self, place: str, slots: int | None) -> None:
        self.place = place
        """The name of the runner."""
        self.slots = slots
        """How many calls may run at once; None for the limits of their handlers alone."""
        self.lock = threading.Lock()
        self.running = 0
        self.lanes: list[Q] = []
        self._starts = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether another call may run."""
        return self.slots is None or self.running < self.slots

    @property
    def waits_for_slot(self) -> bool:
        """Whether a call waits that may start, unless its rate forbids it."""
        return self.has_free_slot and any(
            lane.waiting and (lane.slots is None or lane.running < lane.slots) for lane in self.lanes
        )

    def take(self, now_us: int) -> tuple[Q, list[Message]] | None:
        """Return the lane and the messages of the call that starts now; None when none may."""
        with self.lock:
            if not self.has_free_slot:
                return None
            waiting = [lane for lane in self.lanes if lane.waiting]
            is_fair = self._starts % FAIR == FAIR - 1
            waiting.sort(key=lambda lane: (0 if is_fair else -lane.priority, lane.waiting[0].id))
            for lane in waiting:
                messages = lane.take_unlocked(now_us)
                if messages:
                    self._starts += 1
                    return lane, messages
        return None

    def next_us(self, now_us: int) -> int | None:
        """Return when a call may start that waits for its rate alone."""
        times = [lane.next_us(now_us) for lane in self.lanes] if self.has_free_slot else []
        return min((us for us in times if us is not None), default=None)


def read_pools(
    threads: int | Mapping[str, int], processes: int | Mapping[str, int] | None
) -> tuple[int, int, dict[str, int]]:
    """Return the sizes of the default pools, and those of the named ones by their place. Raises BadArgument."""
    cores = len(os.sched_getaffinity(0))
    count, of_threads = _read("threads", threads, THREADS)
    process_count, of_processes = _read("processes", cores if processes is None else processes, cores)
    places = {place_of("thread", pool): size for pool, size in of_threads.items()}
    return count, process_count, places | {place_of("process", pool): size for pool, size in of_processes.items()}


def _read(name: str, given: int | Mapping[str, int], default: int) -> tuple[int, dict[str, int]]:
    if not isinstance(given, Mapping):
        return check_whole(name, given), {}
    if not given:
        raise BadArgument(f"{name} names no pool", hint=f'{name}={{"slow": 2}}')
    for pool, size in given.items():
        if not isinstance(pool, str) or not pool or not pool.isprintable():
            raise BadArgument(f"a pool of {name} has a name, not {shown(pool)}", hint=f'{name}={{"slow": 2}}')
        check_whole(f"{name}[{pool!r}]", size)
    named = {pool: size for pool, size in given.items() if pool != DEFAULT}
    return given.get(DEFAULT, default), named


def place_of(where: str, pool: str | None) -> str:
    """Return the name of the runner of a pool."""
    return where if pool is None else f"{where}:{pool}"


def check_pool(where: str, pool: str | None, places: Collection[str]) -> str | None:
    """Return the pool of a handler, None for the default one. Raises BadArgument when there is no such pool."""
    if pool is None:
        return None
    if not isinstance(pool, str) or not pool:
        raise BadArgument(f"pool is the name of a pool, not {shown(pool)}")
    if where == "loop":
        raise BadArgument("coroutine functions share an event loop, and have no pools", hint="@on(concurrency=...)")
    if pool == DEFAULT:
        return None
    kind = "threads" if where == "thread" else "processes"
    if place_of(where, pool) not in places:
        known = ", ".join(repr(place.partition(":")[2]) for place in places if place.startswith(f"{where}:"))
        raise BadArgument(
            f"no pool of {kind} is named {pool!r}: there is {DEFAULT!r}{', ' + known if known else ''}",
            hint=f"Scheduler({kind}={{{pool!r}: 2}})",
        )
    return pool
