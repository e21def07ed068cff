"""A pool of processes for handlers that compute: a thread for each process, one call at a time in each.

`concurrent.futures.ProcessPoolExecutor` is not enough: one segmentation fault fails every call in it, a running call
cannot be ended at its time-out, and arguments are pickled. Here a thread starts a process, sends it a call, waits for
the answer, the end of the process, or the time-out, and starts another process after the end of one.
While no process can be started the calls wait: they have not begun, so they have not failed.
A process that had its number of calls, or has more memory than it may, ends between two calls, and another takes its
place: a leak of a library ends with it.
Invariant: for every accepted call `done` is called once, after the call has ended. A call begins, and its time starts,
when its process has imported its functions.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgpack

from filewheel.checks import check_whole
from filewheel.disk.descriptors import Waker
from filewheel.disk.threads import started
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument, Closed, Forked
from filewheel.message import US_PER_S
from filewheel.runs.run import KILLED_TEXT
from filewheel.scheduling.outcome import Outcome
from filewheel.scheduling.runners.child import RETURNED, preparing
from filewheel.scheduling.runners.process import KILL_AFTER_S, Process, end_text

log = logging.getLogger(__name__)

START_LIMIT_US = 120 * US_PER_S  # for a start, and for an import: it hangs; even large libraries import faster
STARTS_MAX = 3  # after this many failed starts in a row the log says why the calls wait
PAUSE_S, PAUSE_MAX_S = 0.1, 30.0  # before the next start; doubled each time
GIVEN_MAX = 3  # a call is given to this many processes that end before they begin it
LEAVE_S = 5  # the time that an idle process has to exit by itself
UNKILLABLE_S = 10  # `close` waits no longer for a process that cannot be killed, such as one in a broken device
REST_US = 1 << 62  # never


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a call in the pool."""

    outcome: Literal["returned", "raised", "died", "timed_out", "killed", "closed", "not begun"]
    value: bytes = b""
    """Of "returned": the value."""
    failure: Outcome | None = None
    """Of "raised": the exception."""
    message: str = ""
    """Of the others: the event, as a sentence."""
    exit_status: str = ""
    """Of a process that ended: a signal's name such as "SIGSEGV", or the exit code such as "3"."""


_NOT_BEGUN = Result("closed", message="the pool was closed before the call was begun")


@dataclass(slots=True, eq=False)
class Grip:
    """What the submitter of a call holds: the process that has it, and the request to end it."""

    pid: int | None = None  # of the process that runs the call
    waker: Waker | None = None
    is_killed: bool = False

    def kill(self) -> None:
        """Have the process that runs the call killed, by the pool's own thread: the process has no other call then."""
        self.is_killed = True
        if self.waker is not None:
            self.waker.wake()


@dataclass(slots=True, eq=False)
class _Submission:
    """A call that was submitted."""

    functions: tuple[str, ...]
    """The function that is called, and those that the process imports with it before the begin."""
    request: bytes
    timeout_us: int
    done: Callable[[Result], None]
    begin: Callable[[], bool] | None
    grip: Grip
    end_us: int = 0
    given: int = 0

    def may_begin(self) -> bool:
        """Return whether it may begin. `begin` is called once, also when the call is given to another process."""
        begin, self.begin = self.begin, None
        return begin is None or begin()

    def answer(self, result: Result) -> None:
        """Pass the result to the caller."""
        try:
            self.done(result)
        except BaseException:  # not even SystemExit may end the thread
            log.exception("the callback of a call in a process raised")


@dataclass(frozen=True, slots=True)
class Recycle:
    """When a process of a pool ends, and another takes its place: between two calls, never during one."""

    calls: int | None = None
    """After so many calls."""
    memory_bytes: int | None = None
    """After a call that leaves it with so much memory (resident)."""

    def __post_init__(self) -> None:
        for name, value in (("calls", self.calls), ("memory_bytes", self.memory_bytes)):
            if value is not None:
                check_whole(name, value)


