"""The lock of a node's data directory: two nodes with one `--data` would wait for each other's wheels, one by one.

`DATA/<topic>/node.lock` is locked by the kernel while the node lives. The file stays.
Invariant: the lock ends with the process, whatever happens to it.
"""

from __future__ import annotations

import os

from filewheel.disk.directory import make_parents
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import Locked, disk_errors

NAME = "node.lock"


class DataLock:
    """The lock of the data of one topic. Used by one thread after it was made, but for `close`."""

    def __init__(self, data: str | os.PathLike[str], topic: str, env: Env = SYSTEM) -> None:
        """Take it; make the directory if there is none. Raises Locked when another node has it, DiskError."""
        self._path = os.path.join(os.fspath(data), topic)
        self._env = env
        self._take()

    def _take(self) -> None:
        path = self._path
        make_parents(os.path.join(path, NAME))
        with disk_errors(path):
            self._disk = self._env.disk(path)
            self._fd: int | None = self._disk.open(NAME, "rw")
            is_ours = self._disk.lock(self._fd, wait=False)
        if not is_ours:  # mutant: kafka-data-of-two
            self.close()
            raise Locked(
                "another node of the service uses this data", path=path, hint="give each node a --data of its own"
            )

    def keep(self) -> None:
        """Take it again if its file was removed: the old lock keeps nobody out. Cost: two stats. Raises Locked."""
        if self._fd is not None and not self._disk.is_named(self._fd, NAME):  # mutant: kafka-removed-lock-believed
            self.close()
            self._take()

    def close(self) -> None:
        """Release it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)
            self._disk.release()
