"""java.util.concurrent.ScheduledThreadPoolExecutor, as a concurrent.futures.Executor: a heap and a pool of threads.

The threads take from one DelayQueue: one of them is the leader for the next due time. A task that raises harms no
other; its error is in its future. A periodic task is put back with its next due time after each call, so that no two
calls of it overlap.
Invariant: each future ends: with a result, an error, or cancelled. At the interpreter's exit what is due is called, as
by a ThreadPoolExecutor, and the rest is cancelled.
"""

from __future__ import annotations

import os
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from filewheel.checks import check_done, check_flag, check_whole
from filewheel.env import SYSTEM_CLOCK, Clock, Condition
from filewheel.errors import Closed, DiskError
from filewheel.timers.delay_queue import DelayQueue
from filewheel.timers.entry import Entry
from filewheel.timers.steady import Delay, bound, delay_ns, period_ns
from filewheel.timers.workers import Workers

P = ParamSpec("P")
Result = TypeVar("Result")


class FutureCondition(type(threading.RLock()), Condition):  # type: ignore[misc]
    """The condition of a future, and its lock: its `with` is the lock's own, in which Ctrl-C leaves no lock held."""

    def __init__(self) -> None:
        self._gates = []

    @property
    def _lock(self) -> FutureCondition:
        return self


class ScheduledFuture(Future[Result]):
    """The future of a scheduled call. That of a periodic task is pending until it is cancelled or a call raises."""

    def __init__(self, queue: DelayQueue[ScheduledFuture[Any]], call: Callable[[], Result], due_ns: int) -> None:
        super().__init__()
        self._condition = FutureCondition()
        self.due_ns = due_ns
        """When it is called next, in nanoseconds of the steady clock."""
        self._period_ns = 0  # above 0: from due to due; below: from the end of a call to the next due
        self._queue = queue
        self._call: Callable[[], Result] | None = call
        self._entry: Entry[ScheduledFuture[Any]] | None = None

    @property
    def is_periodic(self) -> bool:
        """Whether this is called again and again."""
        return self._period_ns != 0

    def cancel(self) -> bool:
        """Cancel this, and remove it from the queue; False if a call that is no periodic one has begun or ended.

        A periodic task is not called again; a call that runs goes on.
        """
        if not super().cancel():
            return False
        self._leave()
        return True

    def _leave(self) -> None:
        """Leave the queue after a cancel. Of the threads that see it, the one that removes it notifies its waiters."""
        entry = self._entry
        if entry is not None and self._queue.remove(entry):
            self.set_running_or_notify_cancel()
            self._call = None

    def _put(self) -> None:
        self._entry = self._queue.put_at(self, self.due_ns)
        if self.cancelled():  # between the last call and here: that cancel found the entry before
            self._leave()

    def _run(self) -> None:
        """Call this once, in a thread of the pool."""
        if self._period_ns:
            self._run_periodic()
        elif self.set_running_or_notify_cancel():
            call, self._call = self._call, None
            assert call is not None
            try:
                result = call()
            except BaseException as exc:
                self.set_exception(exc)
            else:
                self.set_result(result)
        else:
            self._call = None

    def _run_periodic(self) -> None:
        call = self._call
        if call is not None and not self.cancelled() and not self._queue.is_ending:
            try:
                check_done("it", call())
            except BaseException as exc:
                self._call = None
                if self.set_running_or_notify_cancel():
                    self.set_exception(exc)
                return
            if not self.cancelled():
                self.due_ns = self._next_due_ns()
                try:
                    self._put()
                    return
                except Closed:
                    pass  # a shutdown during the call: this was the last one
        super().cancel()
        self._call = None
        self.set_running_or_notify_cancel()

    def _next_due_ns(self) -> int:
        now_ns = self._queue.now_ns()
        if self._period_ns < 0:
            return now_ns - self._period_ns
        # The calls that this one overran are left out: they would only pile up.
        overran = max(0, now_ns - self.due_ns) // self._period_ns
        return self.due_ns + (1 + overran) * self._period_ns


