"""The processes of one round: forked from this one, which has imported everything, and killed by it.

A wheel is opened only after the fork. Invariant: when a `with Cast(...)` ends, none of its processes lives.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

from filewheel.format.settings import Sync
from tests.crash.actors import Actor
from tests.crash.marks import Marks

SERIALS_EACH = 100_000


class Cast:
    """Starts, stops, kills and counts the processes of one wheel."""

    def __init__(self, path: Path, folder: Path, seed: object, *, sync: Sync | None = None, before: int = 0) -> None:
        """`before` is how many processes earlier casts of the same wheel had: no serial comes twice."""
        self._path = path
        self._folder = folder
        self._seed = seed
        self._sync = sync
        self._started = before
        self.kills = 0
        self.alive: dict[int, type[Actor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(*self.alive)

    def start(self, role: type[Actor], *, lasts_s: float = 3600) -> int:
        """Start a process in a role; return its id."""
        self._started += 1
        pid = os.fork()
        if not pid:
            try:
                self._play(role, lasts_s)
            finally:
                os._exit(0)
        self.alive[pid] = role
        return pid

    def _play(self, role: type[Actor], lasts_s: float) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.freeze()  # a collection would copy every page that is shared with the parent
        logging.disable(logging.CRITICAL)
        marks = Marks(self._folder / f"{self._started:04d}-{role.__name__}")
        rng = random.Random(f"{self._seed} {self._started}")
        try:
            until = time.monotonic() + lasts_s
            role(self._path, marks, rng, self._started * SERIALS_EACH, until, self._sync).run()
        except BaseException:
            marks.tell("error", traceback.format_exc())

    def kill(self, *pids: int) -> None:
        """Kill processes, all of them before any is waited for."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
            self.alive.pop(pid, None)
            self.kills += 1

    def freeze(self, *pids: int) -> None:
        """Stop processes; on return none of them is inside of a system call."""
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            if not os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
                self.alive.pop(pid, None)

    def go_on(self, *pids: int) -> None:
        """Let stopped processes go on."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def ended(self) -> list[type[Actor]]:
        """Return the roles of processes that ended of their own accord since the last time."""
        roles = []
        for pid in list(self.alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                roles.append(self.alive.pop(pid))
        return roles

    def wait(self, pid: int, timeout_s: float) -> bool:
        """Wait for a process to end; tell whether it did."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.alive.pop(pid, None)
                return True
            time.sleep(0.002)
        return False
