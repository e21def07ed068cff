"""The parent's side of one process of the pool: its two pipes, its end, and how it is ended.

Nothing here waits: the pipes are read and written as far as they go, and the pool's collector is told by the kernel
when they go further. The end of a process is known from the kernel (a pidfd), not from the end of a pipe, since a
program that the handler started may hold the pipe open long after.
Invariant: a process has at most one call; `release` gives back every descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
import struct
import termios
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

from filewheel.scheduling.runners.pool_frame import Frames
from filewheel.scheduling.runners.pool_worker import serve

STATUS_WAIT_S = 0.05
CHUNK_BYTES = 1 << 16  # what a pipe holds
PIPE_BYTES_MAX = 1 << 20


class PoolProcess:
    """One process of the pool."""

    def __init__(self, context: SpawnContext | ForkServerContext, init: str | None) -> None:
        """Start it. Cost: some milliseconds here, and about 0.1 s until it is ready. Raises OSError."""
        with contextlib.ExitStack() as undo:
            child_reads, self._requests = _pipe(undo)
            self._answers, child_writes = _pipe(undo)
            for end in (self._requests, self._answers):
                os.set_blocking(end.fileno(), False)
            self._process: BaseProcess = context.Process(
                target=serve, args=(child_reads, child_writes, os.getpid(), init), name="filewheel-pool", daemon=True
            )
            with _without_ctrl_c() if isinstance(context, SpawnContext) else contextlib.nullcontext():
                self._process.start()
            undo.pop_all()
        child_reads.close()
        child_writes.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.requests_fd = self._requests.fileno()
        self.answers_fd = self._answers.fileno()
        self._pidfd = _pidfd(self.pid) if isinstance(context, SpawnContext) else None
        # A fork server tells the end of its children itself, and has reaped them by then.
        self.end_fd: int = self._process.sentinel if self._pidfd is None else self._pidfd
        self._frames = Frames()
        self._unsent: memoryview = memoryview(b"")

    def send(self, call: bytes) -> bool:
        """Write a call as far as it goes; return whether all went. Raises OSError when nobody can read it."""
        self._unsent = memoryview(call)
        return self.send_more()

    def send_more(self) -> bool:
        """Go on writing; return whether all has gone. Raises OSError."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self.requests_fd, self._unsent) :]
        return not self._unsent

    def receive(self) -> bool:
        """Read what is there, at most a pipe's worth; return False at the end of the pipe."""
        try:
            data = os.read(self.answers_fd, CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._frames.feed(data)
        return bool(data)

    def receive_rest(self) -> None:
        """Read what there is, as much as a pipe can hold."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(PIPE_BYTES_MAX // CHUNK_BYTES):
                data = os.read(self.answers_fd, CHUNK_BYTES)
                if not data:
                    return
                self._frames.feed(data)

    def take(self) -> bytes | None:
        """Return the next answer that was received whole, or None. Raises BrokenFrame."""
        return self._frames.take()

    def never_began(self) -> bool:
        """Return whether a process that has ended did not begin its last call: the byte that begins it was not read."""
        if self._unsent:
            return True
        try:
            size = fcntl.ioctl(self.requests_fd, termios.FIONREAD, struct.pack("i", 0))
        except OSError:
            return False  # unknown: as if it had
        return bool(struct.unpack("i", size)[0])

    def dismiss(self) -> None:
        """Let it end by itself: its pipe of calls ends."""
        self._requests.close()

    def terminate(self) -> None:
        """Ask it to end. Nothing happens if it has."""
        if self._process.exitcode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it. Nothing happens if it has."""
        if self._process.exitcode is None:
            self._process.kill()

    def exit_status(self) -> str:
        """Return how a process that has ended did: a signal's name or an exit code."""
        if self._process.exitcode is None:
            # Another thread is just asking the kernel for the same, or something in this program reaps all children.
            self._process.join(STATUS_WAIT_S)
        code = self._process.exitcode
        if code is None:
            return "unknown"
        if code >= 0:
            return str(code)
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"  # a real-time signal has no name

    def release(self) -> None:
        """Close what belongs to a process that has ended."""
        for end in (self._requests, self._answers):
            if not end.closed:
                end.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        with contextlib.suppress(ValueError):  # its status is unknown to multiprocessing
            self._process.close()


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C for the process that is started: until it ignores it itself, one would end it amid its imports."""
    # Its start would unblock the signal; and it must not inherit what is meant for the pool's processes.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _pipe(undo: contextlib.ExitStack) -> tuple[Connection, Connection]:
    reads, writes = multiprocessing.Pipe(duplex=False)
    undo.callback(reads.close)
    undo.callback(writes.close)
    return reads, writes


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
