"""filewheel, as it comes: default lap and segments; threads share a Wheel, processes each have their own.

While others enqueue, a keeper in a process of its own deals, as it would in use. Settled means: dealt into the laps.
An acknowledgement is flushed as the promise asks, like those of the peers; by default filewheel flushes it 20 ms later.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filewheel import Batch, Keeper, Message, Wheel
from filewheel.format.settings import Sync
from tests.bench.store import Session, Store

KEEPER = """
import sys, threading
from filewheel import Keeper
with Keeper(sys.argv[1]) as keeper:
    done = threading.Event()
    def stop():
        sys.stdin.readline()
        done.set()
        keeper.wake()
    threading.Thread(target=stop, daemon=True).start()
    print("up", flush=True)
    while not done.is_set():
        keeper.ack(keeper.claim(1000))
        keeper.wait(0.5)
"""


class Ahead:
    """The system's clock, and some seconds."""

    def __init__(self, ahead_us: int) -> None:
        self._ahead_us = ahead_us

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self._ahead_us

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1000


class _Wheel(Session):
    def __init__(self, path: Path, wheel: Wheel, sync: Sync, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._sync = sync
        self._path = path
        self._wheel = wheel
        self._keeper: Keeper | None = None
        self._messages: list[Message] = []

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        return self._wheel.enqueue(payload, at=due_us / 1e6)

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        return self._wheel.enqueue_many(payloads, at=[due / 1e6 for due in dues_us])

    def cancel(self, handle: Any) -> None:
        self._wheel.cancel(handle)

    def cancel_many(self, handles: Sequence[Any]) -> None:
        self._wheel.cancel_many(handles)

    @property
    def keeper(self) -> Keeper:
        """The keeper in this process, opened when it is first needed."""
        if self._keeper is None:
            self._keeper = Keeper(self._path, clock=Ahead(self.ahead_us))
        return self._keeper

    def claim(self, limit: int) -> Batch:
        batch = self.keeper.claim(limit)
        self._messages = list(batch)
        return batch

    def ack(self, batch: Any) -> None:
        if len(batch):
            self.keeper.ack(batch, sync=self._sync)

    def dues_us(self, batch: Any) -> list[int]:
        return [message.due_us for message in self._messages]

    def payloads(self, batch: Any) -> list[bytes]:
        return [message.payload for message in batch]

    def wait(self, timeout_s: float) -> None:
        self.keeper.wait(timeout_s)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


class FileWheel(Store):
    """A wheel, and unless the caller consumes, a keeper that deals."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._path = directory / "wheel"
        self._sync: Sync = setting if setting in ("always", "never") else float(setting)  # type: ignore[assignment]
        self._dealer: subprocess.Popen[str] | None = None
        self._shared: Wheel | None = None
        self._lock = threading.Lock()

    def start(self, *, consume: bool = False) -> None:
        Wheel.create(self._path, exist_ok=True).close()
        if not consume:
            self._dealer = subprocess.Popen(
                [sys.executable, "-c", KEEPER, str(self._path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert self._dealer.stdout is not None
            self._dealer.stdout.readline()

    def session(self, ahead_us: int = 0) -> Session:
        with self._lock:
            if self._shared is None:
                self._shared = Wheel(self._path, sync=self._sync)
            return _Wheel(self._path, self._shared, self._sync, ahead_us)

    def settle(self, session: Session) -> None:
        """End the dealer: a keeper that closes deals what is left."""
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            dealer.communicate("stop\n")

    def stop(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        if self._dealer is not None:
            self._dealer.communicate("stop\n")
            self._dealer = None

    def pids(self) -> list[int]:
        return [] if self._dealer is None else [self._dealer.pid]


STORE = FileWheel
