"""Kernel locks of open files: portalocker's, with the errors of the system.

A module of its own because its import takes as long as all of filewheel's others, and readers need no lock.
Invariant: what holds a lock is the open file, so it goes with the process, however that ends.
"""

from __future__ import annotations

import errno

import portalocker

_WAITING = portalocker.LockFlags.EXCLUSIVE
_AT_ONCE = portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING
_SHARED = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING


def take(fd: int, *, wait: bool = False) -> bool:
    """Take the lock of an open file, alone; False when another has it. Raises OSError."""
    return _take(fd, _WAITING if wait else _AT_ONCE)


def share(fd: int) -> bool:
    """Take the lock of an open file with others that share it; False when one has it alone. Raises OSError."""
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
    """Let go of the lock of an open file. Raises OSError."""
    try:
        portalocker.unlock(fd)
    except portalocker.LockException as exc:
        raise OSError(errno.ENOLCK, f"cannot unlock: {exc}") from exc
