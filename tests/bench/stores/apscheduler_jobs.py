"""APScheduler 3 with a SQLAlchemy job store on SQLite: `add_job(..., "date", run_date=...)`.

Best honest configuration: the scheduler runs (paused while only enqueueing is measured, so that it does not also look
for due jobs), WAL, synchronous FULL, no misfire limit, one worker thread. There are no batches: a batch is a loop.
One fdatasync an added job. A backlog is fired by the scheduler itself; what is claimed is what its jobs handed over.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import create_engine, event

from tests.bench.store import US, Missing, Session, Store

_FIRED: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()


def handle(payload: bytes, due_us: int) -> None:
    """Be the job."""
    _FIRED.put((due_us, payload))


class _Jobs(Session):
    def __init__(self, scheduler: BackgroundScheduler, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._scheduler = scheduler

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        job = self._scheduler.add_job(
            handle, "date", run_date=datetime.fromtimestamp(due_us / US, UTC), args=[payload, due_us],
            misfire_grace_time=None,
        )  # fmt: skip
        return job.id

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        return [self.enqueue(p, d) for p, d in zip(payloads, dues_us, strict=True)]

    def cancel(self, handle: Any) -> None:
        self._scheduler.remove_job(handle)

    def claim(self, limit: int) -> Any:
        if self._scheduler.state == 2:  # paused
            self._scheduler.resume()
        batch = []
        while len(batch) < limit:
            try:
                batch.append(_FIRED.get_nowait())
            except queue.Empty:
                break
        if not batch:
            time.sleep(0.001)
        return batch

    def ack(self, batch: Any) -> None:
        """The scheduler removes a job before it runs: at most once."""

    def dues_us(self, batch: Any) -> list[int]:
        return [due for due, _ in batch]

    def wait(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.001))


class Jobs(Store):
    """One scheduler in this process."""

    slow = True
    processes = False
    shifts = False
    _scheduler: BackgroundScheduler | None = None

    def session(self, ahead_us: int = 0) -> Session:
        if ahead_us:
            raise Missing("its clock cannot be set ahead")
        if self._scheduler is None:
            engine = create_engine(f"sqlite:///{self.directory / 'jobs.db'}")

            @event.listens_for(engine, "connect")
            def configure(connection: Any, _: Any) -> None:
                connection.execute("pragma journal_mode=wal")
                connection.execute("pragma synchronous=FULL")

            self._scheduler = BackgroundScheduler(
                jobstores={"default": SQLAlchemyJobStore(engine=engine)},
                executors={"default": ThreadPoolExecutor(1)},
                timezone=UTC,
            )
            self._scheduler.start(paused=True)
        return _Jobs(self._scheduler, ahead_us)

    def stop(self) -> None:
        if self._scheduler is not None:
            self._scheduler.shutdown(wait=False)
            self._scheduler = None


STORE = Jobs
