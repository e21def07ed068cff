"""persist-queue: a SQLite queue with acknowledgements (WAL, FULL). It knows no due times: first in, first out.

Its threads share one queue; one fdatasync a put. It stands here for those who would write the due time into the payload
and wait for it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import persistqueue

from tests.bench.store import Session, Store


class _Queue(Session):
    def __init__(self, queue: persistqueue.SQLiteAckQueue, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._queue = queue

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
    processes = False
    shifts = False
    _queue: persistqueue.SQLiteAckQueue | None = None

    def session(self, ahead_us: int = 0) -> Session:
        if self._queue is None:
            self._queue = persistqueue.SQLiteAckQueue(str(self.directory / "queue"), multithreading=True)
        return _Queue(self._queue, ahead_us)

    def stop(self) -> None:
        if self._queue is not None:
            self._queue.close()
            self._queue = None


STORE = PersistQueue
