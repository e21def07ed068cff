"""SQLite, the table that everybody writes: id, run_at with an index, payload. WAL; synchronous FULL or NORMAL.

Best honest configuration: prepared statements (the driver keeps them), `executemany` in one transaction for batches, a
cache of 256 MiB and a checkpoint every 64 MiB of log (batches of 1,000: 139,000/s; with 64 MiB and the usual 4 MiB,
97,000/s), `begin immediate`, DELETE ... RETURNING inside of the transaction that the acknowledgement commits.
Threads share one connection under a lock (2,030/s): with one each (1,290/s) they wait in the busy handler. These are
medians of eight turns on one shared machine, in changing order; the turns of the threads overlap.
One fdatasync a commit, none with NORMAL until a checkpoint.
"clustered" is the expert's table: primary key (run_at, id) WITHOUT ROWID, so that no second tree is written.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.store import Session, Store

PLAIN = """
create table if not exists message (id integer primary key, run_at integer not null, payload blob not null);
create index if not exists message_run_at on message (run_at);
"""
CLUSTERED = """
create table if not exists message (
    run_at integer not null, id integer not null, payload blob not null, primary key (run_at, id)) without rowid;
"""


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Open the database."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
    db.execute("pragma journal_mode=wal")
    db.execute(f"pragma synchronous={synchronous}")
    db.execute("pragma cache_size=-262144")
    db.execute("pragma wal_autocheckpoint=16384")
    return db


class _Table(Session):
    INSERT = "insert into message (run_at, payload) values (?, ?)"

    def __init__(self, db: sqlite3.Connection, lock: threading.Lock, ahead_us: int) -> None:
        super().__init__(ahead_us)
        self._db = db
        self._lock = lock

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        with self._lock:
            return self._db.execute(self.INSERT, (due_us, payload)).lastrowid

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        with self._lock:
            self._db.execute("begin immediate")
            self._db.executemany(self.INSERT, zip(dues_us, payloads, strict=True))
            (last,) = self._db.execute("select last_insert_rowid()").fetchone()
            self._db.execute("commit")
        return range(last - len(payloads) + 1, last + 1)

    def cancel(self, handle: Any) -> None:
        with self._lock:
            self._db.execute("delete from message where id = ?", (handle,))

    def cancel_many(self, handles: Sequence[Any]) -> None:
        with self._lock:
            self._db.execute("begin immediate")
            self._db.executemany("delete from message where id = ?", [(h,) for h in handles])
            self._db.execute("commit")

    def claim(self, limit: int) -> Any:
        due_us = self.next_due_us()  # a look takes no lock; `begin immediate` would hold up those who enqueue
        if due_us is None or due_us > self.now_us():
            return []
        self._db.execute("begin immediate")
        rows = self._db.execute(
            "delete from message where id in (select id from message where run_at <= ? order by run_at limit ?)"
            " returning run_at, payload",
            (self.now_us(), limit),
        ).fetchall()
        if not rows:
            self._db.execute("rollback")
        return rows

    def ack(self, batch: Any) -> None:
        if batch:
            self._db.execute("commit")

    def dues_us(self, batch: Any) -> list[int]:
        return [run_at for run_at, _ in batch]

    def payloads(self, batch: Any) -> list[bytes]:
        return [payload for _, payload in batch]

    def next_due_us(self) -> int | None:
        due: int | None = self._db.execute("select min(run_at) from message").fetchone()[0]
        return due


class _Clustered(_Table):
    INSERT = "insert into message (run_at, payload, id) values (?, ?, ?)"

    def __init__(self, db: sqlite3.Connection, lock: threading.Lock, ahead_us: int) -> None:
        super().__init__(db, lock, ahead_us)
        self._id = (db.execute("select max(id) from message").fetchone()[0] or 0) + 1

    def enqueue(self, payload: bytes, due_us: int) -> Any:
        with self._lock:
            self._id += 1
            self._db.execute(self.INSERT, (due_us, payload, self._id))
            return due_us, self._id

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[int]) -> Sequence[Any]:
        with self._lock:
            ids = range(self._id + 1, self._id + 1 + len(payloads))
            self._id += len(payloads)
            self._db.execute("begin immediate")
            self._db.executemany(self.INSERT, zip(dues_us, payloads, ids, strict=True))
            self._db.execute("commit")
        return list(zip(dues_us, ids, strict=True))

    def cancel(self, handle: Any) -> None:
        with self._lock:
            self._db.execute("delete from message where run_at = ? and id = ?", handle)

    def cancel_many(self, handles: Sequence[Any]) -> None:
        with self._lock:
            self._db.execute("begin immediate")
            self._db.executemany("delete from message where run_at = ? and id = ?", handles)
            self._db.execute("commit")

    def claim(self, limit: int) -> Any:
        due_us = self.next_due_us()  # a look takes no lock; `begin immediate` would hold up those who enqueue
        if due_us is None or due_us > self.now_us():
            return []
        self._db.execute("begin immediate")
        rows = self._db.execute(
            "select run_at, payload, id from message where run_at <= ? order by run_at, id limit ?",
            (self.now_us(), limit),
        ).fetchall()
        if rows:
            self._db.execute("delete from message where (run_at, id) <= (?, ?)", (rows[-1][0], rows[-1][2]))
        else:
            self._db.execute("rollback")
        return [(run_at, payload) for run_at, payload, _ in rows]


class Sqlite(Store):
    """A database file; one connection for the threads of a process."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._path = directory / "queue.db"
        self._synchronous, _, clustered = setting.partition(" ")
        self._table = _Clustered if clustered else _Table
        self.processes = not clustered  # its ids are counted in this process
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def start(self, *, consume: bool = False) -> None:
        db = connect(self._path, self._synchronous)
        db.executescript(CLUSTERED if self._table is _Clustered else PLAIN)
        db.close()

    def session(self, ahead_us: int = 0) -> Session:
        if self._db is None:
            self._db = connect(self._path, self._synchronous)
        return self._table(self._db, self._lock, ahead_us)

    def settle(self, session: Session) -> None:
        assert self._db is not None
        self._db.execute("pragma wal_checkpoint(truncate)")

    def stop(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


STORE = Sqlite
