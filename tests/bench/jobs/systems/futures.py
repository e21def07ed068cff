"""concurrent.futures of the standard library: the same calls, by as many threads or processes; nothing is on disk.

Processes are spawned, as filewheel's are.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, wait

from tests.bench.jobs.limited import AT_ONCE, WARMING, Case
from tests.bench.jobs.system import System
from tests.bench.store import Missing


class Futures(System):
    """One executor for each case."""

    def fill(self, dues_us: Sequence[int]) -> None:
        raise Missing("it keeps no jobs")

    def start(self) -> None:
        raise Missing("it keeps no jobs")

    def limited(self, case: Case, count: int) -> float:
        case.begin()
        with _executor(case) as executor:
            if case.in_processes and case.is_warm:
                wait([executor.submit(case.function, n) for n in range(WARMING)])
            begun_s = time.perf_counter()
            wait([executor.submit(case.function, n) for n in range(count)])
            return time.perf_counter() - begun_s


def _executor(case: Case) -> Executor:
    if case.in_processes:
        return ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("spawn"))
    return ThreadPoolExecutor(AT_ONCE)


SYSTEM = Futures
