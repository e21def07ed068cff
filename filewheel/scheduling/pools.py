"""The named pools of threads and processes: their sizes, as a program gives them, and their names as places.

Invariant: a handler's pool is one that the scheduler has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from filewheel.checks import check_whole, shown
from filewheel.errors import BadArgument

THREADS = 4
DEFAULT = "default"
"""The pool of handlers that name none."""


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