class ProcessPool:
    """Runs functions on bytes in other processes."""

    def __init__(self, processes: int, *, clock: Clock = SYSTEM_CLOCK, recycle: Recycle | None = None) -> None:
        """Prepare a pool; no process starts before the first call."""
        self.clock = clock
        self._recycle = recycle or Recycle()
        self.gate = threading.Lock()
        """After failed starts, held by the one thread that starts a process."""
        self._size = processes
        self._pid = os.getpid()
        # The attributes below change under the lock only.
        self._lock = threading.Lock()
        self._threads: list[_Attendant] = []
        self._idle: list[_Attendant] = []
        self._queue: deque[_Submission] = deque()
        self.fruitless = 0
        """How many processes in a row ended before they had a call; the next start waits."""
        self.start_at_us = 0
        self.close_at_us = REST_US
        self.is_closing = False

    def submit(
        self,
        target: str,
        request: bytes,
        *,
        timeout_s: float | None,
        done: Callable[[Result], None],
        begin: Callable[[], bool] | None = None,
        imports: tuple[str, ...] = (),
        grip: Grip | None = None,
    ) -> None:
        """Run the function "module:qualname" on these bytes in a process; `done` is called with the result.

        `done` is called once, after the call has ended, in a thread of the pool, or in that of `close`. Without an idle
        process the call is queued. `begin` is called in a thread of the pool when a process is free and has imported
        the function, and the functions that `imports` names; when it returns False, the call ends as "not begun".
        Neither may block. `timeout_s` counts from the begin; then that process is killed.
        Cost: a thread is woken. Raises BadArgument, Closed, Forked, OSError; then `done` is not called.
        """
        if os.getpid() != self._pid:
            raise Forked("this pool belongs to the process that made it", hint="make another after the fork")
        if preparing():
            raise BadArgument(
                "a process that this script has started imports the script, and would start processes again",
                hint='put what the script does under `if __name__ == "__main__":`',
            )
        timeout_us = REST_US if timeout_s is None else round(timeout_s * US_PER_S)
        packed = msgpack.packb([[target], request])
        call = _Submission((target, *imports), packed, timeout_us, done, begin, grip or Grip())
        with self._lock:
            if self.is_closing:
                raise Closed("the pool is closed", hint="start the scheduler again")
            if len(self._threads) < self._size:
                self._start_threads()
            self._queue.append(call)
            self._wake_idle()

    def close(self, *, timeout_s: float) -> None:
        """End all processes; on return they have ended and every call has a result.

        Queued calls end as "closed" at once. Running calls have `timeout_s` to end; then they are killed, and end as
        "closed" too. May be called again. Called from `done`, it does not wait.
        """
        if os.getpid() != self._pid:
            return  # a forked child leaves its parent's processes alone
        with self._lock:
            self.is_closing = True
            self.close_at_us = min(self.close_at_us, self.clock.steady_us() + round(timeout_s * US_PER_S))
            threads = [*self._threads]
            self._wake(threads)
            calls = [*self._queue]
            self._queue.clear()
        for call in calls:
            call.answer(_NOT_BEGUN)
        atexit.unregister(self._close_at_exit)
        end_us = self.clock.steady_us() + round((timeout_s + LEAVE_S + KILL_AFTER_S + UNKILLABLE_S) * US_PER_S)
        if threading.current_thread() not in (each.thread for each in threads):
            for each in threads:
                each.thread.join(max(0, end_us - self.clock.steady_us()) / US_PER_S)

    def _close_at_exit(self) -> None:
        # Before multiprocessing ends its children: the pool would treat that as crashes.
        self.close(timeout_s=0)

    def _start_threads(self) -> None:
        if not self._threads:
            atexit.register(self._close_at_exit)
        while len(self._threads) < self._size:
            try:
                self._threads.append(_Attendant(self))
            except OSError as exc:  # the next call tries again
                if not self._threads:
                    raise
                log.warning("%s; %d processes take the calls", exc, len(self._threads))
                return

    def _wake(self, threads: list[_Attendant]) -> None:
        for each in threads:
            each.waker.wake()

    def _wake_idle(self) -> None:
        if self._queue and self._idle:
            self._idle.pop().waker.wake()

    # -- for the pool's threads ------------------------------------------------------------------------------

    def next_call(self, thread: _Attendant, *, waits: bool) -> _Submission | None:
        """Return a call for a thread, or None; a thread that waits is then noted as idle."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
            if self._queue:
                return self._queue.popleft()
            if waits:
                self._idle.append(thread)
        return None

    def pass_on(self, thread: _Attendant) -> None:
        """Note that a thread takes no calls now, and wake another thread for the queued call."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
            self._wake_idle()

    def give_back(self, call: _Submission) -> None:
        """Put a call back at the head of the queue, because its process ended before it began."""
        with self._lock:
            if not self.is_closing:
                self._queue.appendleft(call)
                self._wake_idle()
                return
        call.answer(_NOT_BEGUN)

    def is_fruitful(self) -> None:
        """Note that a process has answered a call: the next start does not wait."""
        if self.fruitless:
            with self._lock:
                self.fruitless = self.start_at_us = 0
                self._wake(self._threads)

    def is_fruitless(self, why: str) -> None:
        """Note that a process ended before it had a call: the queued calls wait for another."""
        with self._lock:
            pause_s: float = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self.fruitless, 16))
            self.start_at_us = self.clock.steady_us() + round(pause_s * US_PER_S)
            self.fruitless += 1
            calls = len(self._queue)
            lasts = self.fruitless >= STARTS_MAX and not any(each.is_up for each in self._threads)
        log.warning("a process of the pool ended before it had a call (%s); the next starts in %.1f s", why, pause_s)
        if lasts:
            log.critical(
                "processes end before they have a call, %d in a row: %s. %d calls wait. Their errors are on stderr; a "
                'script must start its work under `if __name__ == "__main__":`',
                self.fruitless, why, calls,
            )  # fmt: skip

    def is_worn(self, process: Process) -> bool:
        """Return whether a process has had its calls, or its memory."""
        calls, memory_bytes = self._recycle.calls, self._recycle.memory_bytes
        if calls is not None and process.answered >= calls:
            return True
        if memory_bytes is None or not process.answered or (size := process.resident_bytes()) < memory_bytes:
            return False
        log.info("process %s has %d MiB after %d calls, and ends", process.pid, size >> 20, process.answered)
        return True

    def has_left(self, thread: _Attendant) -> None:
        """Note that a thread has ended."""
        with self._lock:
            thread.waker.close()


