"""Keeper.lock: its kernel lock decides which process is the keeper, and a note in it names that process.

Only the lock counts: it dies with its process, so a waiting standby takes over at once, without a time-out. Readers
test the lock too; the note names the holder for people.

The lock belongs to the file, and the file may be removed or replaced: then a second process gets the lock of a new
file. So before it fires or deals, the holder checks that its file still has the name (`check`).
Format: docs/format.md, 13.
Invariant: at most one process with a `held` KeeperLock passes `check`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.env import Disk
from filewheel.errors import Locked, disk_error
from filewheel.format import layout

_NOTE_BYTES = 512
_TRIES = 1000
_PAUSE_S = 0.001
_DOES = {"tidy": "is tidying up", "purge": "is purging", "repair": "is repairing", "backup": "is replicating to it"}


class KeeperLock:
    """The lock of one wheel's keeper."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._fd = -1
        self._note: dict[str, object] = {}

    @property
    def held(self) -> bool:
        """Whether this is the keeper."""
        return self._fd >= 0

    def take(self, role: str, *, wait: bool, drains: Callable[[], int] | None = None) -> None:
        """Become the keeper; with `wait`, wait for the present keeper to end.

        `drains` returns how often the wheel was drained, for a keeper that heeds pauses; called with the lock held.
        Raises Locked when another process is the keeper and `wait` is false.
        """
        try:
            while not self._lock(role, wait=wait, drains=drains):
                pass
        except BaseException:
            self.release()  # Ctrl-C after the lock
            raise

    def _lock(self, role: str, *, wait: bool, drains: Callable[[], int] | None) -> bool:
        """Lock the file; False when it was removed or replaced during the wait."""
        try:
            fd = self._disk.open(layout.LOCK, "rw")
        except OSError as exc:
            error = disk_error(exc, self._dir.place(layout.LOCK))
            if isinstance(exc, ForeignFile) and exc.errno != errno.EMLINK:
                # A repair that renames it could rename the file of a keeper that has just started.
                error.hint = "stop every keeper, then remove it by hand: it holds no data of filewheel"
            raise error from exc
        try:
            # mutant: two-keepers
            if not self._disk.lock(fd, wait=wait) and not self._lock_among_askers(fd):
                who = _note(self._disk, fd)
                does = _DOES.get(who.role, "is the keeper")
                error = Locked(f"{who} {does}", pid=who.pid, role=who.role, path=self._dir.place(layout.LOCK))
                if who.is_self:
                    error.is_own = True
                    error.hint = "close the keeper that this process opened before: it would wait for itself for ever"
                raise error
            if not self._disk.is_named(fd, layout.LOCK):
                self._disk.close(fd)
                return False
            self._note = {"pid": os.getpid(), "started": _started(os.getpid()), "role": role, "ns": _namespace()}
            if drains is not None:
                self._note["drains"] = drains()
            self._write(fd, self._note)
            self._fd = fd
        except OSError as exc:
            self._disk.close(fd)
            raise disk_error(exc, self._dir.place(layout.LOCK)) from exc
        except BaseException:
            self._disk.close(fd)
            raise
        return True

    def _lock_among_askers(self, fd: int) -> bool:
        """Lock the file if only processes that test it hold it: each shares it for a moment."""
        for _ in range(_TRIES):
            if not self._disk.is_free(fd):
                return False
            if self._disk.lock(fd, wait=False):
                return True
            self._disk.wait_hint(None, _PAUSE_S)
        return False

    def check(self) -> None:
        """Raise Locked when the locked file is no longer keeper.lock: another process may be the keeper.

        Cost: two stats.
        """
        try:
            is_ours = self._disk.is_named(self._fd, layout.LOCK)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(layout.LOCK)) from exc
        if not is_ours:
            who = holder(self._dir)
            raise Locked(
                "the file was removed or replaced while this process held its lock: another may be the keeper now",
                pid=who.pid if who is not None else None,
                path=self._dir.place(layout.LOCK),
                hint="start the keeper again; this file never needs to be removed: its lock ends with its process",
            )

    def beat(self, now_us: int, asked_us: int) -> None:
        """Write signs of life into the note: that this process came around now, and when its consumer last asked.

        Cost: one write, not flushed. Never raises OSError.
        """
        if self._fd >= 0:
            self._write(self._fd, {**self._note, "beat_us": now_us, "asked_us": asked_us})

    def _write(self, fd: int, note: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # only for people: the lock counts, and a full disk must not stop the keeper
            self._disk.pwrite(fd, json.dumps(note).encode().ljust(_NOTE_BYTES) + b"\n", 0)

    def release(self) -> None:
        """Stop being the keeper."""
        if self._fd >= 0:
            self._write(self._fd, {})
            self._disk.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class Holder:
    """The holder of keeper.lock. It is certain that the lock is held; the rest comes from the note."""

    role: str = ""
    """Its role; empty without a note."""
    pid: int | None = None
    """Its pid in its own namespace."""
    namespace: str = ""
    """Its pid namespace; empty if it is that of this process."""
    beat_us: int | None = None
    """When it last came around, by the wall clock, to within five seconds; None if it says nothing about that."""
    asked_us: int | None = None
    """When its consumer last asked for messages, or began to wait for some."""

    @property
    def is_stopped(self) -> bool:
        """Whether the process was stopped (SIGSTOP, or a debugger), as far as this one can see: not in a container."""
        if self.pid is None or self.namespace:
            return False
        try:
            return _stat(self.pid)[0] in ("T", "t")
        except (OSError, IndexError):
            return False

    drains: int | None = None
    """How often the wheel had been drained when it took the lock; None for a process that does not heed pauses."""

    @property
    def is_self(self) -> bool:
        """Whether it is this process."""
        return self.pid == os.getpid() and not self.namespace

    def __str__(self) -> str:
        if self.pid is None:
            return "another process"
        if self.is_self:
            return f"this very process ({self.pid})"
        return f"process {self.pid}" + (" of another pid namespace" if self.namespace else "")


def holder(directory: Directory, *roles: str) -> Holder | None:
    """Return the holder in one of these roles, or as the keeper; None when the lock is free. Raises DiskError.

    Tests the lock, not the note, so this works across containers. The test shares the lock for a moment;
    `KeeperLock.take` waits for that.
    """
    try:
        fd = directory.disk.open(layout.LOCK, "r")
    except (FileNotFoundError, ForeignFile):
        return None
    except OSError as exc:
        raise disk_error(exc, directory.place(layout.LOCK)) from exc
    try:
        if directory.disk.is_free(fd):
            return None
        found = _note(directory.disk, fd)
    except OSError as exc:
        raise disk_error(exc, directory.place(layout.LOCK)) from exc
    finally:
        directory.disk.close(fd)
    return found if found.role in (roles or ("keeper",)) or not found.role else None


def _note(disk: Disk, fd: int) -> Holder:
    """Return the content of the note; an empty Holder unless the present holder wrote it."""
    try:
        note = json.loads(disk.pread(fd, _NOTE_BYTES, 0))
        pid, role, namespace, drains = note["pid"], note["role"], note.get("ns", ""), note.get("drains")
    except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return Holder()  # the note only names the holder
    if type(pid) is not int or pid <= 0 or type(role) is not str or type(namespace) is not str:
        return Holder()
    beat_us, asked_us, drains = (
        us if type(us) is int else None for us in map(note.get, ("beat_us", "asked_us", "drains"))
    )
    if namespace and namespace != _namespace():
        return Holder(role, pid, namespace, beat_us, asked_us, drains)
    return Holder(role, pid, "", beat_us, asked_us, drains) if _started(pid) == note.get("started") else Holder()


def _namespace() -> str:
    """Return an identifier of this process's pid namespace; "" if the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process, which tells it from a later one with the same pid; None if it is dead."""
    try:
        return _stat(pid)[19]
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return None
    except (OSError, IndexError):
        pass  # no such /proc, or too many open files: test with a signal
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # alive, owned by another user
    return ""


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat behind the name, which begin with the state. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].decode().split()
