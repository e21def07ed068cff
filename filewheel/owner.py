"""Who is the keeper: the kernel lock of keeper.lock, and a note in it that says who holds it.

The lock is the truth: it dies with its process, so a standby that waits for it takes over at once and never by a
time-out. The note is for people and for `stats`; a reader trusts it only while the process it names is alive and is
still the same one.

A lock is that of a file, and the file may be removed or replaced: then a second process gets the lock of a new one. So
the holder looks whether its file still has the name, before it fires and before it deals (`check`).
Invariant: of the processes that have an Owner that is `held`, at most one passes `check`.
"""

from __future__ import annotations

import contextlib
import json
import os

from filewheel import layout
from filewheel.directory import Directory
from filewheel.errors import Locked, disk_error

_NOTE_BYTES = 512
_DOES = {"tidy": "is tidying up", "repair": "is repairing", "backup": "is replicating to it"}


class Owner:
    """The lock of one wheel's keeper."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether this is the keeper."""
        return self._fd >= 0

    def take(self, role: str, *, wait: bool) -> None:
        """Become the keeper, waiting for the present one to end if asked to.

        Raises Locked when another process is the keeper and `wait` is false.
        """
        while True:
            fd = self._lock(role, wait=wait)
            if fd is not None:
                self._fd = fd
                return

    def _lock(self, role: str, *, wait: bool) -> int | None:
        """Lock the file; None when it was removed or replaced while this process waited for it."""
        try:
            fd = self._disk.open(layout.LOCK, "rw")
        except OSError as exc:
            raise disk_error(exc, self._dir.place(layout.LOCK)) from exc
        try:
            if not self._disk.lock(fd, wait=wait):
                pid, held_as = _note(self._dir)
                who = f"process {pid}" if pid else "another process"
                does = _DOES.get(held_as, "is the keeper")
                raise Locked(f"{who} {does}", pid=pid, role=held_as, path=self._dir.place(layout.LOCK))
            if not self._disk.is_named(fd, layout.LOCK):
                self._disk.close(fd)
                return None
            note = json.dumps({"pid": os.getpid(), "started": _started(os.getpid()), "role": role})
            with contextlib.suppress(OSError):  # it is for people: a full disk must not keep the keeper out
                self._disk.pwrite(fd, note.encode().ljust(_NOTE_BYTES) + b"\n", 0)
        except OSError as exc:
            self._disk.close(fd)
            raise disk_error(exc, self._dir.place(layout.LOCK)) from exc
        except BaseException:
            self._disk.close(fd)
            raise
        return fd

    def check(self) -> None:
        """Raise Locked when the file that is locked is not keeper.lock any more: another may be the keeper by now.

        Cost: two stats.
        """
        try:
            is_ours = self._disk.is_named(self._fd, layout.LOCK)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(layout.LOCK)) from exc
        if not is_ours:
            raise Locked(
                "the file was removed or replaced while this process held its lock: another may be the keeper now",
                pid=_note(self._dir)[0], path=self._dir.place(layout.LOCK),
                hint="start the keeper again; nobody has to remove this file, it goes with no lock left behind",
            )  # fmt: skip

    def release(self) -> None:
        """Stop being the keeper."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # it is for people: the lock is what counts
                self._disk.pwrite(self._fd, b"{}".ljust(_NOTE_BYTES) + b"\n", 0)
            self._disk.close(self._fd)
            self._fd = -1


def holder(directory: Directory, *roles: str) -> int | None:
    """Return the id of the process that holds the lock in one of these roles, or as the keeper. Takes no lock.

    That is as its note gives it, if that process lives.
    """
    pid, role = _note(directory)
    return pid if role in (roles or ("keeper",)) else None


def _note(directory: Directory) -> tuple[int | None, str]:
    """Return who holds the lock as the note gives it, and as what, if that process lives."""
    try:
        fd = directory.disk.open(layout.LOCK, "r")
    except OSError:
        return None, ""  # it only says who holds the lock, never whether it is held
    try:
        note = json.loads(directory.disk.pread(fd, _NOTE_BYTES, 0))
        pid, role = note["pid"], note["role"]
        alive = isinstance(pid, int) and pid > 0 and _started(pid) == note["started"]
        return (pid, str(role)) if alive else (None, "")
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""  # likewise
    finally:
        directory.disk.close(fd)


def _started(pid: int) -> str | None:
    """Return what tells this process from a later one with the same id; None when it does not live."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return None
    except (OSError, IndexError):
        pass  # no such /proc here, or no room to open it: ask with a signal
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it lives, and belongs to another user
    return ""
