"""persist-queue: a SQLite queue with acknowledgements (WAL, FULL). It knows no due times: first in, first out.

It stands here for those who would write the due time into the payload and wait for it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import persistqueue

from tests.bench.store import Session, Store


class _Queue(Session):
    def __init__(self, path: Path, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._queue = persistqueue.SQLiteAckQueue(str(path), multithreading=True)

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        return self._queue.put((due_us, payload))

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        return [self.enqueue(p, d) for p, d in zip(payloads, dues_us, strict=True)]

    def claim(self, limit: int) -> Any:
        batch = []
        while len(batch) < limit:
            try:
                batch.append(self._queue.get(block=False))
            except persistqueue.Empty:
                break
        return batch

    def ack(self, batch: Any) -> None:
        for item in batch:
            self._queue.ack(item)

    def close(self) -> None:
        self._queue.close()


class PersistQueue(Store):
    """One queue."""

    slow = True
    threads = False
    processes = False
    shifts = False

    def session(self, ahead_us: int = 0) -> Session:
        return _Queue(self.directory / "queue", ahead_us)


STORE = PersistQueue
