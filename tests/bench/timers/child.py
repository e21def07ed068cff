"""One contestant in a process of its own: prints its costs, its memory and how a loop lives with it, as JSON lines."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from filewheel.timers import LoopWheel
from tests.bench.timers.contestants import contestants, never
from tests.bench.timers.measure import measure

IDLE_S = 5.0
BURST_S = 1.0


def main() -> None:
    """Do what the arguments say."""
    what, name, *rest = sys.argv[1:]
    if what == "costs":
        costs(name, float(rest[0]), [int(n) for n in rest[1:]])
    else:
        print(json.dumps({"name": name, **asyncio.run(life(name, int(rest[0])))}), flush=True)


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def costs(name: str, seconds: float, sizes: list[int]) -> None:
    """Print a contestant's costs and bytes for each size."""
    (contestant,) = [c for c in contestants() if c.name == name]
    gc.collect()
    empty = memory_bytes()
    each = {}

    def at_size(size: int) -> None:
        each[size] = (memory_bytes() - empty) / size

    for cost in measure(contestant, sizes, seconds, at_size):
        print(json.dumps({**asdict(cost), "bytes": each[cost.pending]}), flush=True)


async def life(name: str, count: int) -> dict[str, Any]:
    """Return the processor time of an idle loop with so many pending, and its longest pause while they all expire."""
    loop = asyncio.get_running_loop()
    timers: Any = LoopWheel() if name == "LoopWheel" else loop
    handles = [timers.call_later(3600 + number / count, never) for number in range(count)]
    await asyncio.sleep(0.1)
    begun = time.process_time()
    await asyncio.sleep(IDLE_S)
    idle = (time.process_time() - begun) / IDLE_S
    for handle in handles:
        handle.cancel()
    del handles
    gc.collect()
    pause_s, late_s = await burst(timers, loop, count)
    return {"count": count, "idle_share": idle, "pause_s": pause_s, "late_s": late_s}


async def burst(timers: Any, loop: asyncio.AbstractEventLoop, count: int) -> tuple[float, float]:
    """Return the longest time between two runs of another task, while so many expire in one second, and how long after
    that second the last one came."""
    left = count
    last = 0.0

    def expire() -> None:
        nonlocal left, last
        left -= 1
        if not left:
            last = loop.time()

    lead_s = 20 * count / 1_000_000 + 1
    while True:  # all are started before the first is due
        begin = loop.time() + lead_s
        handles = [timers.call_at(begin + BURST_S * number / count, expire) for number in range(count)]
        if loop.time() < begin:
            break
        for handle in handles:
            handle.cancel()
        lead_s *= 2
    del handles
    await asyncio.sleep(max(0, begin - loop.time() - 0.05))
    longest, before = 0.0, loop.time()
    while left:
        await asyncio.sleep(0.001)
        now = loop.time()
        longest, before = max(longest, now - before), now
    return longest, last - begin - BURST_S


if __name__ == "__main__":
    main()
