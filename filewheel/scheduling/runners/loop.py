"""The runner for coroutine functions: one task for each call, in an event loop of its own or in the caller's.

A time-out cancels the task at the coroutine's next await. One wake-up of the loop hands over all calls that were
started since the last wake-up.
Invariants: the runner's own loop runs until the runner stops, whatever a handler does to it. A task that is cancelled
because the runner stops has no outcome, so its message is offered again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial

from filewheel.checks import check_done
from filewheel.disk.threads import started
from filewheel.env import Clock
from filewheel.errors import disk_errors
from filewheel.runs.run import Place
from filewheel.scheduling.around import surrounded_async
from filewheel.scheduling.job import Job, enter, leave
from filewheel.scheduling.outcome import Outcome, killed
from filewheel.scheduling.runners.runner import (
    Begin,
    Call,
    Finish,
    Runner,
    called,
    failed_by,
    jobs_of,
    keep,
    outcomes_of,
    trace_of,
)

log = logging.getLogger(__name__)

_LOOP = Place("loop")
_END_S = 5.0
"""The time that cancelled tasks have to end."""


async def run_async(call: Call, clock: Clock, wheel: str) -> Sequence[Outcome] | None:
    """Await a coroutine function; return the outcomes, as the call has them.

    Raises CancelledError when the task was cancelled other than by the time-out, and KeyboardInterrupt as `run` does.
    """
    jobs = jobs_of(call, clock, wheel)
    good = [job for job in jobs if isinstance(job, Job)]
    raised, result = None, None
    limit: asyncio.Timeout | None = None
    if good:
        token = enter(None if call.handler.terms.batch else good[0])
        try:
            awaited = surrounded_async(call.hooks, good, partial(_done, call, good))
            if call.timeout_s is None:
                value = await awaited
            else:
                async with asyncio.timeout(call.timeout_s) as limit:
                    value = await awaited
            result = keep(call, value)
        except TimeoutError as exc:
            is_late = limit is not None and limit.expired()
            raised = time_out(call.timeout_s, trace_of(exc)) if is_late else failed_by(exc)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raised = cancelled_itself()
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            raised = failed_by(exc)
        finally:
            leave(token)
    return outcomes_of(jobs, raised, result)


async def _done(call: Call, jobs: list[Job]) -> object:
    """Do a call, and await what it returned; return the result. Raises TypeError for work that is handed back."""
    value: object = called(call, jobs)
    if inspect.isawaitable(value):
        value = await value
    if value is not None:
        check_done("the handler", value)
    return value


def cancelled_itself() -> Outcome:
    """Return the outcome of a call whose own handler cancelled it."""
    return Outcome("CancelledError: the handler cancelled itself")


def time_out(timeout_s: float | None, trace: str = "") -> Outcome:
    """Return the outcome of a call that exceeded its time-out."""
    return Outcome(
        f"TimeoutError: took longer than {timeout_s:g} s",
        frozenset({"builtins.TimeoutError", "builtins.OSError", "builtins.Exception", "builtins.BaseException"}),
        trace,
        is_time_out=True,
    )


class Loop(Runner):
    """Runs calls as tasks, which a time-out ends. Without a `loop` the first call makes one, in its own thread."""

    def __init__(
        self, begin: Begin, finish: Finish, clock: Clock, wheel: str, *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._begin = begin
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._coming: deque[Call] = deque()
        self._is_woken = False
        self._stopping = False
        self._ended = False
        """The loop may stop now."""
        self._tasks: dict[asyncio.Task[None], Call] = {}

    def start(self, call: Call) -> None:
        """Begin a call here, because `begin` touches the disk, and hand it to the loop."""
        if self._loop is None:
            self._make_loop()
        if not self._begin(call):
            return
        assert self._loop is not None
        self._coming.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._take)

    def _make_loop(self) -> None:
        loop = asyncio.new_event_loop()

        def live() -> None:
            asyncio.set_event_loop(loop)
            while not self._ended:
                try:
                    loop.run_forever()
                    why = None
                except BaseException as exc:  # SystemExit of a task that a handler has made
                    why = exc
                if not self._ended:  # the other calls need it, and their time-outs
                    log.error("a handler has stopped the event loop of all calls, which goes on", exc_info=why)
            loop.close()

        try:
            with disk_errors(self._wheel):
                self._thread = started(threading.Thread(target=live, name="filewheel-loop", daemon=True))
        except BaseException:
            loop.close()
            raise
        self._loop = loop

    def _take(self) -> None:
        """In the loop: make a task for each call that was handed over."""
        self._is_woken = False
        while self._coming:
            try:
                call = self._coming.popleft()
            except IndexError:  # `quiet`, in another thread, has just cleared it
                break
            task = asyncio.ensure_future(self._run(call))
            self._tasks[task] = call
            task.add_done_callback(self._tasks.pop)

    async def _run(self, call: Call) -> None:
        call.begun_us = self._clock.steady_us()
        try:
            outcomes = await run_async(call, self._clock, self._wheel)
        except asyncio.CancelledError:
            if self._stopping:
                return  # without an outcome: the message stays claimed, and is offered again
            outcomes = call.fail(cancelled_itself() if call.kill is None else killed())
        except KeyboardInterrupt as exc:  # raised by the handler
            outcomes = call.fail(Outcome.of(exc))
        if call.end():
            call.outcomes, call.ended_us = outcomes, self._clock.steady_us()
            self._finish(call)

    def quiet(self) -> None:
        """Begin no more calls."""
        self._coming.clear()

    def busy(self) -> int:
        """Return how many tasks there are."""
        return len(self._tasks)

    def running(self) -> list[tuple[Call, Place]]:
        """Return the calls that have a task."""
        return [(call, _LOOP) for call in self._tasks.copy().values()]

    def kill(self, call: Call) -> None:
        """Cancel the task of a call, at the next await of its coroutine."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: Call) -> None:
        for task, its in self._tasks.items():
            if its is call:
                task.cancel()

    def stop(self) -> None:
        """Cancel running tasks. Must not be called in the loop's thread."""
        if self._loop is None or self._loop.is_closed():
            return
        self._stopping = True
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        try:
            ending.result(_END_S)
        except TimeoutError:
            log.warning("a coroutine did not end when it was cancelled; its event loop is abandoned")
            if self._thread is not None:  # the loop stops when the coroutine ends
                loop, self._ended = self._loop, True
                ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
            return
        if self._thread is not None:
            self._ended = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = None

    async def _end(self) -> None:
        self._coming.clear()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
