"""LMDB as a bare engine: key = due and a serial number, big-endian; one transaction a batch; no queue around it.

Best honest configuration: a map of 16 GiB; batches with `putmulti` (sorted first: no faster in eight
turns); without sync, also no meta sync and a writable map.
A commit is one fdatasync and a write of the meta page with O_DSYNC.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb

from tests.bench.store import Session, Store

_KEY = struct.Struct(">QQ")


class _Tree(Session):
    def __init__(self, env: lmdb.Environment, serial: itertools.count[int], ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._env = env
        self._serial = serial

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        key = _KEY.pack(due_us, next(self._serial))
        with self._env.begin(write=True) as txn:
            txn.put(key, payload)
        return key

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        keys = [_KEY.pack(due, serial) for due, serial in zip(dues_us, self._serial)]  # noqa: B905
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(zip(keys, payloads, strict=True))
        return keys

    def cancel(self, handle: Any) -> None:
        with self._env.begin(write=True) as txn:
            txn.delete(handle)

    def cancel_many(self, handles: Sequence[Any]) -> None:
        with self._env.begin(write=True) as txn:
            for key in handles:
                txn.delete(key)

    def claim(self, limit: int) -> Any:
        before = _KEY.pack(self.now_us() + 1, 0)
        found = []
        with self._env.begin() as txn, txn.cursor() as cursor:
            for key, payload in cursor.iternext():
                if key >= before or len(found) == limit:
                    break
                found.append((key, payload))
        return found

    def ack(self, batch: Any) -> None:
        if batch:
            self.cancel_many([key for key, _ in batch])

    def dues_us(self, batch: Any) -> list[int]:
        return [_KEY.unpack(key)[0] for key, _ in batch]


class Lmdb(Store):
    """One environment for the threads of a process."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._env: lmdb.Environment | None = None
        self._lock = threading.Lock()
        self._serial = itertools.count(os.getpid() << 40)

    def session(self, ahead_us: int = 0) -> Session:
        with self._lock:
            if self._env is None:
                relaxed = self.setting == "never"
                self._env = lmdb.open(
                    str(self.directory / "lmdb"), map_size=16 << 30, sync=not relaxed, metasync=not relaxed,
                    writemap=relaxed, map_async=relaxed, max_readers=64,
                )  # fmt: skip
        return _Tree(self._env, self._serial, ahead_us)

    def settle(self, session: Session) -> None:
        """Everything is done on commit."""

    def stop(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


STORE = Lmdb
