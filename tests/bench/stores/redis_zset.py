"""Redis: a sorted set, score = due, member = a serial number and the payload. Append-only file, always or everysec.

Best honest configuration: a unix socket, redis-py with hiredis, one ZADD for a batch, ZPOPMIN for a backlog (which
gives what it pops away at once: a consumer that dies loses it; the cheapest, not the safest way), no snapshots beside
the log, and the log's rewriting left as it comes. Each thread has a connection.
Always: one fdatasync for what the connections sent in one turn of the server's loop. Due times are scores: doubles,
exact for microseconds until the year 2255.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import redis

from tests.bench.store import Session
from tests.bench.stores.server import Served, Server

_KEY = "messages"
_PATIENCE_S = 600.0
"""A server with ten million messages that rewrites its log may not answer for longer than a client waits by default."""
_HEAD_BYTES = 11  # what makes members differ whose payloads do not
_RANGE_AND_REMOVE = """
local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2], 'WITHSCORES')
if #due > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #due / 2 - 1) end
return due
"""


class _Zset(Session):
    def __init__(self, socket_path: str, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._db = redis.Redis(unix_socket_path=socket_path, protocol=3, socket_timeout=_PATIENCE_S)
        self._pop_due = self._db.register_script(_RANGE_AND_REMOVE)
        self._name = os.urandom(6)
        self._serial = itertools.count()

    def _member(self, payload: bytes) -> bytes:
        return self._name + next(self._serial).to_bytes(_HEAD_BYTES - 6, "big") + payload

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        member = self._member(payload)
        self._db.execute_command("ZADD", _KEY, due_us, member)
        return member

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        members = [self._member(p) for p in payloads]
        self._db.execute_command("ZADD", _KEY, *itertools.chain.from_iterable(zip(dues_us, members, strict=True)))
        return members

    def cancel(self, handle: Any) -> None:
        self._db.execute_command("ZREM", _KEY, handle)

    def cancel_many(self, handles: Sequence[Any]) -> None:
        self._db.execute_command("ZREM", _KEY, *handles)

    def claim(self, limit: int) -> Any:
        if self.ahead_us:  # a backlog, all of it due
            return self._db.zpopmin(_KEY, limit)
        flat = self._pop_due(keys=[_KEY], args=[self.now_us(), limit])
        return list(zip(flat[::2], flat[1::2], strict=True))

    def ack(self, batch: Any) -> None:
        """ZPOPMIN and the script have removed it."""

    def dues_us(self, batch: Any) -> list[int]:
        return [int(float(score)) for _, score in batch]

    def payloads(self, batch: Any) -> list[bytes]:
        return [member[_HEAD_BYTES:] for member, _ in batch]

    def next_due_us(self) -> int | None:
        first = self._db.zrange(_KEY, 0, 0, withscores=True)
        return int(first[0][1]) if first else None

    def close(self) -> None:
        self._db.close()


class RedisZset(Served):
    """A server of its own, and a sorted set."""

    def start(self, *, consume: bool = False) -> None:
        server = Server("redis-server")
        self.serve(
            server,
            "--port", "0", "--unixsocket", server.socket_path, "--dir", str(self.directory), "--save", "",
            "--appendonly", "yes", "--appendfsync", self.setting,
        )  # fmt: skip
        db = redis.Redis(unix_socket_path=server.socket_path, socket_timeout=_PATIENCE_S)
        while True:  # it answers while it loads, but says so
            try:
                db.ping()
                break
            except redis.exceptions.BusyLoadingError:
                pass
        db.close()

    def session(self, ahead_us: int = 0) -> Session:
        return _Zset(self._address.read_text(), ahead_us)


STORE = RedisZset
