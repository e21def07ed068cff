"""A thread that drives a scheme, and calls functions at their times: Netty's, Kafka's and Java's timer, by its scheme.

`Timer(HashedUnordered, tick=0.1)` is Netty's `HashedWheelTimer`, `Timer(Growing)` Kafka's `SystemTimer`, and
`Timer(BinaryHeap)` java.util.Timer without the fault that a task that raises ends it.
Any thread starts and cancels without a lock: it appends to queues, and the timer's thread empties them before it looks
what is due. So a call may come from a signal handler or a destructor, and Ctrl-C leaves nothing half done.
Invariants: one thread touches the scheme; who takes a task out of `pending` calls it or cancels it; no call is early.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec

from filewheel.checks import check_done, check_whole, shown
from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import BadArgument, TooManyTimers
from filewheel.timers.entry import EXPIRED, PENDING, STOPPED, Entry
from filewheel.timers.growing import Growing
from filewheel.timers.scheme import Scheme, TickWheel
from filewheel.timers.steady import Delay, OwnerProcess, Steady, bound, delay_ns, period_ns
from filewheel.timers.workers import Workers

NEW_PER_TURN = 100_000
"""So many started timers reach the scheme before what is due is called, so that a burst of starts does not stop it."""
QUEUED_MOST = 4096
"""The thread is woken for so many started or cancelled timers, though none of them is due next."""
AWAKE = -math.inf
"""As `wakes_ns`: the thread looks at the queues before it sleeps."""
P = ParamSpec("P")
log = logging.getLogger(__name__)


class TimerTask:
    """A function that is called at `.due_ns` of the steady clock; `.state` is PENDING, EXPIRED or STOPPED."""

    __slots__ = ("__weakref__", "_driver", "due_ns", "entry", "period_ns", "state")

    def __init__(self, driver: _Driver, due_ns: int, period_ns: int) -> None:
        self._driver = driver
        self.due_ns = due_ns
        self.period_ns = period_ns
        """From due to due; 0 for one call."""
        self.state = PENDING
        self.entry: Entry[TimerTask] | None = None

    def cancel(self) -> bool:
        """Cancel this: True if it was pending and so is not called any more; False if it expired or was cancelled."""
        return self._driver.cancel(self)

    def __repr__(self) -> str:
        return f"<TimerTask due {self.due_ns} {self.state.value}>"


class Timer:
    """Calls functions after delays, in one thread or in those of an executor. Thread-safe.

    call_later O(1), cancel O(1), and what the scheme's start and stop cost in the timer's thread. The thread starts
    with the first timer, and sleeps while the scheme has nothing to do. A timer that is dropped calls what is pending,
    and then its thread ends.
    """

    def __init__(
        self,
        scheme: type[Scheme[TimerTask]] = Growing,
        *,
        tick: Delay | None = None,
        max_pending: int | None = None,
        executor: Executor | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **shape: Any,
    ) -> None:
        """Make a timer over a scheme. A wheel has a tick, by default 1 ms. `shape` goes to the scheme, as `slots=512`.

        Raises BadArgument.
        """
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise BadArgument(f"executor has a method submit, which {shown(executor)} has not")
        limit = None if max_pending is None else check_whole("max_pending", max_pending)
        if not (isinstance(scheme, type) and issubclass(scheme, Scheme)):
            raise BadArgument(f"scheme is a class of filewheel.timers, not {shown(scheme)}", hint="Timer(Growing)")
        steady = Steady(clock)
        if issubclass(scheme, TickWheel):
            shape["tick"] = period_ns("tick", 0.001 if tick is None else tick)
        elif tick is not None:
            raise BadArgument(f"{scheme.__name__} has no tick")
        try:
            made: Scheme[TimerTask] = scheme(now=steady.now_ns(), **shape)
        except TypeError as exc:
            raise BadArgument(f"{scheme.__name__} is not made with {shown(shape)}: {exc}") from exc
        self._driver = _Driver(made, limit, executor, steady)
        weakref.finalize(self, self._driver.finish).atexit = False

    def call_later(self, delay: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> TimerTask:
        """Call a function once, after a delay.

        Raises BadArgument; TooLarge for a delay that is over a SimpleWheel's; TooManyTimers at the limit of pending
        ones; Closed after a close; Forked; DiskError.
        """
        return self._driver.start(delay_ns("delay", delay), 0, bound(fn, args, kwargs))

    def call_every(self, period: Delay, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> TimerTask:
        """Call a function at each multiple of a period from now on, until it is cancelled.

        Calls that one overran are left out. One that raises is logged, and the next one comes. Raises as `call_later`.
        """
        wait_ns = period_ns("period", period)
        return self._driver.start(wait_ns, wait_ns, bound(fn, args, kwargs))

    def close(self) -> list[TimerTask]:
        """End the timer, wait for a call that runs, and return the tasks that were pending; they are not called.

        A function of a timer may call this too: it does not wait for itself. An executor that was passed goes on.
        """
        return self._driver.close()

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return how many tasks are pending."""
        return len(self._driver.pending)

    def __repr__(self) -> str:
        return f"<Timer({type(self._driver.scheme).__name__}): {len(self)} pending>"


