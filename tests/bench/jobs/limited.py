"""The jobs of a handler with a limit: what is called in each case, and how many times.

`tests.bench.jobs.systems.wheel` and `.futures` do the same work with them. A process that is told to imports slowly.
Invariant: in the process that measures, importing this costs nothing.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

_PARENT, _SECONDS = "BENCH_SLOW_IMPORT_BUT_IN", "BENCH_SLOW_IMPORT_S"
SLOW_S = 1.5
SLOW_CALLS = 2
AT_ONCE = 2
_calls = itertools.count()

if os.environ.get(_PARENT, str(os.getpid())) != str(os.getpid()):
    time.sleep(float(os.environ[_SECONDS]))


def nothing(number: int) -> None:
    """Be called in a process."""


def slow_at_first(number: int) -> None:
    """Be called in a thread, and take long twice: a connection is made, a cache is filled."""
    if next(_calls) < SLOW_CALLS:
        time.sleep(SLOW_S)


@dataclass(frozen=True)
class Case:
    """A limit, and what its jobs do."""

    count: int
    function: Callable[[int], None]
    in_processes: bool
    is_warm: bool
    """Processes have been called before the clock starts; else starting them is part of the work."""

    def begin(self) -> None:
        """Have processes that are started from now on import this slowly, where that is the case."""
        if self.in_processes and not self.is_warm:
            os.environ |= {_PARENT: str(os.getpid()), _SECONDS: str(SLOW_S)}


WARM = Case(5000, nothing, in_processes=True, is_warm=True)
COLD = Case(5000, nothing, in_processes=True, is_warm=False)
SLOW_START = Case(3000, slow_at_first, in_processes=False, is_warm=True)
WARMING = 20
"""So many calls make processes warm."""
