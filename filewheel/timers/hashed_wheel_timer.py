"""Netty's HashedWheelTimer: a hashed wheel with rounds, turned by one thread, for many time-outs that rarely fire.

Starts and cancels only append to queues; the worker moves them to the wheel and out of it at the next tick. A state
that changes once decides between cancel and expiry. A tick of an empty wheel wakes the worker too: its known cost,
which `SystemTimer` has not.
Source: io.netty.util.HashedWheelTimer.
Invariants: only the worker's thread touches the wheel while it runs; no time-out is early, each is late by less than a
tick, and by what the functions before it take.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec

from filewheel.checks import check_whole
from filewheel.env import SYSTEM_CLOCK, Clock, Condition
from filewheel.errors import TooManyTimers
from filewheel.timers.entry import EXPIRED, PENDING, STOPPED, Entry
from filewheel.timers.hashed_unordered import HashedUnordered
from filewheel.timers.steady import Delay, OwnerProcess, Steady, delay_ns, period_ns
from filewheel.timers.task import TimerTask, call_logged, check_executor, submit
from filewheel.timers.workers import Workers

NEW_PER_TICK = 100_000
"""How many started timers reach the wheel in a tick, so that a burst of starts does not stop the expiries."""
P = ParamSpec("P")


class HashedWheelTimer:
    """Calls functions after delays, to the precision of a tick. Thread-safe.

    new_timeout O(1); cancel O(1); a tick O(pending / slots) on average. The worker starts with the first timer. A timer
    that is dropped calls what is pending, and then its worker ends.
    """

    def __init__(
        self,
        tick_duration: Delay = 0.1,
        ticks_per_wheel: int = 512,
        *,
        max_pending: int | None = None,
        executor: Executor | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a wheel of slots, rounded up to a power of two, one a tick. Functions are called in the worker's thread,
        or by `executor`. Raises BadArgument.
        """
        limit = None if max_pending is None else check_whole("max_pending", max_pending)
        check_executor(executor)
        tick_ns = period_ns("tick_duration", tick_duration)
        self._worker = _Worker(tick_ns, ticks_per_wheel, limit, executor, Steady(clock))
        weakref.finalize(self, self._worker.finish).atexit = False

    def new_timeout(self, delay: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> TimerTask:
        """Call a function once, after a delay.

        Raises BadArgument; TooManyTimers at the limit of pending ones; Closed after a stop; Forked; DiskError.
        """
        wait_ns = delay_ns("delay", delay)
        worker = self._worker
        task = TimerTask(worker, worker.steady.now_ns() + wait_ns, fn, args, kwargs)
        worker.add(task)
        return task

    def start(self) -> None:
        """Start the worker now, and not with the first timer. Raises Closed, Forked, DiskError."""
        self._worker.start()

    def stop(self) -> list[TimerTask]:
        """End the timer, wait for a call that runs, and return the tasks that were pending; they are not called.

        A function of a timer may call this too: it does not wait for itself.
        """
        return self._worker.stop()

    @property
    def pending_timeouts(self) -> int:
        """How many tasks are pending."""
        return self._worker.pending

    def __len__(self) -> int:
        """Return how many tasks are pending."""
        return self._worker.pending


class _Worker:
    """What the thread has of a timer."""

    def __init__(self, tick_ns: int, slots: int, limit: int | None, executor: Executor | None, steady: Steady) -> None:
        self.steady = steady
        self.pending = 0
        self.wheel: HashedUnordered[TimerTask] = HashedUnordered(slots, tick=tick_ns, now=steady.now_ns())
        self._limit = limit
        self._executor = executor
        self._owner = OwnerProcess("HashedWheelTimer")
        self._lock = threading.RLock()  # reentrant: a destructor may end this in the middle of a call
        self._changed = Condition(self._lock)
        self._new: deque[TimerTask] = deque()
        self._cancelled: deque[TimerTask] = deque()
        self._is_stopped = False
        self._is_ending = False
        self._workers = Workers("HashedWheelTimer", self._end)
        steady.watch(self._clock_moved)

    def add(self, task: TimerTask) -> None:
        self._owner.check()
        with self._lock:
            if self._limit is not None and self.pending >= self._limit:
                raise TooManyTimers(
                    f"{self.pending} timers are pending, which is the limit", hint="cancel some, or raise max_pending="
                )
            self.start()
            self.pending += 1
            self._new.append(task)

    def start(self) -> None:
        self._owner.check()
        with self._lock:
            if self._is_stopped:
                raise self._owner.closed()
            if not len(self._workers):
                self._workers.start(self.run)

    def cancel(self, task: TimerTask) -> bool:
        self._owner.check()
        with self._lock:
            if task.state is not PENDING:
                return False
            task.settle(STOPPED)
            self.pending -= 1
            self._cancelled.append(task)
            if self._is_ending:
                self._changed.notify_all()
            return True

    def run(self) -> None:
        while self._wait_for_tick():
            self._tick()

    def _wait_for_tick(self) -> bool:
        """Wait for the end of the next tick; return False when there is none to come."""
        until_ns = (self.wheel.hand + 1) * self.wheel.tick
        with self._lock:
            while not self._is_stopped and not (self._is_ending and not self.pending):
                if self.steady.now_ns() >= until_ns:
                    return True
                self.steady.wait(self._changed, until_ns)
        return False

    def _tick(self) -> None:
        while self._cancelled:
            entry = self._cancelled.popleft().entry
            if entry is not None:
                self.wheel.stop(entry)
        left = NEW_PER_TICK
        while self._new and left:
            task = self._new.popleft()
            if task.state is PENDING:  # one that is cancelled from here on comes through the other queue
                task.entry = self.wheel.start(task.due_ns, task)
                left -= 1
        self.wheel.advance(self.steady.now_ns(), self._expire)

    def _expire(self, entry: Entry[TimerTask]) -> None:
        task = entry.item
        with self._lock:
            if task.state is not PENDING:
                return
            call = task.settle(EXPIRED)
            self.pending -= 1
        assert call is not None
        if self._executor is None:
            call_logged(call)
        else:
            submit(self._executor, call)

    def stop(self) -> list[TimerTask]:
        self._owner.check()
        self._end()
        self._workers.join()
        with self._lock:
            left = [*self._new, *(entry.item for entry in self.wheel.clear())]
            self._new.clear()
            self._cancelled.clear()
            unfired = [task for task in left if task.state is PENDING]
            for task in unfired:
                task.settle(STOPPED)
            self.pending -= len(unfired)
        return unfired

    def finish(self) -> None:
        """End when nothing is pending. Safe in a destructor, and after a fork."""
        if self._owner.is_here:
            self._is_ending = True
            if self._lock.acquire(timeout=1):  # not for ever: see DelayQueue.finish
                try:
                    self._changed.notify_all()
                finally:
                    self._lock.release()

    def _end(self) -> None:
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()

    def _clock_moved(self) -> None:
        with self._lock:
            self._changed.notify_all()
