"""APScheduler 3, its background scheduler: SQLAlchemyJobStore on SQLite (WAL, FULL), 4 worker threads, date triggers.

No misfire limit: a late job is called, not dropped. A job is handed to a worker and then removed, in a commit of its
own, so one that was being called, or waited for a worker, is lost. Filled with its own rows, many in a transaction:
`add_job` makes one each.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.job import Job
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from sqlalchemy import create_engine, event

from tests.bench.jobs.job import call
from tests.bench.jobs.system import System

_CHUNK = 5000


class Background(System):
    """One scheduler in this process."""

    def _scheduler(self, synchronous: str) -> tuple[BackgroundScheduler, SQLAlchemyJobStore]:
        engine = create_engine(f"sqlite:///{self.directory / 'jobs.db'}")

        @event.listens_for(engine, "connect")
        def configure(connection: Any, _: Any) -> None:
            connection.execute("pragma journal_mode=wal")
            connection.execute(f"pragma synchronous={synchronous}")

        store = SQLAlchemyJobStore(engine=engine)
        executors = {"default": ThreadPoolExecutor(4)}
        return BackgroundScheduler(jobstores={"default": store}, executors=executors, timezone=UTC), store

    def fill(self, dues_us: Sequence[int]) -> None:
        scheduler, store = self._scheduler("off")
        scheduler.start(paused=True)  # makes the table
        for start in range(0, len(dues_us), _CHUNK):
            rows = [_row(scheduler, due) for due in dues_us[start : start + _CHUNK]]
            with store.engine.begin() as connection:
                connection.execute(store.jobs_t.insert(), rows)
        scheduler.shutdown(wait=False)

    def start(self) -> None:
        self._scheduler(self.setting)[0].start()
        # There is no `stop`: its shutdown waits until the backlog that it has read is handed out.


def _row(scheduler: BackgroundScheduler, due_us: int) -> dict[str, Any]:
    """Return the row that `add_job(call, "date", ...)` inserts."""
    moment = datetime.fromtimestamp(due_us / 1e6, UTC)
    job = Job(
        scheduler, id=uuid.uuid4().hex, func=call, args=(due_us,), kwargs={}, name="call", executor="default",
        trigger=DateTrigger(moment, UTC), misfire_grace_time=None, coalesce=True, max_instances=1,
        next_run_time=moment,
    )  # fmt: skip
    state = pickle.dumps(job.__getstate__(), pickle.HIGHEST_PROTOCOL)
    return {"id": job.id, "next_run_time": due_us / 1e6, "job_state": state}


SYSTEM = Background
