"""The runner that calls handlers in the calling thread, one after another: for tests of programs, and for `drain`.

Coroutine functions run in an event loop of the runner, or as tasks of a given loop that runs in another thread.
Invariant: when `start` returns, the call has ended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Sequence
from typing import Any

from filewheel.env import Clock
from filewheel.scheduling.outcome import Outcome
from filewheel.scheduling.runners.loop import cancelled_itself, run_async
from filewheel.scheduling.runners.runner import Begin, Call, Finish, Runner, run


class Inline(Runner):
    """Runs each call at once. Coroutine functions run in `loop`, or in a loop of the runner."""

    def __init__(
        self, begin: Begin, finish: Finish, clock: Clock, wheel: str, *, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self._begin = begin
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self._callers = loop
        self._own: asyncio.Runner | None = None

    def start(self, call: Call) -> None:
        """Run a call and finish it."""
        if not self._begin(call):
            return
        call.begun_us = self._clock.steady_us()
        is_async = call.handler.terms.where == "loop"
        call.outcomes = self._await(call) if is_async else run(call, self._clock, self._wheel)
        call.ended_us = self._clock.steady_us()
        self._finish(call)

    def _await(self, call: Call) -> Sequence[Outcome] | None:
        running = run_async(call, self._clock, self._wheel)
        try:
            if self._callers is not None:
                return asyncio.run_coroutine_threadsafe(running, self._callers).result()
            if self._own is None:
                self._own = asyncio.Runner()
            return self._stoppable(call, self._own, running)
        except (asyncio.CancelledError, concurrent.futures.CancelledError):  # Ctrl-C comes as KeyboardInterrupt
            return call.fail(cancelled_itself())

    @staticmethod
    def _stoppable(
        call: Call, runner: asyncio.Runner, running: Coroutine[Any, Any, Sequence[Outcome] | None]
    ) -> Sequence[Outcome] | None:
        """Await a call, which fails if it stops the loop."""
        try:
            return runner.run(running)
        except RuntimeError as exc:
            if asyncio._get_running_loop() is not None:  # this is a call inside of another loop
                raise
            for task in asyncio.all_tasks(runner.get_loop()):
                task.cancel()
            return call.fail(Outcome.of(exc))

    def stop(self) -> None:
        """Close the runner's event loop."""
        if self._own is not None:
            self._own.close()
            self._own = None
