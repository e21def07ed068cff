"""Kafka's SystemTimer: a growing wheel, driven by a delay queue of its slots; an executor calls what expired.

One thread, the reaper, sleeps until the first slot in use expires: nothing ticks in between, and an idle million of
timers costs nothing. It never calls a function itself, so that a slow one delays no slot.
Source: org.apache.kafka.server.util.timer.SystemTimer. Kafka rounds a due down to its tick; here it is rounded up.
Invariants: the wheel is touched under the lock only; no timer is early, each is late by less than a tick, and by what
the executor makes it wait.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import Closed
from filewheel.timers.delay_queue import DelayQueue
from filewheel.timers.entry import EXPIRED, STOPPED, Entry, Slot
from filewheel.timers.growing import Growing
from filewheel.timers.scheduled_executor import ScheduledExecutor
from filewheel.timers.steady import Delay, OwnerProcess, delay_ns, period_ns
from filewheel.timers.task import TimerTask, call_logged, check_executor, submit
from filewheel.timers.workers import Workers

P = ParamSpec("P")


class SystemTimer:
    """Calls functions after delays, to the precision of a tick, in the threads of an executor. Thread-safe.

    add O(levels), and O(log slots in use) for the first timer of a slot; cancel O(1). A timer that is dropped calls
    what is pending, and then its thread ends.
    """

    def __init__(
        self, tick: Delay = 0.001, slots: int = 20, *, executor: Executor | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Make a wheel with this many slots in each level; a slot of the lowest is one tick.

        Without an `executor` the timer has one thread of its own for the functions. Raises BadArgument.
        """
        check_executor(executor)
        self._reaper = _Reaper(period_ns("tick", tick), slots, executor, clock)
        weakref.finalize(self, self._reaper.finish).atexit = False

    def add(self, delay: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> TimerTask:
        """Call a function once, after a delay. Raises BadArgument, Closed after a close, Forked, DiskError."""
        wait_ns = delay_ns("delay", delay)
        reaper = self._reaper
        task = TimerTask(reaper, reaper.slots.now_ns() + wait_ns, fn, args, kwargs)
        reaper.add(task)
        return task

    def close(self) -> list[TimerTask]:
        """End the timer, wait for the calls of its own thread, and return the tasks that were pending.

        A function of a timer may call this too: it does not wait for itself. An executor that was passed goes on.
        """
        return self._reaper.close()

    def __len__(self) -> int:
        """Return how many tasks are pending."""
        return len(self._reaper.wheel)


class _Reaper:
    """What the thread has of a timer; the queue of its wheel's slots, too."""

    def __init__(self, tick_ns: int, slots: int, executor: Executor | None, clock: Clock) -> None:
        self.slots: DelayQueue[Slot[TimerTask]] = DelayQueue(clock=clock)
        self.wheel: Growing[TimerTask] = Growing(slots, tick=tick_ns, now=self.slots.now_ns(), slots_in_use=self)
        self._own = ScheduledExecutor(1) if executor is None else None
        self._executor = executor
        self._lock = threading.RLock()
        self._owner = OwnerProcess("SystemTimer")
        self._is_ending = False
        self._workers = Workers("SystemTimer", self._end)

    def put(self, slot: Slot[TimerTask]) -> None:
        """Let a slot wait for its expiry. As those below, of SlotQueue."""
        self.slots.put_at(slot, slot.expiry * self.wheel.tick)

    def peek(self) -> Slot[TimerTask] | None:
        return self.slots.peek()

    def pop(self) -> Slot[TimerTask]:
        return self.slots.take()

    def add(self, task: TimerTask) -> None:
        with self._owner.one_call(self._lock):
            if self.slots.is_ending:
                raise self._owner.closed()
            if not len(self._workers):
                if self._own is not None:
                    self._own.prestart()  # here its error has a caller, and what expires later has a thread
                self._workers.start(self.run)
            is_due = task.due_ns <= self.slots.now_ns()
            if not is_due:
                task.entry = self.wheel.start(task.due_ns, task)
        if is_due:
            self._hand_over(task)

    def cancel(self, task: TimerTask) -> bool:
        with self._owner.one_call(self._lock):
            if task.entry is None or not self.wheel.stop(task.entry):
                return False
            task.settle(STOPPED)
            self._end_if_empty()
            return True

    def run(self) -> None:
        while True:
            expired: list[Entry[TimerTask]] = []
            try:
                slot = self.slots.take()
                with self._lock:
                    self.wheel.turn(slot, expired.append)
            except Closed:
                return
            for entry in expired:
                self._hand_over(entry.item)
            with self._lock:
                self._end_if_empty()
            del slot, expired

    def _hand_over(self, task: TimerTask) -> None:
        call = task.settle(EXPIRED)
        assert call is not None
        if self._executor is not None:
            submit(self._executor, call)
        elif self._own is not None:
            with contextlib.suppress(Closed):  # it is closed with the timer
                self._own.submit(call_logged, call)

    def close(self) -> list[TimerTask]:
        with self._owner.one_call(self._lock):
            self.slots.close()
            unfired = [entry.item for entry in self.wheel.clear()]
            for task in unfired:
                task.settle(STOPPED)
        self._workers.join()
        if self._own is not None:
            self._own.shutdown()
        return unfired

    def finish(self) -> None:
        """End when nothing is pending. Safe in a destructor, and after a fork."""
        self._is_ending = True
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._is_ending and not len(self.wheel):
            self.slots.finish(at_once=True)  # slots whose timers were all cancelled may wait in it

    def _end(self) -> None:
        self.slots.close()
