"""huey, as its users call it: `task.schedule(args, eta=...)`, and the steps of its consumer in this process.

SqliteHuey (WAL) with `fsync=True`, which is also how it comes (both answer `pragma synchronous` with FULL), and with
`fsync=False` (OFF); FileHuey: files that are never synced. A task goes into the queue, from there into the schedule,
and when it is due into the queue again. There are no batches: a batch is a loop. The result store is off; a cancel is a
revoke under the task's id, which is a key beside the task. Threads share one, as in a web application.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from huey import FileHuey, Huey, SqliteHuey

from tests.bench.store import US, Session, Store


class _Tasks(Session):
    poll_s = 1.0  # its scheduler looks once a second, and no more often can be asked

    def __init__(self, huey: Huey, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._huey = huey
        self._task = huey.task()(_handle)
        self._name = os.urandom(8).hex()
        self._serial = itertools.count()

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        name = f"{self._name}-{next(self._serial)}"
        self._task.schedule(args=(payload,), eta=_moment(due_us), id=name)
        return name

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        return [self.enqueue(p, d) for p, d in zip(payloads, dues_us, strict=True)]

    def cancel(self, handle: Any) -> None:
        self._huey.revoke_by_id(handle)

    def claim(self, limit: int) -> Any:
        now = _moment(self.now_us())
        batch = []
        while len(batch) < limit:
            task = self._huey.dequeue()
            if task is None:
                due = self._huey.read_schedule(now)
                if not due:
                    break
                for task in due:
                    self._huey.enqueue(task)
                continue
            self._huey.execute(task, now)  # or puts it into the schedule
            if self._huey.ready_to_run(task, now):
                batch.append(task)
        return batch

    def ack(self, batch: Any) -> None:
        """Dequeueing has removed it: huey delivers at most once."""

    def dues_us(self, batch: Any) -> list[int]:
        return [int(task.eta.replace(tzinfo=UTC).timestamp() * US) for task in batch]


def _moment(us: int) -> datetime:
    return datetime.fromtimestamp(us / US, UTC).replace(tzinfo=None)


def _handle(payload: bytes) -> None:
    len(payload)


class HueyTasks(Store):
    """One huey on SQLite or files."""

    slow = True

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self.threads = setting != "file"
        self._huey: Huey | None = None
        self._tasks: _Tasks | None = None

    def session(self, ahead_us: int = 0) -> Session:
        if self._huey is None or self._tasks is None:
            if self.setting == "file":
                self._huey = FileHuey("bench", path=str(self.directory / "huey"), results=False, utc=True)
            else:
                self._huey = SqliteHuey(
                    "bench", filename=str(self.directory / "huey.db"), results=False, utc=True,
                    fsync=self.setting == "fsync",
                )  # fmt: skip
            self._tasks = _Tasks(self._huey, ahead_us)
        return self._tasks

    def settle(self, session: Session) -> None:
        """Do what its consumer does while others enqueue: put into the schedule what is not due yet."""
        while session.claim(1000):
            pass

    def stop(self) -> None:
        if self._huey is not None and self.setting != "file":
            self._huey.storage.close()
        self._huey = None


STORE = HueyTasks
