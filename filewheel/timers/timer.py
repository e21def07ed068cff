"""java.util.Timer: a heap and one thread, with its two faults.

A slow task delays every later one. A task that raises ends the timer, and all that was pending is lost. A program takes
`ScheduledExecutor`, which has neither fault; this class is here to show them, and for programs that come from Java.
Invariant: tasks are called one after the other, in the order of due times.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec

from filewheel.checks import check_done
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import Closed
from filewheel.timers.delay_queue import DelayQueue
from filewheel.timers.entry import EXPIRED, PENDING, STOPPED
from filewheel.timers.steady import Delay, delay_ns, period_ns
from filewheel.timers.task import TimerTask
from filewheel.timers.workers import Workers

P = ParamSpec("P")


class Timer:
    """One thread that calls functions at their times. Take `ScheduledExecutor` instead: see the two faults above.

    schedule O(log n); cancel O(1) on average. A dropped timer calls what is pending, and then its thread ends.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make a timer. Its thread starts with the first task."""
        self._loop = _Loop(clock)
        weakref.finalize(self, self._loop.queue.finish).atexit = False

    def schedule(self, delay: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> TimerTask:
        """Call a function once, after a delay.

        Raises BadArgument, Closed when the timer has ended, Forked, DiskError.
        """
        return self._loop.add(delay_ns("delay", delay), 0, fn, args, kwargs)

    def schedule_at_fixed_rate(
        self, delay: Delay, period: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> TimerTask:
        """Call a function after a delay, then at each multiple of a period. As in Java, calls that are late are made up
        for, one right after the other. Raises as `schedule`.
        """
        return self._loop.add(delay_ns("delay", delay), period_ns("period", period), fn, args, kwargs)

    def schedule_with_fixed_delay(
        self, delay: Delay, period: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> TimerTask:
        """Call a function after a delay, then a period after the begin of each call.

        Java's `schedule` with a period.
        """
        return self._loop.add(delay_ns("delay", delay), -period_ns("period", period), fn, args, kwargs)

    def cancel(self) -> list[TimerTask]:
        """End the timer, and return the tasks that were pending. A call that runs, or is just beginning, goes on."""
        return self._loop.end()

    def __len__(self) -> int:
        """Return how many tasks are pending."""
        return len(self._loop.queue)


class _Loop:
    """What the thread has of a timer."""

    def __init__(self, clock: Clock) -> None:
        self.queue: DelayQueue[TimerTask] = DelayQueue(clock=clock, name="Timer")
        self._workers = Workers("Timer", partial(_Loop.end, self))
        self._lock = threading.RLock()
        self._failure: BaseException | None = None

    def add(self, wait_ns: int, period: int, fn: Callable[..., Any], args: Any, kwargs: Any) -> TimerTask:
        task = TimerTask(self, self.queue.now_ns() + wait_ns, fn, args, kwargs)
        task.period_ns = period
        with self._lock:
            try:
                task.entry = self.queue.put_at(task, task.due_ns)
            except Closed:
                raise self._closed() from self._failure
            if not len(self._workers):
                try:
                    self._workers.start(self.run)
                except BaseException:
                    self.cancel(task)
                    raise
        return task

    def _closed(self) -> Closed:
        if self._failure is None:
            return Closed("this timer was cancelled", hint="make another Timer")
        return Closed(
            f"this timer ended when a task raised {self._failure!r}", hint="a ScheduledExecutor, which goes on"
        )

    def cancel(self, task: TimerTask) -> bool:
        with self._lock:
            if task.state is not PENDING:
                return False
            task.settle(STOPPED)
            if task.entry is not None:
                self.queue.remove(task.entry)
            return True

    def end(self) -> list[TimerTask]:
        with self._lock:
            tasks = self.queue.close()
            for task in tasks:
                if task.state is PENDING:
                    task.settle(STOPPED)
        return tasks

    def run(self) -> None:
        while True:
            try:
                task = self.queue.take()
            except Closed:
                return
            with self._lock:
                call = task.call if task.period_ns else task.settle(EXPIRED) if task.state is PENDING else None
                if call is not None and task.period_ns:
                    self._put_back(task)
            if call is not None:
                try:
                    check_done("it", call())
                except BaseException as exc:
                    self._failure = exc
                    self.end()
                    raise  # to threading.excepthook: the thread ends, and the timer with it
            del task, call

    def _put_back(self, task: TimerTask) -> None:
        """Put a periodic task back, before its call as Java does."""
        task.due_ns = task.due_ns + task.period_ns if task.period_ns > 0 else self.queue.now_ns() - task.period_ns
        try:
            task.entry = self.queue.put_at(task, task.due_ns)
        except Closed:
            task.settle(STOPPED)
