"""The peers, each in its best honest configuration; what that is stands at the top of each file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from tests.bench.store import Missing, Store

DURABLE = "durable"
BOUNDED = "bounded"
RELAXED = "relaxed"


@dataclass(frozen=True)
class Peer:
    """A store with a setting, and the promise that it is compared under."""

    key: str
    title: str
    module: str
    setting: str
    promise: str

    def store(self, directory: Path) -> Store:
        """Return the store in this directory. Raises Missing when a library or a server is not there."""
        try:
            module = importlib.import_module(f"tests.bench.stores.{self.module}")
        except ImportError as exc:
            raise Missing(f"{exc.name or exc} is not installed") from exc
        store: Store = module.STORE(directory, self.setting)
        return store


PEERS = [
    Peer("bare", "pwrite + fdatasync", "bare", "sync", DURABLE),
    Peer("filewheel", "filewheel", "wheel", "always", DURABLE),
    Peer("sqlite", "SQLite, WAL, FULL", "sqlite", "FULL", DURABLE),
    Peer("sqlite-clustered", "SQLite, FULL, clustered by time", "sqlite", "FULL clustered", DURABLE),
    Peer("redis", "Redis, AOF always", "redis_zset", "always", DURABLE),
    Peer("beanstalkd", "beanstalkd -f0", "beanstalk", "-f0", DURABLE),
    Peer("rocksdb", "RocksDB, sync", "rocks", "sync", DURABLE),
    Peer("lmdb", "LMDB", "lmdb_tree", "sync", DURABLE),
    Peer("huey", "huey, SQLite", "huey_tasks", "fsync", DURABLE),
    Peer("apscheduler", "APScheduler 3, SQLite", "apscheduler_jobs", "FULL", DURABLE),
    Peer("persist-queue", "persist-queue, SQLite (no due times)", "persist", "sqlite", DURABLE),
    Peer("filewheel-50ms", "filewheel, sync=0.05", "wheel", "0.05", BOUNDED),
    Peer("beanstalkd-50ms", "beanstalkd -f50", "beanstalk", "-f50", BOUNDED),
    Peer("filewheel-1s", "filewheel, sync=1", "wheel", "1", BOUNDED),
    Peer("redis-1s", "Redis, AOF everysec", "redis_zset", "everysec", BOUNDED),
    Peer("bare-never", "pwrite", "bare", "never", RELAXED),
    Peer("filewheel-never", 'filewheel, sync="never"', "wheel", "never", RELAXED),
    Peer("sqlite-normal", "SQLite, WAL, NORMAL", "sqlite", "NORMAL", RELAXED),
    Peer("beanstalkd-never", "beanstalkd -F", "beanstalk", "-F", RELAXED),
    Peer("rocksdb-never", "RocksDB, no sync", "rocks", "never", RELAXED),
    Peer("lmdb-never", "LMDB, no sync", "lmdb_tree", "never", RELAXED),
    Peer("huey-never", "huey, SQLite, no fsync", "huey_tasks", "off", RELAXED),
    Peer("huey-file", "huey, files", "huey_tasks", "file", RELAXED),
]
BY_KEY = {peer.key: peer for peer in PEERS}