class _Driver:
    """What the thread has of a timer."""

    def __init__(self, scheme: Scheme[TimerTask], limit: int | None, executor: Executor | None, steady: Steady) -> None:
        self.scheme = scheme
        self.pending: dict[TimerTask, Callable[[], Any]] = {}
        self._steady = steady
        self._limit = limit
        self._executor = executor
        self._owner = OwnerProcess("Timer")
        self._new: deque[TimerTask] = deque()
        self._cancelled: deque[TimerTask] = deque()
        self._changed = Event()
        self._wakes_ns: float = AWAKE
        self._is_stopped = self._is_ending = self._is_last = False
        self._driving = threading.Lock()
        self._workers = Workers("Timer", self._end)
        steady.watch(self._changed.set)

    def start(self, wait_ns: int, period_ns: int, call: Callable[[], Any]) -> TimerTask:
        self._owner.check()
        self.scheme.check_delay(wait_ns)
        if not len(self._workers) and not self._is_stopped:
            self._workers.start(self.run)
        task = TimerTask(self, self._steady.now_ns() + wait_ns, period_ns)
        try:
            self.pending[task] = call
            if self._limit is not None and len(self.pending) > self._limit:
                raise TooManyTimers(
                    f"{self._limit} timers are pending, which is the limit", hint="cancel some, or raise max_pending="
                )
            self._put(task)
            if self._is_stopped and task in self.pending:  # else a close has taken it, and returns it
                raise self._owner.closed()
        except BaseException:
            self.pending.pop(task, None)
            raise
        return task

    def _put(self, task: TimerTask) -> None:
        self._new.append(task)
        if task.due_ns < self._wakes_ns or len(self._new) > QUEUED_MOST:
            self._changed.set()

    def cancel(self, task: TimerTask) -> bool:
        self._owner.check()
        if self.pending.pop(task, None) is None:
            return False
        task.state = STOPPED
        self._cancelled.append(task)
        if self._is_ending or len(self._cancelled) > QUEUED_MOST:
            self._changed.set()
        return True

    def run(self) -> None:
        if not self._driving.acquire(blocking=False):
            return  # two starts at a time, or a start that Ctrl-C interrupted, made two threads
        while self.turn():
            at_ns = self.scheme.next_advance()
            self._wakes_ns = math.inf if at_ns is None else at_ns
            if not self._new:  # what is appended from here on sees `_wakes_ns`
                self._changed.wait(self._steady.wait_s(at_ns))
            self._wakes_ns = AWAKE
            self._changed.clear()

    def turn(self) -> bool:
        """Let the queues reach the scheme, and call what is due; return False when there is nothing more to come."""
        now_ns = self._steady.now_ns()
        if self._is_last:
            due = [task for task in self.pending.copy() if task.due_ns <= now_ns]
            for task in sorted(due, key=lambda task: task.due_ns):
                self._call(task)
            return False
        for _ in range(len(self._cancelled)):
            task = self._cancelled.popleft()
            if task.entry is not None:
                self.scheme.stop(task.entry)
        self.scheme.advance(now_ns, self._expire)  # first: a wheel takes delays from its own time on
        for _ in range(min(len(self._new), NEW_PER_TURN)):
            task = self._new.popleft()
            if task in self.pending:  # one that is cancelled from here on comes through the other queue
                task.entry = self.scheme.start(task.due_ns, task)
        self.scheme.advance(now_ns, self._expire)
        return not (self._is_stopped or (self._is_ending and not self.pending))

    def _expire(self, entry: Entry[TimerTask]) -> None:
        if not self._is_stopped:
            self._call(entry.item)

    def _call(self, task: TimerTask) -> None:
        call = self.pending.get(task) if task.period_ns else self.pending.pop(task, None)
        if call is None:
            return
        if not task.period_ns:
            task.state = EXPIRED
        if self._executor is not None:
            submit(self._executor, call, partial(self._called, task))
        else:
            call_logged(call)
            self._called(task)

    def _called(self, task: TimerTask) -> None:
        """Put a periodic task back."""
        if task in self.pending:
            late_ns = max(0, self._steady.now_ns() - task.due_ns)
            task.due_ns += (1 + late_ns // task.period_ns) * task.period_ns
            self._put(task)

    def close(self) -> list[TimerTask]:
        self._owner.check()
        self._is_stopped = True
        self._changed.set()
        self._workers.join()
        left = [task for task in self.pending.copy() if self.pending.pop(task, None) is not None]
        for task in left:
            task.state = STOPPED
        return left

    def finish(self) -> None:
        """End when nothing but periodic tasks is pending. Safe in a destructor, and after a fork."""
        self._is_ending = True
        if self._owner.is_here:
            for task in [task for task in self.pending.copy() if task.period_ns]:
                self.cancel(task)
            self._changed.set()

    def _end(self) -> None:
        """Call what is due, and no more: the interpreter exits."""
        self._is_last = True
        self._changed.set()


def submit(executor: Executor, call: Callable[[], Any], then: Callable[[], object]) -> None:
    """Have an executor call the function of a timer, then call another. It is logged if that is refused, now or in the
    executor.
    """
    try:
        future = executor.submit(call_logged, call)
        if isinstance(future, Future):
            future.add_done_callback(partial(_submitted, call, then))
            return
    except Exception:
        tell("an executor refused the function of a timer: %s", call)
    then()


def _submitted(call: Callable[[], Any], then: Callable[[], object], future: Future[None]) -> None:
    if future.cancelled():
        tell("an executor cancelled the function of a timer: %s", call)
    elif exc := future.exception():  # no error of the function: a pool of processes could not send it, or broke
        tell("an executor could not call the function of a timer: %s", call, exc)
    then()


def call_logged(call: Callable[[], Any]) -> None:
    """Call a function. An error that it raises is logged: it harms no other timer."""
    try:
        check_done("it", call())
    except BaseException:  # also SystemExit: a thread of timers does not end by one of them
        tell("the function of a timer raised: %s", call)


def tell(text: str, call: object, exc: BaseException | bool = True) -> None:
    """Log what became of a call, with an error, by default the one that is handled. What a handler of the log raises is
    printed: it ends no thread.
    """
    try:
        log.error(text, call, exc_info=exc)
    except BaseException:
        traceback.print_exc()
