"""The systems that are compared, each in its best honest configuration; what that is stands at the top of each file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from tests.bench.jobs.system import System
from tests.bench.store import Missing


@dataclass(frozen=True)
class Peer:
    """A system with a setting, and what of its jobs survives a power cut."""

    key: str
    title: str
    module: str
    setting: str
    survives: str
    """Of what was enqueued, once the call has returned."""
    running: str
    """What becomes of the jobs that were being called."""

    def system(self, directory: Path) -> System:
        """Return the system in this directory. Raises Missing when a library or a server is not there."""
        try:
            module = importlib.import_module(f"tests.bench.jobs.systems.{self.module}")
        except ImportError as exc:
            raise Missing(f"{exc.name or exc} is not installed") from exc
        system: System = module.SYSTEM(directory, self.setting)
        return system


_ALL = "all"
_AGAIN, _LOST = "called again", "lost"

PEERS = [
    Peer("filewheel", "filewheel, 4 threads", "wheel", "threads", _ALL, _AGAIN),
    Peer("filewheel-batch", "filewheel, batches of 100", "wheel", "batch", _ALL, _AGAIN),
    Peer("filewheel-loop", "filewheel, coroutines", "wheel", "loop", _ALL, _AGAIN),
    Peer("filewheel-processes", "filewheel, 2 processes", "wheel", "processes", _ALL, _AGAIN),
    Peer("huey-sqlite", "huey, SQLite", "huey_consumer", "sqlite", _ALL, _LOST),
    Peer("huey-redis", "huey, Redis, AOF always", "huey_consumer", "always", _ALL, _LOST),
    Peer("huey-redis-1s", "huey, Redis, AOF everysec", "huey_consumer", "everysec", "but of the last second", _LOST),
    Peer("futures", "concurrent.futures", "futures", "", "nothing", _LOST),
    Peer("apscheduler", "APScheduler 3, SQLite", "apscheduler_background", "FULL", _ALL, _LOST),
]
STORES = [peer for peer in PEERS if peer.key != "futures"]
"""Those that keep jobs."""
BY_KEY = {peer.key: peer for peer in PEERS}
OURS = "filewheel"
"""Which one the peers are compared with."""
