"""The machine as one argument: clock, disks and random bytes; and how a thread waits on it.

Tests pass another `Env`: a clock that stands still, a disk in memory that fails or loses power at any call, bytes that
repeat. `Directory.env` carries it, so code that has a directory needs no other argument.

There are two clocks. The *wall* clock decides which messages are due. The *steady* clock never steps, counts the time
of a suspended machine where the system can, and measures durations. Code never mixes the two.

Ctrl-C may raise between any two steps of Python's own conditions and events, which then release a lock that they do not
have ("release unlocked lock"), or keep one for ever. `Condition` and `Event` are those of the library
([ADR 84](../docs/adr/0084-a-wait-that-ctrl-c-ends.md)).
Invariants: no other module of the library reads the time, and only `disk/` calls the system for files. After a wait,
however it ended, its thread has the lock of the condition as before.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.native.compiled import Pen


class Clock(Protocol):
    """The wall clock and the steady clock."""

    def now_us(self) -> int:
        """Return the wall time in microseconds since the epoch, UTC."""

    def steady_us(self) -> int:
        """Return a time that never steps, in microseconds from an arbitrary start."""


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        # BOOTTIME counts while the machine sleeps; MONOTONIC stops.
        self._steady_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def steady_us(self) -> int:
        return time.clock_gettime_ns(self._steady_id) // 1000


SYSTEM_CLOCK = SystemClock()


def loop_time() -> float:
    """Return the time of asyncio's and uvloop's loops: CLOCK_MONOTONIC in seconds."""
    return time.monotonic()


pause = time.sleep
"""Sleep for some seconds, or until Ctrl-C."""


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


def _pass(gate: threading.Lock, timeout_s: float | None) -> bool:
    """Wait until a gate is opened; return whether it was."""
    if timeout_s is None:
        return gate.acquire()
    return gate.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)) if timeout_s > 0 else gate.acquire(False)


class Condition:
    """A condition of a reentrant lock, which is held by a `with` of the lock itself, not of the condition."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock: Any = lock
        self._gates: list[threading.Lock] = []

    def wait(self, timeout_s: float | None = None) -> bool:
        """Release the lock, wait until notified, and take it again; return False when the time was up."""
        count = self._lock._recursion_count()
        gate = _closed_gate()
        try:
            self._gates.append(gate)
            try:
                self._lock._release_save()
                return _pass(gate, timeout_s)
            finally:
                self._take(count)
        finally:
            self._take(count)  # again: the first one may have been interrupted before it began
            with contextlib.suppress(ValueError):
                self._gates.remove(gate)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something is so, at most this time; return whether it is."""
        end_s = time.monotonic() + timeout_s
        while not is_so():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def _take(self, count: int) -> None:
        """Take the lock, so often, unless this thread has it. An interrupt is raised once it has."""
        interrupted: BaseException | None = None
        while True:
            try:
                if not self._lock._is_owned():
                    self._lock._acquire_restore((count, threading.get_ident()))
                break
            except BaseException as exc:
                interrupted = exc
        if interrupted is not None:
            raise interrupted

    def notify(self) -> None:
        """Wake one thread that waits. The lock is held."""
        while self._gates:
            gate = self._gates[0]
            is_first = gate.locked()  # not so: an interrupted notify has opened it
            if is_first:
                gate.release()
            with contextlib.suppress(ValueError):
                self._gates.remove(gate)
            if is_first:
                return

    def notify_all(self) -> None:
        """Wake all threads that wait. The lock is held."""
        while self._gates:
            self.notify()


class Event:
    """Something that threads wait for, until it is set. It has no lock."""

    def __init__(self) -> None:
        self._is_set = False
        self._gates: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake the threads that wait."""
        self._is_set = True
        for gate in self._gates.copy():
            with contextlib.suppress(RuntimeError):  # another thread has opened it
                gate.release()

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, at most this time; return whether it was."""
        if self._is_set:
            return True
        gate = _closed_gate()
        try:
            self._gates.append(gate)  # first: who sets it from here on opens the gate
            return self._is_set or _pass(gate, timeout_s)
        finally:
            with contextlib.suppress(ValueError):
                self._gates.remove(gate)


class Disk(Protocol):
    """File operations. Names are relative to the wheel's directory."""

    path: str

    def open(self, name: str, mode: str) -> int:
        """Open a regular file: "r" to read, "r+" to write too, "rw" to create it if missing, "x" to create a new one,
        "w" to replace its content.

        Raises ForeignFile, without touching it, when the name is not a regular file's; except for "r", also when the
        file has another hard link: a write would change it there too. "w" then unlinks this name and creates a file.
        """

    def close(self, fd: int) -> None:
        """Close a file. Unflushed writes may be lost without an error."""

    def pread(self, fd: int, size: int, offset: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of `data`, or raise with an unknown part of it written."""

    def pen(
        self, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int, number: int, synced: int
    ) -> Pen | None:
        """Return a pen that writes frames from `offset` on that end at `end` or before; None where there is none."""

    def truncate(self, fd: int, size: int) -> None: ...
    def allocate(self, fd: int, size: int) -> None:
        """Reserve real blocks for the first `size` bytes."""

    def size(self, fd: int) -> int: ...
    def is_removed(self, fd: int) -> bool:
        """Return whether an open file was unlinked; False where that is not known."""

    def is_named(self, fd: int, name: str) -> bool:
        """Return whether this name now refers to the open file."""

    def data_from(self, fd: int, offset: int) -> int:
        """Return the offset of the first data at or after an offset, past any hole; the size if there is none."""

    def fdatasync(self, fd: int) -> None: ...
    def sync_dir(self, name: str) -> None:
        """Make a directory's entries durable."""

    def sync_all(self) -> None:
        """Make everything written on this file system durable."""

    def listdir(self, name: str) -> list[str]: ...
    def mkdir(self, name: str) -> None: ...
    def rmdir(self, name: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def link(self, old: str, new: str) -> None: ...
    def unlink(self, name: str) -> None: ...
    def identity(self, name: str) -> tuple[int, int, int] | None:
        """Return (inode, size, modified ns) of a regular file, or None when there is none."""

    def lock(self, fd: int, *, wait: bool) -> bool:
        """Take the exclusive kernel lock of an open file; False when held and not waiting."""

    def unlock(self, fd: int) -> None: ...
    def is_free(self, fd: int) -> bool:
        """Return whether the exclusive lock of an open file is free. Concurrent calls do not disturb each other."""

    def open_hints(self, name: str) -> int | None:
        """Make and open the hint pipe for its reader; None when the file system has none."""

    def open_hint(self, name: str) -> int | None:
        """Open the hint pipe for a writer; None when there is no listener."""

    def send_hint(self, fd: int) -> bool:
        """Put one hint into the pipe; False when it has no listener."""

    def wait_hint(self, fd: int | None, timeout_s: float) -> bool:
        """Sleep until a hint arrives or the time is up, and drain the pipe; return whether one arrived."""

    def free_bytes(self) -> int:
        """Return the room for new files; 0 when hardly any can be made, however many bytes are free."""

    def free_files(self) -> int | None:
        """Return how many files can be made, the number of free inodes; None where nobody counts them."""

    def release(self) -> None:
        """Close the directories. Owners close their files and locks themselves."""


DiskFactory = Callable[[str], Disk]
"""Opens the disk at a path."""
Entropy = Callable[[int], bytes]
"""Returns this many random bytes."""


@dataclass(frozen=True)
class Env:
    """The machine. `filewheel.disk.disk.SYSTEM` is the real one."""

    clock: Clock
    disk: DiskFactory
    entropy: Entropy

    def using(
        self, *, clock: Clock | None = None, disk: DiskFactory | None = None, entropy: Entropy | None = None
    ) -> Env:
        """Return a copy with these parts replaced; None keeps a part. Raises BadArgument."""
        if clock is not None and not all(callable(getattr(clock, name, None)) for name in ("now_us", "steady_us")):
            raise BadArgument(
                f"a clock has the calls now_us and steady_us, not {shown(clock)}", hint="filewheel.testing.FakeClock"
            )
        return Env(
            self.clock if clock is None else clock,
            self.disk if disk is None else disk,
            self.entropy if entropy is None else entropy,
        )


def check_env(env: Env) -> Env:
    """Return the environment of a call. Raises BadArgument for anything else."""
    if not isinstance(env, Env):
        raise BadArgument(f"env is a filewheel.env.Env, not {shown(env)}", hint="leave it out, or SYSTEM.using(...)")
    return env
