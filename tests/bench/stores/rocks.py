"""RocksDB as a bare engine: key = due and a serial number, big-endian; one WriteBatch a batch; no queue around it.

Best honest configuration: raw keys and values, `sync` as the promise asks, four write buffers of 64 MiB, two
background jobs, no compression (payloads are random bytes), a backlog read by one iterator that starts where the last
ended, and deleted as one range. One fdatasync a commit. Of eight turns, the medians
with these settings, as it comes, and with recycled logs differ by less than turns do.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from tests.bench.store import Session, Store

_KEY = struct.Struct(">QQ")


class _Keys(Session):
    def __init__(self, db: Rdict, write: WriteOptions, serial: itertools.count[int], ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._db = db
        self._write = write
        self._serial = serial
        self._from = bytes(16)

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        key = _KEY.pack(due_us, next(self._serial))
        self._db.put(key, payload, self._write)
        return key

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        batch = WriteBatch(raw_mode=True)
        keys = [_KEY.pack(due, serial) for due, serial in zip(dues_us, self._serial)]  # noqa: B905
        for key, payload in zip(keys, payloads, strict=True):
            batch.put(key, payload)
        self._db.write(batch, self._write)
        return keys

    def cancel(self, handle: Any) -> None:
        self._db.delete(handle, self._write)

    def cancel_many(self, handles: Sequence[Any]) -> None:
        batch = WriteBatch(raw_mode=True)
        for key in handles:
            batch.delete(key)
        self._db.write(batch, self._write)

    def claim(self, limit: int) -> Any:
        before = _KEY.pack(self.now_us() + 1, 0)
        found = []
        for key, payload in self._db.items(from_key=self._from):
            if key >= before or len(found) == limit:
                break
            found.append((key, payload))
        return found

    def ack(self, batch: Any) -> None:
        if batch:
            self._from = batch[-1][0] + b"\0"
            removal = WriteBatch(raw_mode=True)
            removal.delete_range(batch[0][0], self._from)
            self._db.write(removal, self._write)

    def dues_us(self, batch: Any) -> list[int]:
        return [_KEY.unpack(key)[0] for key, _ in batch]


class Rocks(Store):
    """One database; its threads share it."""

    processes = False

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._db: Rdict | None = None
        self._lock = threading.Lock()
        self._write = WriteOptions()
        self._write.sync = setting == "sync"
        self._serial = itertools.count(1)

    def session(self, ahead_us: int = 0) -> Session:
        with self._lock:
            if self._db is None:
                options = Options(raw_mode=True)
                options.create_if_missing(True)
                options.set_write_buffer_size(64 << 20)
                options.set_max_background_jobs(2)
                options.set_max_write_buffer_number(4)
                options.set_compression_type(DBCompressionType.none())
                self._db = Rdict(str(self.directory / "rocks"), options)
        return _Keys(self._db, self._write, self._serial, ahead_us)

    def settle(self, session: Session) -> None:
        assert self._db is not None
        self._db.flush(True)

    def stop(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


STORE = Rocks