class _Attendant:
    """A thread that starts a process, gives it calls, ends it, and starts another."""

    def __init__(self, pool: ProcessPool) -> None:
        """Start the thread. Raises OSError."""
        self._pool = pool
        self._clock = pool.clock
        self.is_up = False
        """Whether its process is ready."""
        self.waker = Waker()
        try:
            self.thread = started(threading.Thread(target=self._live, name="filewheel-pool", daemon=True))
        except OSError:
            self.waker.close()
            raise

    def _live(self) -> None:
        try:
            while (process := self._ready()) is not None:
                self._attend(process)
        except BaseException:
            # An error of `begin`, or a defect here, must not leave calls without a result.
            log.exception("a thread of the pool failed; the pool is closed")
            self._pool.close(timeout_s=0)
        finally:
            self._pool.has_left(self)

    def _ready(self) -> Process | None:
        """Return a process that is ready; None when the pool closes. After failed starts, one thread at a time."""
        pool = self._pool
        while True:
            with pool.gate if pool.fruitless else contextlib.nullcontext():
                while not pool.is_closing and (wait_us := pool.start_at_us - self._clock.steady_us()) > 0:
                    self.waker.wait(wait_us / US_PER_S)
                if pool.is_closing:
                    return None
                try:
                    process = Process(self.waker)
                except Exception as exc:
                    pool.is_fruitless(f"{type(exc).__name__}: {exc}")
                    continue
                why = self._why_not_ready(process)
                if why is None:
                    return process
                status = process.end()
                process.release()
                if not pool.is_closing:
                    pool.is_fruitless(why or end_text(status))

    def _why_not_ready(self, process: Process) -> str | None:
        """Wait until a process is ready; return None if it is, else the reason: "" when it has ended."""
        end_us = self._clock.steady_us() + START_LIMIT_US
        while (wait_us := end_us - self._clock.steady_us()) > 0 and not self._pool.is_closing:
            if process.look(wait_us) is not None:
                return None
            if process.has_ended:
                return ""
        return f"not ready within {START_LIMIT_US // US_PER_S} s"

    def _attend(self, process: Process) -> None:
        """Give a process calls until it ends, or the pool closes."""
        pool = self._pool
        self.is_up = True
        try:
            self._answer(process)
        finally:
            self.is_up = False
            left_s = (pool.close_at_us - self._clock.steady_us()) / US_PER_S
            status = process.end(0 if process.is_lost else max(KILL_AFTER_S, min(LEAVE_S, left_s)))
            process.release()
        if not (process.had_calls or pool.is_closing):
            pool.is_fruitless(end_text(status))

    def _answer(self, process: Process) -> None:
        call = None
        while (call := call or self._next(process, waits=True)) is not None:
            if call.functions not in process.imported and not self._has_given_after_import(process, call):
                call = None
                continue
            before, result = call, self._result(process, call)
            process.answered += 1
            if result is None:
                self._pool.give_back(call)
            elif result.outcome in ("returned", "raised"):
                self._pool.is_fruitful()
            try:
                call = self._next(process, waits=False)
            finally:
                if result is not None:
                    before.answer(result)  # while the process has its next call

    def _next(self, process: Process, *, waits: bool) -> _Submission | None:
        """Give the process its next call and return it; None when it has ended or is worn, or the pool closes.

        A call whose functions it has yet to import is only returned: the import may take long.
        """
        is_worn = self._pool.is_worn(process)
        while not (is_worn or process.has_ended or process.is_lost or self._pool.is_closing):
            call = self._pool.next_call(self, waits=waits)
            if call is not None:
                if call.functions not in process.imported or self._has_given(process, call):
                    return call
            elif waits:
                process.look(REST_US)
            else:
                return None
        self._pool.pass_on(self)
        return None

    def _has_given(self, process: Process, call: _Submission) -> bool:
        """Send a call to a process, if the call may begin; return whether it was sent."""
        if not self._may_begin(call):
            return False
        process.send(call.request)
        if process.is_lost:
            self._pool.give_back(call)
            return False
        call.grip.pid, call.grip.waker = process.pid, self.waker
        call.given += 1
        call.end_us = self._clock.steady_us() + call.timeout_us
        return True

    def _may_begin(self, call: _Submission) -> bool:
        """Return whether a call may begin; if not, it is answered."""
        try:
            may_begin = call.may_begin()
        except BaseException:
            call.answer(Result("closed", message="the check whether the call may begin failed"))
            raise
        if not may_begin:
            call.answer(Result("not begun"))
        return may_begin

    def _has_given_after_import(self, process: Process, call: _Submission) -> bool:
        """Let a process import the functions of a call, then send the call; return whether it was sent.

        If the import raised, the call has failed. If the process ended or hangs, the call is given to another process.
        """
        pool, answer, why = self._pool, None, ""
        process.send(msgpack.packb([call.functions, None]))
        if process.is_lost:
            pool.give_back(call)
            return False
        end_us = self._clock.steady_us() + START_LIMIT_US
        try:
            while not (answer or why or process.has_ended or pool.is_closing):
                wait_us = end_us - self._clock.steady_us()
                answer = process.look(wait_us)
                if wait_us <= 0:
                    why = f"not imported within {START_LIMIT_US // US_PER_S} s"
        except Exception as exc:  # as in `_result`
            log.exception("an answer could not be read; the process is ended")
            why = f"its answer was damaged on the way: {exc}"
        if answer is not None and not pool.is_closing:
            result = _result_of(answer)
            if result.outcome == "returned":
                process.imported.add(call.functions)
                return self._has_given(process, call)
            pool.is_fruitful()
            if self._may_begin(call):
                call.answer(result)
            return False
        status = process.end()
        if not pool.is_closing:
            call.given += 1
            why = f"{call.functions[-1]}: {why or end_text(status)}"
            log.warning("a process of the pool ended while it imported %s", why)
        if call.given < GIVEN_MAX:
            pool.give_back(call)
        else:
            says = f"the call did not begin: {call.given} processes ended, the last one while it imported {why}"
            call.answer(Result("died", message=says, exit_status=status))
        return False

    def _result(self, process: Process, call: _Submission) -> Result | None:
        """Wait for the end of a call; return its result, or None when the process ended before it began."""
        try:
            while True:
                wait_us = min(call.end_us, self._pool.close_at_us) - self._clock.steady_us()
                answer = process.look(0 if call.grip.is_killed else wait_us)
                if answer is not None:
                    return _result_of(answer)
                if process.has_ended:
                    if call.given < GIVEN_MAX and process.never_began():
                        return None
                    status = process.exit_status()
                    return Result("died", message=end_text(status), exit_status=status)
                if call.grip.is_killed:
                    return Result("killed", message=KILLED_TEXT, exit_status=process.end())
                if wait_us <= 0:
                    return self._ended(process, call)
        except Exception as exc:
            # Mostly a BrokenFrame. A defect here must not leave the call without a result either.
            log.exception("an answer could not be read; the process is ended")
            return Result("died", message=f"its answer was damaged on the way: {exc}", exit_status=process.end())

    def _ended(self, process: Process, call: _Submission) -> Result:
        """Kill a process whose call exceeded its time-out, or the time of a closing pool."""
        is_late = self._pool.close_at_us > self._clock.steady_us()
        status = process.end()
        if is_late:
            says = f"it ran longer than {call.timeout_us / US_PER_S:g} s, and its process was killed"
            return Result("timed_out", message=says, exit_status=status)
        says = "the pool was closed while the call ran, and killed it"
        return Result("closed", message=says, exit_status=status)


def _result_of(answer: bytes) -> Result:
    if answer[:1] == RETURNED:
        return Result("returned", answer[1:])
    return Result("raised", failure=Outcome.of_plain(msgpack.unpackb(answer[1:])))
