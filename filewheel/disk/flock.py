"""Kernel locks of open files: portalocker's, with the errors of the system.

A separate module because its import takes as long as the rest of filewheel, and readers need no lock.
Invariant: the open file holds the lock, so the lock ends with the process, even after a crash.
"""

from __future__ import annotations

import errno

import portalocker

_WAITING = portalocker.LockFlags.EXCLUSIVE
_AT_ONCE = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_SHARED = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING


def take(fd: int, *, wait: bool = False) -> bool:
    """Take the exclusive lock of an open file; False when another process has it. Raises OSError."""
    return _take(fd, _WAITING if wait else _AT_ONCE)


def share(fd: int) -> bool:
    """Take the shared lock of an open file; False when it is held exclusively. Raises OSError."""
    return _take(fd, _SHARED)


def _take(fd: int, flags: portalocker.LockFlags) -> bool:
    try:
        portalocker.lock(fd, flags)
    except portalocker.AlreadyLocked:
        return False
    except portalocker.LockException as exc:
        if isinstance(exc.__cause__, BlockingIOError):
            return False
        raise OSError(errno.ENOLCK, f"cannot lock: {exc}") from exc
    return True


def let_go(fd: int) -> None:
    """Release the lock of an open file. Raises OSError."""
    try:
        portalocker.unlock(fd)
    except portalocker.LockException as exc:
        raise OSError(errno.ENOLCK, f"cannot unlock: {exc}") from exc
