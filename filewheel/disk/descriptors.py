"""Descriptors above those of stdin, stdout and stderr.

A program may run with these closed: a daemon, a service without a terminal. The next file that is opened gets such a
number, and whatever is written to stderr then lands in it: a warning of the interpreter would overwrite the journal. A
later `dup2` of a log file to stderr would close it.
Invariant: no function here returns a descriptor below 3.
"""

from __future__ import annotations

import fcntl
import os

_LEAST = 3


def opened(name: str, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
    """Open a file, as os.open does. Raises OSError."""
    fd = os.open(name, flags, mode, dir_fd=dir_fd)
    return fd if fd >= _LEAST else raised(fd)


def raised(fd: int) -> int:
    """Return a descriptor, or its copy with a higher number, which is not inherited; then close it. Raises OSError."""
    if fd >= _LEAST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST)
    finally:
        os.close(fd)


def pipe(flags: int = os.O_NONBLOCK) -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe; `flags` are those of pipe2(2). Raises OSError."""
    reads, writes = os.pipe2(flags | os.O_CLOEXEC)
    return raised(reads), raised(writes)
