"""The limit: the record's bytes into a file that was filled with zeros, and one flush. It cannot fire anything.

Zero-filled, because a flush into space that was written before costs one device flush, and a growing file two.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from tests.bench.store import Session, Store

_FILL = 64 << 20
_EXTRA = 120  # what filewheel adds to a payload: id, topic, frame


class _File(Session):
    def __init__(self, path: str, sync: bool) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._sync = sync
        self._at = 0
        self._filled = 0
        self._fill()

    def _fill(self) -> None:
        for _ in range(_FILL >> 20):
            os.pwrite(self._fd, bytes(1 << 20), self._filled)
            self._filled += 1 << 20
        os.fdatasync(self._fd)

    def _write(self, data: bytes) -> None:
        if self._at + len(data) > self._filled:
            self._at = 0  # over again: growing is not what is measured
        os.pwrite(self._fd, data, self._at)
        self._at += len(data)
        if self._sync:
            os.fdatasync(self._fd)

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        self._write(payload + bytes(_EXTRA))

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        self._write(b"".join([p + bytes(48) for p in payloads]))
        return []

    def close(self) -> None:
        os.close(self._fd)


class Bare(Store):
    """A file."""

    def session(self, ahead_us: int = 0) -> Session:
        return _File(str(self.directory / f"bare-{os.getpid()}-{os.urandom(4).hex()}"), self.setting == "sync")


STORE = Bare
