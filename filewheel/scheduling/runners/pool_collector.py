"""The one thread of a pool: it starts processes, reads their answers, notices their ends, and keeps time-outs.

Whoever submits a call writes it to an idle process in its own thread, under the lock, which saves a switch of threads;
everything else happens here. It sleeps until the kernel has something to tell, or the next deadline.
Invariant: each accepted call is told once; nobody waits under the lock, and nothing of the user's runs under it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections import deque
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

import msgpack

from filewheel.clock import Clock
from filewheel.disk.started import started
from filewheel.errors import Closed
from filewheel.message import US_PER_S
from filewheel.scheduling.runners.pool_frame import BrokenFrame
from filewheel.scheduling.runners.pool_member import KILL_AFTER_S, REST_US, Call, Done, Member, State, end_text
from filewheel.scheduling.runners.pool_process import PoolProcess
from filewheel.scheduling.runners.pool_result import Outcome, Result
from filewheel.scheduling.runners.pool_worker import BROKEN, RAISED, READY, RETURNED

log = logging.getLogger(__name__)

START_LIMIT_S = 120  # a process that is not ready by then hangs; a large library is imported in less
STARTS_MAX = 3  # so many that failed in a row fail the calls that wait
PAUSE_S, PAUSE_MAX_S = 0.1, 30.0  # before the next start; doubled each time


class Collector:
    """Keeps so many processes running, and gives them calls."""

    def __init__(
        self,
        context: SpawnContext | ForkServerContext,
        size: int,
        *,
        init: str | None,
        recycle_after: int | None,
        clock: Clock,
    ) -> None:
        self._context = context
        self._size = size
        self._init = init
        self._recycle_after = recycle_after
        self._clock = clock
        # All of the following belongs to whoever holds the lock, but for the selector: that is the thread's.
        self._lock = threading.Lock()
        self._queue: deque[Call] = deque()
        self._members: list[Member] = []
        self._idle: list[Member] = []
        self._unsent: list[Member] = []
        self._finished: list[tuple[Done, Result]] = []
        self._fruitless = 0  # processes in a row that ended without having had a call: the next start waits
        self._unready = 0  # and that ended before they were ready: calls fail
        self._start_at_us = 0
        self._close_at_us: int | None = None
        self._asleep_until_us = 0  # 0: the thread is awake, and will look at everything before it sleeps
        self._thread: threading.Thread | None = None
        self._woken = self._waker = -1

    def free(self) -> int:
        """Return how many calls would not wait for another call."""
        with self._lock:
            if self._close_at_us is not None:
                return 0
            return max(0, self._size - len(self._queue) - sum(m.call is not None for m in self._members))

    def pids(self) -> list[int]:
        """Return the process ids."""
        with self._lock:
            return [member.process.pid for member in self._members]

    def accept(self, call: Call) -> bool:
        """Give a call to an idle process, or queue it; return whether it was the first of all. Raises Closed."""
        with self._lock:
            if self._close_at_us is not None:
                raise Closed("the pool is closed")
            first = self._thread is None
            if first:
                self._begin()
            self._queue.append(call)
            if self._give() < self._asleep_until_us:
                self._wake()
            return first

    def close_by(self, close_at_us: int) -> threading.Thread | None:
        """Begin to close; return the thread that ends when everything has ended."""
        with self._lock:
            self._close_at_us = min(close_at_us, self._close_at_us or close_at_us)
            self._wake()
            return self._thread

    def _begin(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            self._thread = started(threading.Thread(target=self._collect, name="filewheel-pool", daemon=True))
        except OSError:  # the next call tries again
            self._selector.close()
            os.close(self._woken)
            os.close(self._waker)
            self._woken = self._waker = -1
            raise

    def _wake(self) -> None:
        if self._waker >= 0:
            with contextlib.suppress(BlockingIOError):  # it has been told often enough
                os.write(self._waker, b"\0")

    def _give(self) -> int:
        """Give queued calls to idle processes; return when the thread must look at the latest."""
        wake_at_us = REST_US
        while self._queue and self._idle:
            call = self._queue[0]
            if not call.may_begin():
                self._finished.append((self._queue.popleft().done, Result("not begun")))
                wake_at_us = 0
                continue
            member = self._idle.pop()
            now_us = self._clock.steady_us()
            try:
                sent = member.give(call, now_us)
            except OSError:
                # It has just ended: the thread will be told. The call is another's.
                member.let_leave(now_us)
                continue
            self._queue.popleft()
            wake_at_us = min(wake_at_us, member.deadline_us)
            if not sent:
                self._unsent.append(member)
                wake_at_us = 0
        return wake_at_us

    # What follows runs in the thread only.

    def _collect(self) -> None:
        try:
            self._collect_all()
        except Exception:
            # A defect here must not leave calls without an answer.
            log.exception("the pool's collector failed; the pool is closed")
            with self._lock:
                self._close_at_us = 0
                self._abandon()
            for done, result in self._finished:
                _tell(done, result)
        self._selector.close()
        with self._lock:
            os.close(self._woken)
            os.close(self._waker)
            self._waker = -1

    def _abandon(self) -> None:
        self._fail_queue("closed", "the pool failed before the call was begun")
        for member in self._members:
            member.process.kill()
            if member.call is not None:
                self._finished.append((member.call.done, Result("died", message="the pool failed and killed it")))

    def _collect_all(self) -> None:
        while True:
            self._start_missing()
            with self._lock:
                now_us = self._clock.steady_us()
                self._close_down(now_us)
                for member in self._members:
                    if member.deadline_us <= now_us:
                        self._pass_deadline(member, now_us)
                self._give()
                for member in self._unsent:
                    self._selector.register(member.process.requests_fd, selectors.EVENT_WRITE, (member, self._writable))
                self._unsent.clear()
                finished, self._finished = self._finished, []
                if not finished:
                    if self._close_at_us is not None and not self._members:
                        return
                    self._asleep_until_us = self._next_look_us(now_us)
            if finished:
                for done, result in finished:
                    _tell(done, result)
                continue
            wait_s = max(0, self._asleep_until_us - now_us) / US_PER_S
            events = self._selector.select(None if self._asleep_until_us == REST_US else wait_s)
            with self._lock:
                self._asleep_until_us = 0
                for key, _ in events:
                    self._handle(key)

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            os.read(self._woken, 4096)
            return
        member, action = key.data
        if member in self._members:  # an earlier event of the same round may have ended it
            action(member)

    def _next_look_us(self, now_us: int) -> int:
        times = [member.deadline_us for member in self._members]
        if self._close_at_us is not None:
            if self._close_at_us > now_us:
                times.append(self._close_at_us)
        elif self._missing():
            times.append(self._start_at_us)
        return min(times, default=REST_US)

    def _missing(self) -> int:
        """Return how many processes are to be started: after a failed start one at a time."""
        missing = self._size - len(self._members)
        if self._fruitless and missing:
            return int(not any(member.state is State.STARTING for member in self._members))
        return missing

    def _start_missing(self) -> None:
        with self._lock:
            missing = self._missing()
            if self._close_at_us is not None or not missing or self._start_at_us > self._clock.steady_us():
                return
        for _ in range(missing):
            # Without the lock: it takes milliseconds, and calls may meanwhile be given to others.
            try:
                process = PoolProcess(self._context, self._init)
            except Exception as exc:
                with self._lock:
                    self._start_failed(f"{type(exc).__name__}: {exc}", before_ready=True)
                return
            with self._lock:
                member = Member(process, self._clock.steady_us() + START_LIMIT_S * US_PER_S)
                self._members.append(member)
            self._selector.register(process.answers_fd, selectors.EVENT_READ, (member, self._readable))
            self._selector.register(process.end_fd, selectors.EVENT_READ, (member, self._ended))

    def _start_failed(self, why: str, *, before_ready: bool) -> None:
        self._fruitless += 1
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(self._fruitless - 1, 16))
        self._start_at_us = self._clock.steady_us() + round(pause_s * US_PER_S)
        if not before_ready:
            return
        self._unready += 1
        log.warning("a process of the pool ended before it was ready (%s); the next start is in %.1f s", why, pause_s)
        up = any(member.state in (State.IDLE, State.BUSY) for member in self._members)
        if self._unready >= STARTS_MAX and not up:
            self._fail_queue(
                "died",
                f"processes end before they are ready, {self._unready} in a row: {why}. Their own words are on "
                'stderr; a script must start its work under `if __name__ == "__main__":`',
            )

    def _fail_queue(self, outcome: Outcome, message: str) -> None:
        while self._queue:
            self._finished.append((self._queue.popleft().done, Result(outcome, message=message)))

    def _close_down(self, now_us: int) -> None:
        if self._close_at_us is None:
            return
        self._fail_queue("closed", "the pool was closed before the call was begun")
        self._idle.clear()
        for member in self._members:
            if member.state is State.IDLE:
                member.let_leave(now_us)
            elif member.state is State.STARTING:
                member.doom(now_us)
            if now_us >= self._close_at_us:
                if member.state is State.BUSY:
                    closed = Result("closed", message="the pool was closed while the call ran, and killed it")
                    member.doom(now_us, closed)
                elif member.state is State.LEAVING:
                    member.deadline_us = min(member.deadline_us, now_us + KILL_AFTER_S * US_PER_S)

    def _pass_deadline(self, member: Member, now_us: int) -> None:
        if member.state is State.STARTING:
            member.why = f"not ready within {START_LIMIT_S} s"
            member.doom(now_us)
        elif member.state is State.BUSY:
            member.process.receive_rest()
            self._take_answers(member)  # it may have ended in time, and this thread been late
            if member.state is State.BUSY and member.deadline_us <= now_us:
                assert member.call is not None
                seconds = (member.call.timeout_us or 0) / US_PER_S
                verdict = Result("timed_out", message=f"it ran longer than {seconds:g} s, and its process was killed")
                member.doom(now_us, verdict)
        elif member.state is State.LEAVING:
            member.doom(now_us)
        elif member.state is State.DOOMED:
            member.deadline_us = REST_US
            member.process.kill()

    def _writable(self, member: Member) -> None:
        try:
            if not member.process.send_more():
                return
        except OSError:
            pass  # it has just ended
        self._selector.unregister(member.process.requests_fd)

    def _readable(self, member: Member) -> None:
        more = member.process.receive()
        self._take_answers(member)
        if not more:
            self._selector.unregister(member.process.answers_fd)
            if member.state is State.IDLE:  # it ends, or a thread of the handler closed what is not its own
                self._doom(member, None)

    def _take_answers(self, member: Member) -> None:
        if member.state is State.DOOMED:
            return  # decided
        try:
            while (body := member.process.take()) is not None:
                self._take_answer(member, msgpack.unpackb(body))
        except BrokenFrame as exc:
            verdict = Result("died", message=f"its answer was damaged on the way ({exc}), and its process was killed")
            self._doom(member, verdict)

    def _doom(self, member: Member, verdict: Result | None) -> None:
        if member in self._idle:
            self._idle.remove(member)
        member.doom(self._clock.steady_us(), verdict)

    def _take_answer(self, member: Member, answer: list[Any]) -> None:
        kind = answer[0]
        if kind == READY and member.state is State.STARTING:
            member.ready = True
            self._unready = 0
            self._rest(member)
        elif kind == BROKEN:
            names, message = answer[1], answer[2]
            member.why = f"{self._init} raised {names[0]}: {message}"
        elif kind in (RETURNED, RAISED) and member.state is State.BUSY:
            call = member.call
            if call is None or call.number != answer[1]:
                return
            if kind == RETURNED:
                result = Result("returned", answer[2])
            else:
                result = Result("raised", names=tuple(answer[2]), message=answer[3], traceback=answer[4])
            self._finished.append((call.done, result))
            self._fruitless = self._start_at_us = 0
            member.call = None
            member.answered += 1
            self._rest(member)

    def _rest(self, member: Member) -> None:
        if self._recycle_after is not None and member.answered >= self._recycle_after:
            member.let_leave(self._clock.steady_us())
            return
        member.state, member.deadline_us = State.IDLE, REST_US
        self._idle.append(member)
        self._give()

    def _ended(self, member: Member) -> None:
        process = member.process
        process.receive_rest()
        self._take_answers(member)
        status = process.exit_status()
        if member.call is not None:
            result = member.fate_of_call(status)
            if result is None:
                self._queue.appendleft(member.call)
            else:
                self._finished.append((member.call.done, result))
        self._forget(member)
        if self._close_at_us is None and member.call is None and not member.answered:
            self._start_failed(member.why or end_text(status), before_ready=not member.ready)

    def _forget(self, member: Member) -> None:
        for fd in (member.process.requests_fd, member.process.answers_fd, member.process.end_fd):
            # A pipe that was closed already may have lent its number to another member's.
            key = self._selector.get_map().get(fd)
            if key is not None and key.data[0] is member:
                self._selector.unregister(fd)
        if member in self._idle:
            self._idle.remove(member)
        if member in self._unsent:
            self._unsent.remove(member)
        self._members.remove(member)
        member.process.release()


def _tell(done: Done, result: Result) -> None:
    try:
        done(result)
    except BaseException:  # it must not end the thread, with SystemExit either
        log.exception("what a pool's caller does with a result raised")
