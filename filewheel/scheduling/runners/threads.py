"""The runner for plain functions: a fixed number of threads that take calls from one queue.

A thread cannot be stopped from outside. When a call times out, its thread is abandoned and replaced; the result of the
call is ignored.
Invariant: `count` threads take calls, even when calls hang.
"""

from __future__ import annotations

import logging
import queue
import threading

from filewheel.disk.threads import started
from filewheel.env import Clock
from filewheel.errors import DiskError, disk_errors
from filewheel.runs.run import Place
from filewheel.scheduling.outcome import Outcome
from filewheel.scheduling.runners.runner import Begin, Call, Finish, Runner, run, stack_of

log = logging.getLogger(__name__)


class Threads(Runner):
    """Runs calls in its own threads, which the first calls start."""

    starts_anywhere = True

    def __init__(self, count: int, begin: Begin, finish: Finish, clock: Clock, wheel: str, pool: str = "") -> None:
        """`pool` is its name, for the names of the threads."""
        self._count = count
        self._name = f"filewheel-{pool}-" if pool else "filewheel-"
        self._begin = begin
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._running: dict[Call, threading.Thread] = {}
        self._stopping = False
        self._adding = threading.Lock()
        self.given_up = 0
        """How many threads were abandoned."""

    def start(self, call: Call) -> None:
        """Queue a call."""
        self._calls.put(call)
        if len(self._threads) < self._count:
            with self._adding:
                if len(self._threads) < self._count:
                    self._add_thread()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}{len(self._threads) + 1}", daemon=True)
        self._threads.add(thread)
        try:
            with disk_errors(self._wheel):
                started(thread)
        except DiskError as exc:
            self._threads.discard(thread)
            if not self._threads:
                raise
            log.warning("%s; %d threads take the calls", exc, len(self._threads))

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            self._running[call] = threading.current_thread()
            if self._stopping:  # checked after `_running` is set: `busy` counts this call, or it does not begin
                del self._running[call]
                return
            if not self._begin(call):
                del self._running[call]
                continue
            call.begun_us = self._clock.steady_us()
            try:
                outcomes = run(call, self._clock, self._wheel)
            except KeyboardInterrupt as exc:  # raised by the handler: Ctrl-C reaches only the main thread
                outcomes = call.fail(Outcome.of(exc))
            if not call.end():
                return  # it timed out, and another thread replaces this one
            call.outcomes, call.ended_us = outcomes, self._clock.steady_us()
            self._finish(call)
            self._running.pop(call, None)

    def give_up(self, call: Call) -> str:
        """Abandon the thread of a call, and start another in its place; return the thread's stack."""
        self.given_up += 1
        stuck = self._running.pop(call, None)
        stack = "" if stuck is None else stack_of(stuck.ident, call.handler.function)
        log.warning("a call of %s runs past its time-out; its thread is abandoned", call.handler.name)
        if stuck is not None:
            self._threads.discard(stuck)
        if not self._stopping:
            self._add_thread()
        return stack

    def quiet(self) -> None:
        """Begin no more calls."""
        self._stopping = True
        for _ in self._threads:
            self._calls.put(None)  # one for each thread that is not abandoned

    def busy(self) -> int:
        """Return how many calls run."""
        return len(self._running)

    def running(self) -> list[tuple[Call, Place]]:
        """Return the calls that run, and their threads."""
        running = self._running.copy()
        return [(call, Place("thread", thread.name)) for call, thread in running.items() if call.begun_us]

    def stop(self) -> None:
        """Abandon running calls; their threads end with the process."""
        if not self._stopping:
            self.quiet()
