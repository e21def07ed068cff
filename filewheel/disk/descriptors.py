"""Descriptors above those of stdin, stdout and stderr.

A program may run with these closed: a daemon, a service without a terminal. The next file that is opened gets such a
number, and whatever is written to stderr then lands in it: a warning of the interpreter would overwrite the journal. A
later `dup2` of a log file to stderr would close it.
Invariant: no file or directory that a wheel keeps open, and no pipe, has a descriptor below LEAST.
"""

from __future__ import annotations

import fcntl
import os

LEAST = 3


def raised(fd: int) -> int:
    """Return a descriptor; if it is too low, close it and return a copy that is not inherited. Raises OSError."""
    if fd >= LEAST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LEAST)
    finally:
        os.close(fd)


def pipe(flags: int = os.O_NONBLOCK) -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe; `flags` are those of pipe2(2). Raises OSError."""
    reads, writes = os.pipe2(flags | os.O_CLOEXEC)
    return raised(reads), raised(writes)
