"""The parent's side of one process of the pool: its start, its two pipes, its end.

Only `look` and `end` wait. The kernel reports the end of a process through a pidfd; the end of the pipe is not enough,
because a program that the handler started may hold the pipe open.
Invariant: a process has at most one call; `release` closes every descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import secrets
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

from filewheel.disk.descriptors import Waker, pipe
from filewheel.scheduling.runners.child import BEGIN, PIPE_LOST, TOKEN_BYTES, frame, serve, take

KILL_AFTER_S = 1  # from SIGTERM to SIGKILL
_STATUS_LOOKS, _STATUS_LOOK_S = 50, 0.001
_POLL_MS_MAX = 1 << 30
_CHUNK_BYTES = 1 << 16  # the capacity of a pipe
_PIPE_BYTES_MAX = 1 << 20
_SPAWN = multiprocessing.get_context("spawn")


class Process:
    """One process of the pool."""

    def __init__(self, waker: Waker) -> None:
        """Start it. Cost: some milliseconds here, and about 0.1 s until it is ready. Raises OSError."""
        try:
            os.getcwd()  # it is told to start there
        except FileNotFoundError as exc:
            raise OSError(exc.errno, "the working directory was removed: start the program again, in another") from exc
        self._waker = waker
        self._token = secrets.token_bytes(TOKEN_BYTES)
        with contextlib.ExitStack() as undo:
            child_reads, self._requests = _pipe(undo)
            self._answers, child_writes = _pipe(undo)
            for end in (self._requests, self._answers):
                os.set_blocking(end.fileno(), False)
            args = child_reads, child_writes, self._token, os.getpid()
            self._process = _SPAWN.Process(target=serve, args=args, name="filewheel-pool", daemon=True)
            with _blocked_signals():
                self._process.start()
            undo.pop_all()
        child_reads.close()
        child_writes.close()
        self._pidfd = _pidfd(self._process.pid or 0)
        self._end_fd: int = self._process.sentinel if self._pidfd is None else self._pidfd
        self._answers_fd = self._answers.fileno()
        self._number = 0  # of the last call; a process that is ready writes the number 0
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self.answered = 0
        """How many calls it has answered."""
        self.imported: set[tuple[str, ...]] = set()
        """The functions, of one call each, that it has imported."""
        self.has_ended = False
        self.is_lost = False
        """One of its pipes has ended: it gets no more calls."""
        self._poll = select.poll()
        for fd in (self._answers_fd, self._end_fd, waker.fd):
            self._poll.register(fd, select.POLLIN)

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    @property
    def had_calls(self) -> bool:
        """Whether it was given any calls."""
        return self._number > 0

    def resident_bytes(self) -> int:
        """Return how much memory it has now; 0 where the system does not say."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def send(self, call: bytes) -> None:
        """Start to write a call; `look` writes the rest."""
        self._number += 1
        self._unsent = memoryview(frame(self._token, self._number, call, BEGIN))
        self._write()
        if self._unsent and not self.is_lost:
            self._poll.register(self._requests, select.POLLOUT)

    def look(self, wait_us: int) -> bytes | None:
        """Wait for an answer, the end of the process, or a wake, at most this long; return the answer if there is one.

        Raises BrokenFrame.
        """
        for fd, _ in self._poll.poll(max(0, min(-(-wait_us // 1000), _POLL_MS_MAX))):
            if fd == self._waker.fd:
                self._waker.clear()
            elif fd == self._end_fd:
                self.has_ended = True
                self._read()
            elif fd == self._answers_fd:
                self._read()
            else:
                self._write()
                if self.is_lost or not self._unsent:
                    self._poll.unregister(fd)
        while (answer := take(self._received, self._token)) is not None:
            if answer[0] == self._number:
                return answer[1]
        return None

    def never_began(self) -> bool:
        """Return whether a process ended before it began its last call: it did not read the byte after the call."""
        if self._unsent:
            return True
        try:
            size = fcntl.ioctl(self._requests, termios.FIONREAD, struct.pack("i", 0))
        except OSError:
            return False  # unknown: a call that may have begun counts as begun
        return bool(struct.unpack("i", size)[0])

    def end(self, leave_s: float = 0) -> str:
        """Wait this long for it to exit, then kill it; return its exit status."""
        self._requests.close()
        if not (leave_s and self._has_ended_in(leave_s)):
            self._process.terminate()
            if not self._has_ended_in(KILL_AFTER_S):
                self._process.kill()
                self._has_ended_in(None)
        return self.exit_status()

    def exit_status(self) -> str:
        """Return the exit status of a process that has ended: a signal's name or an exit code."""
        for _ in range(_STATUS_LOOKS):
            # None: another thread is reading it right now, or the program reaps all its children itself.
            if (code := self._process.exitcode) is not None:
                break
            time.sleep(_STATUS_LOOK_S)
        if code is None:
            return "unknown"
        if code >= 0:
            return str(code)
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"  # a real-time signal has no name

    def release(self) -> None:
        """Close the descriptors of a process that has ended."""
        for end in (self._requests, self._answers):
            end.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        with contextlib.suppress(ValueError):  # multiprocessing does not know its status
            self._process.close()

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._requests.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.is_lost = True

    def _read(self) -> None:
        """Read the available bytes, at most as many as a pipe can hold."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PIPE_BYTES_MAX // _CHUNK_BYTES):
                data = os.read(self._answers_fd, _CHUNK_BYTES)
                self._received += data
                if not data:
                    self.is_lost = True
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(self._answers_fd)
                if not data or (len(data) < _CHUNK_BYTES and not self.has_ended):
                    return

    def _has_ended_in(self, wait_s: float | None) -> bool:
        if not self.has_ended:
            poll = select.poll()
            poll.register(self._end_fd, select.POLLIN)
            self.has_ended = bool(poll.poll(None if wait_s is None else wait_s * 1000))
        return self.has_ended


def end_text(status: str) -> str:
    """Return an exit status as a sentence."""
    if status == str(PIPE_LOST):
        return "its process lost the pipe to the pool; did the function close or read foreign descriptors?"
    if status == "SIGKILL":
        return "its process ended by SIGKILL: sent by a program, or by the kernel because memory ran out"
    if status.startswith(("SIG", "signal")):
        return f"its process ended by {status}"
    return f"its process ended with exit code {status}"


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM in the started process until it heeds neither: they would end it during its imports."""
    # The tracker is started first: its start unblocks the signals, and it must not inherit the blocked ones.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pipe(undo: contextlib.ExitStack) -> tuple[Connection, Connection]:
    ends = pipe(0)
    reads, writes = Connection(ends[0], writable=False), Connection(ends[1], readable=False)
    undo.callback(reads.close)
    undo.callback(writes.close)
    return reads, writes


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
