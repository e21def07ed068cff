"""The handle of a timer that calls a function: cancel it, see what became of it.

Invariant: the state changes once; the timer holds the function, only while the task is pending.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Protocol

from filewheel.checks import check_done, shown
from filewheel.errors import BadArgument
from filewheel.timers.entry import PENDING, Entry

log = logging.getLogger(__name__)


class Canceller(Protocol):
    """The timer of a task."""

    def cancel(self, task: TimerTask) -> bool:
        """Cancel a task, and return whether it was in time."""


class TimerTask:
    """A function that is called at `.due_ns` of the steady clock; `.state` is PENDING, EXPIRED or STOPPED."""

    __slots__ = ("__weakref__", "_timer", "due_ns", "entry", "period_ns", "state")

    def __init__(self, timer: Canceller, due_ns: int, period_ns: int) -> None:
        self._timer = timer
        self.due_ns = due_ns
        self.period_ns = period_ns
        """From due to due; 0 for one call."""
        self.state = PENDING
        self.entry: Entry[TimerTask] | None = None

    def cancel(self) -> bool:
        """Cancel this: True if it was pending and so is not called any more; False if it expired or was cancelled."""
        return self._timer.cancel(self)

    def __repr__(self) -> str:
        return f"<TimerTask due {self.due_ns} {self.state.value}>"


def check_executor(executor: object) -> None:
    """Raise BadArgument unless this is an executor, or None."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise BadArgument(f"executor has a method submit, which {shown(executor)} has not")


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
