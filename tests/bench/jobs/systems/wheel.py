"""filewheel's scheduler as it comes: 4 threads, or a handler for batches, a coroutine function, or 2 processes.

An enqueue is on disk when it returns (`sync="always"`). A job's end is on disk at most 20 ms after it was written down:
a power cut in between has it called again. Filled with `Wheel.enqueue_many`, which writes what `handler.at` writes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from filewheel import Job, Scheduler
from filewheel.message import ARGS
from filewheel.scheduling.call import pack_call
from filewheel.values import MSGPACK
from tests.bench.jobs.job import call
from tests.bench.jobs.limited import AT_ONCE, WARMING, Case
from tests.bench.jobs.system import System

_NAME = "call"
_LIMITED = "limited"
_LOOK_S = 0.002
_BATCH = 10_000


async def call_async(due_us: int) -> None:
    """Be called in the event loop."""
    call(due_us)


def call_batch(jobs: list[Job]) -> None:
    """Be called with many."""
    for job in jobs:
        call(*job.args)


class Wheels(System):
    """One scheduler in this process."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self.scheduler = Scheduler(directory / "jobs.wheel", threads=4, processes=2)
        if setting == "batch":
            self.scheduler.on(_NAME, batch=100)(call_batch)
        elif setting == "loop":
            self.scheduler.on(_NAME)(call_async)
        else:
            self.scheduler.on(_NAME, where="process" if setting == "processes" else "thread")(call)

    def fill(self, dues_us: Sequence[int]) -> None:
        for start in range(0, len(dues_us), _BATCH):
            some = dues_us[start : start + _BATCH]
            self.scheduler.wheel.enqueue_many(
                [pack_call([due], {})[0] for due in some], at=[due / 1e6 for due in some],
                topic=_NAME, headers={ARGS: MSGPACK},
            )  # fmt: skip
        self.scheduler.wheel.close()

    def start(self) -> None:
        self.scheduler.start()

    def called(self) -> int:
        if self.setting != "processes":
            return super().called()
        # Calls are noted in the other processes: here it is counted what was acknowledged.
        return self._acknowledged(_NAME)

    def _acknowledged(self, name: str) -> int:
        return self.scheduler.metrics.counts("acknowledged").get(name, 0)

    def limited(self, case: Case, count: int) -> float:
        if case.in_processes:
            self.scheduler.on(_LIMITED, where="process")(case.function)
        else:
            self.scheduler.on(_LIMITED, concurrency=AT_ONCE)(case.function)
        case.begin()
        before = WARMING if case.in_processes and case.is_warm else 0
        if case.is_warm:
            self.scheduler.start()
            self._enqueue_limited(before)
            self._wait(before)
        begun_s = time.perf_counter()
        self._enqueue_limited(count)
        if not case.is_warm:
            self.scheduler.start()
        self._wait(before + count)
        return time.perf_counter() - begun_s

    def _enqueue_limited(self, count: int) -> None:
        payloads = [pack_call([n], {})[0] for n in range(count)]
        self.scheduler.wheel.enqueue_many(payloads, topic=_LIMITED, headers={ARGS: MSGPACK})

    def _wait(self, count: int) -> None:
        while self._acknowledged(_LIMITED) < count:
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        self.scheduler.stop(timeout_s=1)


SYSTEM = Wheels
