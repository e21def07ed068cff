"""huey with its consumer in this process: 4 worker threads, a scheduler that looks once a second (no more is allowed).

`sqlite`: SqliteHuey as it comes (WAL) with `fsync=True`; idle workers look every 10 ms (as it comes they wait up to
10 s). `always`, `everysec`: RedisHuey on a server of its own, reached over a unix socket, with an append-only file so
synced; workers are woken by the server. No result store, no periodic tasks. A job is taken out of the queue before it
is called, so one that was being called is lost.
What is due already lies in the queue, as `task()` would put it there; what is due later in the schedule, as a worker
would. `Consumer.start` is `run` without the loop that waits for signals.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from huey import Huey, RedisHuey, SqliteHuey
from huey.consumer import Consumer

from tests.bench.jobs.job import call
from tests.bench.jobs.system import System
from tests.bench.store import Missing
from tests.bench.stores.redis_zset import RedisZset

_CHUNK = 5000
Entry = tuple[bytes, float]
"""A packed task, and when it is due."""


class Hueys(System):
    """One huey, and a server where it needs one."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._server = None if setting == "sqlite" else RedisZset(directory, setting)
        self._consumer: Consumer | None = None

    def serve(self) -> None:
        if self._server is not None:
            self._server.start()

    def fill(self, dues_us: Sequence[int]) -> None:
        now_us = time.time_ns() // 1000
        huey = self._huey(fsync=False)
        late = [due for due in dues_us if due <= now_us]
        ahead = [due for due in dues_us if due > now_us]
        for entries in _chunks(_packed(huey, late)):
            self._enter(huey, "queue", entries)
        for entries in _chunks(_packed(huey, ahead)):
            self._enter(huey, "schedule", entries)

    def _enter(self, huey: Huey, where: str, entries: list[Entry]) -> None:
        """Do what `storage.enqueue` and `storage.add_to_schedule` do, for many at once."""
        storage = huey.storage
        if self._server is None:
            with storage.db(commit=True) as cursor:
                if where == "queue":
                    rows = [(storage.name, data) for data, _ in entries]
                    cursor.executemany("insert into task (queue, data, priority) values (?, ?, 0)", rows)
                else:
                    rows = [(storage.name, data, due) for data, due in entries]
                    cursor.executemany("insert into schedule (queue, data, timestamp) values (?, ?, ?)", rows)
        elif where == "queue":
            storage.conn.lpush(storage.queue_key, *[data for data, _ in entries])
        else:
            storage.conn.zadd(storage.schedule_key, dict(entries))

    def _huey(self, *, fsync: bool) -> Huey:
        if self._server is None:
            huey = SqliteHuey(
                "bench", filename=str(self.directory / "huey.db"), results=False, utc=True, fsync=fsync
            )  # fmt: skip
        else:
            address = self.directory / "server.address"
            if not address.exists():
                raise Missing("its server is not started")
            huey = RedisHuey("bench", url=f"unix://{address.read_text()}", results=False, utc=True)
        self._task = huey.task()(call)
        return huey

    def start(self) -> None:
        self._consumer = self._huey(fsync=True).create_consumer(
            workers=4, worker_type="thread", scheduler_interval=1, periodic=False,
            initial_delay=0.01, max_delay=0.01, shutdown_timeout=2,
        )  # fmt: skip
        self._consumer.start()

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.stop(graceful=True)
        if self._server is not None:
            self._server.stop()

    def pids(self) -> list[int]:
        return [] if self._server is None else self._server.pids()


def _packed(huey: Huey, dues_us: Iterable[int]) -> Iterator[Entry]:
    kind = next(iter(huey._registry._registry.values()))
    for due_us in dues_us:
        eta = datetime.fromtimestamp(due_us / 1e6, UTC).replace(tzinfo=None)  # its own form of UTC
        # Storages read an `eta` in the machine's time zone, all of them alike when entering and when looking.
        yield huey.serialize_task(kind((due_us,), {}, eta=eta)), eta.timestamp()


def _chunks(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    while chunk := list(itertools.islice(entries, _CHUNK)):
        yield chunk


SYSTEM = Hueys
