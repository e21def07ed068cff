"""What is asked of a system: to be filled with jobs, by a process of its own, and to call them in this one.

Invariant: nothing of filling is in the process that calls: its memory and its caches are those of a program that was
started to call jobs.
"""
# ruff: noqa: B027 (what is empty here, a system may need and most do not)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tests.bench.jobs.job import LATE_US
from tests.bench.jobs.limited import Case
from tests.bench.store import Missing


class System(ABC):
    """One system in one directory."""

    def __init__(self, directory: Path, setting: str) -> None:
        self.directory = directory
        self.setting = setting

    def serve(self) -> None:
        """Start the server that the jobs are kept in, where there is one."""

    @abstractmethod
    def fill(self, dues_us: Sequence[int]) -> None:
        """Put a job in for each of these times, in the cheapest way there is; what the store holds is as ever."""

    @abstractmethod
    def start(self) -> None:
        """Begin to call, in the background."""

    def called(self) -> int:
        """Return how many jobs were called so far."""
        return len(LATE_US)

    def limited(self, case: Case, count: int) -> float:
        """Call the jobs of a limited handler; return the seconds from the first enqueue to the last end."""
        raise Missing("not compared")

    def stop(self) -> None:
        """End the server, and what calls if that can be ended; the process ends right afterwards."""

    def pids(self) -> list[int]:
        """Return the processes of the server."""
        return []
