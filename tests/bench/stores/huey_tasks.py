"""huey, as its users call it: `task.schedule(args, eta=...)`, and the steps of its consumer in this process.

SqliteHuey with `fsync=True` (synchronous FULL), as it comes (WAL; FULL by SQLite's own default on most builds), and
FileHuey (files, never synced). There are no batches: a batch is a loop. The result store is off.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from huey import FileHuey, Huey, SqliteHuey

from tests.bench.store import US, Session, Store


class _Tasks(Session):
    def __init__(self, huey: Huey, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._huey = huey
        self._seen: list[bytes] = []
        self._task = huey.task()(_handle)

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        return self._task.schedule(args=(payload,), eta=datetime.fromtimestamp(due_us / US, UTC).replace(tzinfo=None))

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        return [self.enqueue(p, d) for p, d in zip(payloads, dues_us, strict=True)]

    def cancel(self, handle: Any) -> None:
        handle.revoke()

    def claim(self, limit: int) -> Any:
        now = datetime.fromtimestamp(self.now_us() / US, UTC).replace(tzinfo=None)
        for task in self._huey.read_schedule(now):
            self._huey.enqueue(task)
        batch = []
        for task in itertools.islice(iter(self._huey.dequeue, None), limit):
            self._huey.execute(task)
            batch.append(task)
        return batch

    def ack(self, batch: Any) -> None:
        """Dequeueing has removed it: huey delivers at most once."""

    def dues_us(self, batch: Any) -> list[int]:
        return [int(task.eta.replace(tzinfo=UTC).timestamp() * US) for task in batch]

    poll_s = 1.0  # its scheduler looks once a second, and no more often can be asked


def _handle(payload: bytes) -> None:
    len(payload)


class HueyTasks(Store):
    """One huey on SQLite or files."""

    slow = True

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self.threads = setting != "file"
        self.processes = False

    def session(self, ahead_us: int = 0) -> Session:
        huey: Huey
        if self.setting == "file":
            huey = FileHuey("bench", path=str(self.directory / "huey"), results=False, utc=True)
        else:
            fsync = {"fsync": True} if self.setting == "fsync" else {}
            huey = SqliteHuey("bench", filename=str(self.directory / "huey.db"), results=False, utc=True, **fsync)
        return _Tasks(huey, ahead_us)


STORE = HueyTasks
