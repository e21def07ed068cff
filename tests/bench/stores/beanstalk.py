"""beanstalkd with a log: `-f0` syncs each write, `-f50` every 50 ms, `-F` never. Delays are whole seconds.

Best honest configuration: a unix socket, log files of 64 MiB, batches and backlogs pipelined by fifties over one
connection (the Python clients send one command at a time and wait, which is several times slower).
`-f0` syncs each message by itself, also when they come pipelined: there is no commit of many.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.store import US, Missing, Session
from tests.bench.stores.server import Served, Server

_PIPELINE = 50
"""Commands at a time. With 70 replies unread it stops reading (a unix socket's buffer counts each as 768 bytes), and
with large payloads the client would then wait to write, forever."""


class _Connection(Session):
    def __init__(self, socket_path: str) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(socket_path)
        self._socket.settimeout(300)
        self._replies = self._socket.makefile("rb")

    def _put(self, payload: bytes, due_us: int, now_us: int) -> bytes:
        delay_s = max(0, -(-(due_us - now_us) // US))  # rounded up: never early
        return b"put 0 %d 600 %d\r\n%b\r\n" % (delay_s, len(payload), payload)

    def _reply(self, word: bytes) -> bytes:
        line = self._replies.readline()
        if not line.startswith(word):
            raise RuntimeError(f"beanstalkd answers {line!r}")
        return line

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        self._socket.sendall(self._put(payload, due_us, self.now_us()))
        return int(self._reply(b"INSERTED ")[9:])

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        now_us = self.now_us()
        ids = []
        for start in range(0, len(payloads), _PIPELINE):
            pairs = zip(payloads[start : start + _PIPELINE], dues_us[start : start + _PIPELINE], strict=True)
            some = [self._put(payload, due_us, now_us) for payload, due_us in pairs]
            self._socket.sendall(b"".join(some))
            ids += [int(self._reply(b"INSERTED ")[9:]) for _ in some]
        return ids

    def cancel(self, handle: Any) -> None:
        self._socket.sendall(b"delete %d\r\n" % handle)
        self._reply(b"DELETED")

    def cancel_many(self, handles: Sequence[Any]) -> None:
        for start in range(0, len(handles), _PIPELINE):
            some = handles[start : start + _PIPELINE]
            self._socket.sendall(b"".join([b"delete %d\r\n" % h for h in some]))
            for _ in some:
                self._reply(b"DELETED")

    def claim(self, limit: int) -> Any:
        batch = []
        while len(batch) < limit:
            ask = min(limit - len(batch), _PIPELINE)
            self._socket.sendall(b"reserve-with-timeout 0\r\n" * ask)
            empty = False
            for _ in range(ask):
                line = self._replies.readline()
                if not line.startswith(b"RESERVED "):
                    empty = True
                    continue
                _, id_, size = line.split()
                batch.append((int(id_), self._replies.read(int(size) + 2)[:-2]))
            if empty:
                break
        return batch

    def ack(self, batch: Any) -> None:
        self.cancel_many([id_ for id_, _ in batch])

    def dues_us(self, batch: Any) -> list[int]:
        raise Missing("delays are whole seconds")

    def close(self) -> None:
        self._socket.close()


class Beanstalkd(Served):
    """A server of its own."""

    shifts = False

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self.slow = setting == "-f0"

    def start(self, *, consume: bool = False) -> None:
        server = Server("beanstalkd")
        (self.directory / "log").mkdir(exist_ok=True)
        self.serve(
            server,
            "-l", f"unix:{server.socket_path}", "-b", str(self.directory / "log"), self.setting,
            "-s", str(64 << 20), "-z", str(1 << 20),
        )  # fmt: skip

    def session(self, ahead_us: int = 0) -> Session:
        return _Connection(self._address.read_text())


STORE = Beanstalkd
