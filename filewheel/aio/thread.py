"""One thread that makes blocking calls for an event loop, in order.

An event loop must not wait for a disk, and a thread for each call would cost more than the call. So calls queue for one
thread, and each result returns to the loop as a future. A call that is cancelled before it starts is not made; a
cancelled running call ends, and its result is dropped.
Invariant: every future that `call` returned is resolved, unless it was cancelled or its loop was closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Protocol, TypeVar

from filewheel.disk.threads import started
from filewheel.errors import Closed, Forked, OtherLoop, disk_errors

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[], object]


class LoopThread:
    """A thread that works for the event loop in which it was made."""

    def __init__(self, name: str, path: str) -> None:
        """Start the thread. `path` is for errors. Raises DiskError when no thread can be started."""
        self.loop = asyncio.get_running_loop()
        self._path = path
        self._pid = os.getpid()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._last: asyncio.Future[None] | None = None
        # It references only the queue, so that an unclosed owner can be collected, which ends the thread.
        with disk_errors(path):
            self._thread = started(threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True))

    @property
    def is_running(self) -> bool:
        """Whether the thread takes calls: in this process, and before its end."""
        return self._last is None and os.getpid() == self._pid

    def check(self) -> None:
        """Raise Forked, OtherLoop or Closed unless this loop can give calls to the thread."""
        self._check_home()
        if self._last is not None:
            raise Closed("this is closed", path=self._path, hint="open it again")

    def _check_home(self) -> None:
        if os.getpid() != self._pid:
            raise Forked("this was opened by the parent process", path=self._path, hint="open it after the fork")
        if asyncio.get_running_loop() is not self.loop:
            raise OtherLoop(
                "this was opened in another event loop",
                path=self._path,
                hint="open an AsyncWheel in each event loop, or use Wheel, which threads can share",
            )

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Have the thread call a function; return the future of its result."""
        self.check()
        return self._give(function)

    def _give(self, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = self.loop
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            if future.cancelled():
                return
            try:
                result = function()
            except BaseException as exc:  # any class, because a task waits for it
                # Without this frame, which references the future: a reference cycle.
                trace = exc.__traceback__
                call_soon(loop, fail, future, exc.with_traceback(trace.tb_next if trace else None))
            else:
                call_soon(loop, resolve, future, result)

        self._jobs.put(job)
        return future

    def post(self, function: Job) -> bool:
        """Have the thread call a function, without a result; return False after the end. From any thread."""
        if not self.is_running:
            return False
        self._jobs.put(function)
        return True

    async def finish(self, last: Job) -> None:
        """Call `last` after all earlier calls, end the thread, and return (or raise) when it has ended.

        A cancellation is raised after that. Several callers wait for the same end.
        """
        self._check_home()
        if self._last is None:
            self._last = self._give(lambda: (last(), None)[1])
            self._jobs.put(None)
        try:
            await to_the_end(self._last)
        finally:
            self._thread.join()  # returns at once
        self._last.result()

    def abandon(self, last: Job) -> None:
        """End the thread as `finish` does, without waiting: for an owner that is collected without being closed."""
        if self.post(last):
            self._jobs.put(None)


def _serve(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception:
            log.exception("a call without a waiting task failed")
        del job  # or it would live until the next one


class Closable(Protocol):
    """An object that a thread may have opened for a cancelled task."""

    def close(self) -> None:
        """Close it."""


def close_each(made: Iterable[Closable]) -> None:
    """Close the objects that were made before the call."""
    for each in made:
        each.close()


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """Have the loop call a function soon; does nothing after the loop was closed, because no task waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Resolve a future unless it was cancelled."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[T], exc: BaseException) -> None:
    """Fail a future unless it was cancelled."""
    if not future.done():
        future.set_exception(exc)


async def to_the_end(future: asyncio.Future[T]) -> None:
    """Wait until a future is done, even if the waiting task is cancelled; then raise the cancellation."""
    interrupted: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as exc:
            interrupted = exc
    if interrupted is not None:
        future.exception()  # retrieved, so that asyncio does not log it: the cancellation is raised instead
        raise interrupted
