"""Descriptors above those of stdin, stdout and stderr.

A program may run with these closed: a daemon, a service without a terminal. The next file that is opened gets such a
number, and whatever is written to stderr then lands in it: a warning of the interpreter would overwrite the journal. A
later `dup2` of a log file to stderr would close it.
Invariant: no file or directory that a wheel keeps open, and no pipe, has a descriptor below LEAST.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select

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


class Waker:
    """A pipe through which another thread, or a signal handler, ends a wait."""

    def __init__(self) -> None:
        """Raises OSError if two files cannot be opened."""
        self.fd, self._writes = pipe()

    def wake(self) -> None:
        """End the wait, or the next one. Does nothing once it is closed."""
        if self._writes >= 0:
            with contextlib.suppress(BlockingIOError):  # the pipe is full of wakes
                os.write(self._writes, b"\0")

    def wait(self, timeout_s: float, bell: int | None = None) -> None:
        """Sleep until a wake, the time-out, or the last reader of the pipe with the writing end `bell` closes it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if bell is not None:
            poll.register(bell, 0)  # errors are always reported
        if any(fd == self.fd for fd, _ in poll.poll(timeout_s * 1000)):
            self.clear()

    def clear(self) -> None:
        """Read the wakes."""
        os.read(self.fd, 1 << 16)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.fd)
        os.close(self._writes)
        self._writes = -1
