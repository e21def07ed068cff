"""What commands write to stderr: passed on as it comes, and its end kept.

Each command gets a pipe as its stderr. One thread reads all pipes and writes to our own stderr at once. The end of a
command's output is taken when it has ended; a program that it left behind keeps its pipe, and is passed on until `run`
ends.
Invariant: at most 8 KiB of a command's output are in memory, and nothing here waits for the end of a pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

_KEPT = 4096
_CHUNK = 1 << 16
_DRAINED = 1 << 20
"""The most bytes that `end` reads: a pipe holds less, but a program left behind may go on writing."""
_PATIENCE_S = 1.0
"""How long `end` waits for the thread, which may be writing to a stderr that nobody reads."""
STDERR = 2


class StderrTail:
    """One command's stderr."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        """The ends of the pipe; the caller closes `writes` when the command has it."""
        os.set_blocking(self.reads, False)
        self.kept = bytearray()
        self.lock = threading.Lock()
        self.has_ended = False

    def take(self) -> int:
        """Read what has come, pass it on, and keep its end; return the number of bytes. Call it with the lock."""
        if self.has_ended:
            return 0
        try:
            data = os.read(self.reads, _CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.has_ended = True
            return 0
        self.kept += data
        if len(self.kept) > 2 * _KEPT:
            del self.kept[:-_KEPT]
        _pass_on(data)
        return len(data)


class Tails:
    """Passes on the stderr of commands. `close` ends it."""

    def __init__(self) -> None:
        self._tails: dict[int, StderrTail] = {}
        self._poll = select.poll()
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._poll.register(self._wakes, select.POLLIN)
        self._thread = threading.Thread(target=self._work, name="filewheel-stderr", daemon=True)
        self._thread.start()

    def add(self) -> StderrTail:
        """Make a pipe for a command. Raises OSError."""
        tail = StderrTail()
        self._tails[tail.reads] = tail
        self._poll.register(tail.reads, select.POLLIN)
        with contextlib.suppress(BlockingIOError):  # it is woken already
            os.write(self._wake, b"\0")  # the thread polls again, with this pipe
        return tail

    def end(self, tail: StderrTail) -> bytes:
        """Return the end of what a command wrote, which has ended: all of it was passed on."""
        if not tail.lock.acquire(timeout=_PATIENCE_S):
            return bytes(tail.kept[-_KEPT:])
        try:
            left = _DRAINED
            while left > 0 and (count := tail.take()):
                left -= count
            return bytes(tail.kept[-_KEPT:])
        finally:
            tail.lock.release()

    def close(self) -> None:
        """End the thread, unless it waits for the reader of our stderr."""
        os.close(self._wake)
        self._thread.join(_PATIENCE_S)

    def _work(self) -> None:
        is_open = True
        while is_open:
            for fd, _ in self._poll.poll():
                if fd == self._wakes:
                    is_open = bool(os.read(self._wakes, _CHUNK))
                    continue
                tail = self._tails[fd]
                with tail.lock:
                    tail.take()
                    if tail.has_ended:
                        self._forget(tail)
        for tail in list(self._tails.values()):
            with tail.lock:
                self._forget(tail)
        os.close(self._wakes)

    def _forget(self, tail: StderrTail) -> None:
        tail.has_ended = True  # before the close: another file may get the number
        self._poll.unregister(tail.reads)
        del self._tails[tail.reads]
        os.close(tail.reads)


def _pass_on(data: bytes) -> None:
    """Write to our stderr. A reader that has gone is no matter of the command."""
    rest = memoryview(data)
    with contextlib.suppress(OSError):
        while rest:
            try:
                rest = rest[os.write(STDERR, rest) :]
            except BlockingIOError:
                select.select([], [STDERR], [], _PATIENCE_S)
