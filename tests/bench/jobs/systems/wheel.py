"""filewheel's scheduler as it comes: 4 threads, or a handler for batches, a coroutine function, or 2 processes.

An enqueue is on disk when it returns (`sync="always"`). A job's end is on disk at most 20 ms after it was written down:
a power cut in between has it called again. Filled with `Wheel.enqueue_many`, which writes what `handler.at` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from filewheel import Job, Scheduler
from filewheel.headers import ARGS
from filewheel.scheduling.call import MSGPACK, pack_call
from tests.bench.jobs.job import call
from tests.bench.jobs.system import System

_NAME = "call"
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
                [pack_call([due], {}) for due in some], at=[due / 1e6 for due in some],
                topic=_NAME, headers={ARGS: MSGPACK},
            )  # fmt: skip
        self.scheduler.wheel.close()

    def start(self) -> None:
        self.scheduler.start()

    def called(self) -> int:
        if self.setting != "processes":
            return super().called()
        # Calls are noted in the other processes: here it is counted what was acknowledged.
        return self.scheduler.metrics.counts("acknowledged").get(_NAME, 0)

    def stop(self) -> None:
        self.scheduler.stop(timeout_s=1)


SYSTEM = Wheels
