"""Helpers for tests that need a clock, a disk that fails, or other processes."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from filewheel.disk.directory import Directory
from filewheel.disk.disk import OsDisk
from filewheel.env import Clock
from filewheel.laps.store import Store
from filewheel.message import US_PER_S

T = TypeVar("T")
REPO = Path(__file__).parent.parent
START_US = 1_800_000_000 * US_PER_S


def seeds(few: int, *, all_of: int) -> range:
    """The seeds of a test that draws what it does: a few, all of them with FILEWHEEL_SEEDS=all."""
    return range(all_of if os.environ.get("FILEWHEEL_SEEDS") == "all" else few)


def some(every: Iterable[T], *, one_of: int) -> list[T]:
    """One of so many, by turns: of the states after a crash, for instance; all of them with FILEWHEEL_SEEDS=all."""
    return list(every)[:: 1 if os.environ.get("FILEWHEEL_SEEDS") == "all" else one_of]


def open_files() -> set[str]:
    """Return the numbers of this process's open files; none where the machine does not list them.

    What an earlier test left is collected first: it would otherwise close in the middle of this one.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


def open_below(folder: Path) -> list[str]:
    """Return the open files of this process below a folder. What other threads have open elsewhere does not count."""
    if not os.path.isdir("/proc/self/fd"):
        return []
    gc.collect()
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in paths if Path(path).is_relative_to(folder)]


class FakeClock:
    """A clock that only moves when told to."""

    def __init__(self, now_us: int = START_US) -> None:
        self.wall_us = now_us
        self.run_us = 0

    def now_us(self) -> int:
        return self.wall_us

    def steady_us(self) -> int:
        return self.run_us

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.wall_us += round(seconds * US_PER_S)
        self.run_us += round(seconds * US_PER_S)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self.wall_us += round(seconds * US_PER_S)


class FaultyDisk(OsDisk):
    """A real disk of which chosen calls fail: `fail(kind, name)` raises what it wants to happen."""

    def __init__(self, path: str, fail: Callable[[str, str], None]) -> None:
        super().__init__(path)
        self._fail = fail
        self._names: dict[int, str] = {}

    def listdir(self, name: str) -> list[str]:
        self._fail("listdir", name)
        return super().listdir(name)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        self._fail("identity", name)
        return super().identity(name)

    def open(self, name: str, mode: str) -> int:
        self._fail("open", name)
        fd = super().open(name, mode)
        self._names[fd] = name
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._fail("pwrite", self._names.get(fd, ""))
        super().pwrite(fd, data, offset)
        self._fail("pwritten", self._names.get(fd, ""))

    def fdatasync(self, fd: int) -> None:
        self._fail("fdatasync", self._names.get(fd, ""))
        super().fdatasync(fd)

    def sync_all(self) -> None:
        self._fail("sync_all", "")
        super().sync_all()

    def sync_dir(self, name: str) -> None:
        self._fail("sync_dir", name)
        super().sync_dir(name)

    def rename(self, old: str, new: str) -> None:
        self._fail("rename", new)
        super().rename(old, new)


def timed(directory: Directory, clock: Clock) -> Directory:
    """Return an open directory with another clock."""
    return replace(directory, env=directory.env.using(clock=clock))


def ledger_of(directory: Directory) -> Store:
    """Return the ledger that a keeper of this wheel has."""
    return Store(directory)


class MissingNames(OsDisk):
    """A real disk whose next listings of the journals miss files that are there, as one beside a writer may."""

    def __init__(self, path: str, *missing: set[int]) -> None:
        super().__init__(path)
        self.missing = list(missing)
        """For each listing still to come, the segments that it leaves out."""

    def listdir(self, name: str) -> list[str]:
        found = super().listdir(name)
        left_out = self.missing.pop(0) if name == "journal" and self.missing else set()
        return [last for last in found if int(last[9:15]) not in left_out] if left_out else found


def spawn(code: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    """Start a Python process that runs `code` with `sys.argv[1:] == args`."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)],
        cwd=REPO,
        text=True,
        stdout=subprocess.PIPE,
        **options,
    )


def run(code: str, *args: object, timeout: float = 60) -> str:
    """Run a Python process to its end and return what it printed."""
    process = spawn(code, *args)
    out, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, process.returncode
    return out


def eventually(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Wait until a condition holds, and return what it returned."""
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@functools.cache
def _unsignalled(code: CodeType) -> frozenset[int]:
    """Return the instructions before which no signal is answered: at the end of a `with`, and at a bare `try:`."""
    ops = list(dis.get_instructions(code))
    found = {op.offset for op in ops if op.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "NOP")}
    for n in range(len(ops) - 3):
        three = [op.opname == "LOAD_CONST" and op.argval is None for op in ops[n : n + 3]]
        if all(three) and ops[n + 3].opname in ("PRECALL", "CALL"):
            while n and ops[n - 1].opname in ("SWAP", "COPY", "NOP"):  # of a `return` within it
                found.add(ops[n].offset)
                n -= 1
            found.add(ops[n].offset)
    return frozenset(found)


def can_be_signalled(frame: FrameType) -> bool:
    """Return whether the interpreter may answer a signal before this line."""
    return frame.f_lasti not in _unsignalled(frame.f_code)


@contextlib.contextmanager
def interrupted(
    among: Callable[[CodeType], bool], line: int, where: Callable[[FrameType], bool] = lambda frame: True
) -> Iterator[None]:
    """Raise KeyboardInterrupt before the line of this number that runs among these functions, and end it here."""
    left = line

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not among(frame.f_code):
            return None
        if event == "line" and left and where(frame):
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(None)


def lose(path: str | Path) -> None:
    """Have a wheel go at once, though others write in it: whoever has it open writes to what nobody sees any more."""
    away = f"{path}.lost"
    os.rename(path, away)
    for _ in range(20):
        shutil.rmtree(away, ignore_errors=True)