class ScheduledExecutor(Executor):
    """A pool of threads that calls functions after delays and periodically. Thread-safe.

    schedule O(log n); cancel O(1) on average. Cancelled calls leave the heap at once or, in the middle of it, before
    they are more than the pending ones and more than 64; their functions are released at once. An executor that is
    dropped calls what is pending, periodic tasks excepted, and then its threads end.
    """

    def __init__(self, max_workers: int | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make an executor of at most this many threads, by default as many as ThreadPoolExecutor's.

        The first calls start them. Raises BadArgument.
        """
        count = min(32, (os.cpu_count() or 1) + 4) if max_workers is None else max_workers
        self._count = check_whole("max_workers", count)
        self._queue: DelayQueue[ScheduledFuture[Any]] = DelayQueue(clock=clock, name="ScheduledExecutor")
        self._workers = Workers("ScheduledExecutor", partial(_finish_due, self._queue))
        self._starting = threading.RLock()
        weakref.finalize(self, self._queue.finish).atexit = False

    def submit(self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> ScheduledFuture[Result]:
        """Call a function as soon as a thread is free. Raises BadArgument, Closed, Forked, DiskError."""
        return self.schedule(0, fn, *args, **kwargs)

    def schedule(
        self, delay: Delay, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduledFuture[Result]:
        """Call a function once, after a delay. Raises BadArgument, Closed after a shutdown, Forked, DiskError."""
        return self._schedule(delay_ns("delay", delay), 0, bound(fn, args, kwargs))

    def schedule_at_fixed_rate(
        self, initial_delay: Delay, period: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduledFuture[None]:
        """Call a function after a delay and then at each multiple of a period, until it raises or is cancelled.

        The multiples that a call overran are left out. Raises as `schedule`.
        """
        call = bound(fn, args, kwargs)
        return self._schedule(delay_ns("initial_delay", initial_delay), period_ns("period", period), call)

    def schedule_with_fixed_delay(
        self, initial_delay: Delay, delay: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> ScheduledFuture[None]:
        """Call a function after a delay, and again after the other delay from the end of each call. As a fixed rate."""
        call = bound(fn, args, kwargs)
        return self._schedule(delay_ns("initial_delay", initial_delay), -period_ns("delay", delay), call)

    def _schedule(self, wait_ns: int, period: int, call: Callable[[], Any]) -> ScheduledFuture[Any]:
        self.prestart()  # before the put: a shutdown that comes after it waits for this thread
        future: ScheduledFuture[Any] = ScheduledFuture(self._queue, call, self._queue.now_ns() + wait_ns)
        future._period_ns = period
        future._put()
        return future

    def prestart(self) -> None:
        """Start a thread now, unless there are `max_workers`. Raises Forked, and DiskError if there is none at all."""
        self._queue.check()
        if len(self._workers) < self._count and not self._queue.is_ending:
            with self._starting:
                if len(self._workers) < self._count:  # another thread may have been here
                    try:
                        self._workers.start(partial(_work, self._queue))
                    except DiskError:
                        if not len(self._workers):
                            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no further calls; periodic tasks are cancelled, and with `cancel_futures` all that is pending.

        With `wait`, return when every other call has ended: one that is due in an hour, in an hour.
        """
        check_flag("wait", wait)
        check_flag("cancel_futures", cancel_futures)
        self._queue.finish()
        _cancel(self._queue, lambda future: cancel_futures or future.is_periodic)
        if wait:
            self._workers.join()

    def __repr__(self) -> str:
        return f"<ScheduledExecutor: {len(self)} pending>"

    def __len__(self) -> int:
        """Return how many calls are pending."""
        return len(self._queue)


def _work(queue: DelayQueue[ScheduledFuture[Any]]) -> None:
    while True:
        try:
            future = queue.take()
        except Closed:
            return
        try:
            future._run()
        except BaseException:  # of a callback of the future, when a handler of the log raised too
            traceback.print_exc()
        del future  # or it would be held until the next one is due


def _finish_due(queue: DelayQueue[ScheduledFuture[Any]]) -> None:
    """Let the threads call what is due, and cancel the rest."""
    queue.finish()
    now_ns = queue.now_ns()
    _cancel(queue, lambda future: future.is_periodic or future.due_ns > now_ns)


def _cancel(queue: DelayQueue[ScheduledFuture[Any]], is_unwanted: Callable[[ScheduledFuture[Any]], bool]) -> None:
    for entry in queue.entries():
        if is_unwanted(entry.item):
            entry.item._entry = entry  # Ctrl-C in its start may have taken it
            entry.item.cancel()
