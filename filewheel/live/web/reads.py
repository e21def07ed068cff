"""Reads the wheel on threads beside the event loop, a few at a time.

Invariant: at most READS_MAX threads read at once, and at most WAITING_MAX requests wait for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from filewheel.errors import FilewheelError

T = TypeVar("T")

READS_MAX = 4
WAITING_MAX = 64


class Busy(FilewheelError):
    """Too many requests wait."""

    kind = "busy"


class Reads:
    """The threads of one page. Close it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READS_MAX, thread_name_prefix="filewheel-web")
        self._waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Return what the function returns. Raises Busy when too many wait, and what it raises."""
        if self._waiting >= WAITING_MAX:
            raise Busy("too many requests wait for the wheel", hint="ask again in a second")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
