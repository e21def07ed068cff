"""What a command has from its parent, made fit for use before anything else: standard streams and signals.

A parent may have closed the streams, left them so that they never wait (ssh, node and CI runners do), blocked signals,
or ignored SIGCHLD, which hides each exit code. All of this survives fork and exec. What a parent ignores on purpose
(SIGINT in a script's background, SIGHUP under nohup) stays ignored. docs/operations.md lists everything inherited.
Invariant: after `settle` the descriptors 0, 1 and 2 are open, and a write to one is whole or an error; to stderr it is
never an error, so that no message, nor Python's last flush, changes the exit code.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from typing import Any, TextIO


def settle() -> None:
    """Set up the standard streams and the signals of this process. Call it first of all."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:  # the next file that is opened would get its number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(fd, mode, closefd=False))
        setattr(sys, name, _patient(getattr(sys, name)))


def _patient(stream: TextIO) -> TextIO:
    """Return a stream of the same descriptor that waits where the descriptor does not."""
    raw = _Patient(stream.fileno(), "r" if stream.readable() else "w", closefd=False)
    buffer: Any = io.BufferedReader(raw) if stream.readable() else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, stream.encoding, stream.errors,
        line_buffering=bool(stream.line_buffering or getattr(stream, "write_through", False)),
    )  # fmt: skip


class _Patient(io.FileIO):
    """A file that waits until it can be read or written.

    O_NONBLOCK belongs to all processes that share a pipe, and any of them may set it at any time. So it is neither
    looked at nor changed here. Without this a buffer loses what the pipe has no room for.
    """

    def write(self, data: Any) -> int:
        try:
            while (done := super().write(data)) is None:
                self._wait(select.POLLOUT)
        except OSError:
            if self.fileno() != 2:
                raise
            return len(data)  # a full disk, or a reader that has gone
        return done

    def readinto(self, buffer: Any) -> int:
        while (got := super().readinto(buffer)) is None:
            self._wait(select.POLLIN)
        return got

    def read(self, size: int | None = -1) -> bytes:
        return io.RawIOBase.read(self, -1 if size is None else size) or b""

    def readall(self) -> bytes:
        return io.RawIOBase.readall(self)

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self.fileno(), event)
        poll.poll()
