"""The runner that calls handlers in the calling thread, one after another: for tests of programs, and for `drain`.

Invariant: when `start` returns, the call has ended.
"""

from __future__ import annotations

import asyncio

from filewheel.clock import Clock
from filewheel.scheduling.loop import cancelled_itself, run_async
from filewheel.scheduling.task import Call, Finish, Outcome, run


class Inline:
    """Runs each call at once. Coroutine functions get an event loop of their own."""

    def __init__(self, finish: Finish, clock: Clock, wheel: str) -> None:
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self._loop: asyncio.Runner | None = None

    def start(self, call: Call) -> None:
        """Run a call and finish it."""
        call.begun_us = self._clock.steady_us()
        if call.handler.terms.where == "loop":
            if self._loop is None:
                self._loop = asyncio.Runner()
            try:
                outcome = self._loop.run(run_async(call, self._clock, self._wheel))
            except asyncio.CancelledError:  # Ctrl-C comes as KeyboardInterrupt
                outcome = Outcome.failed(call, cancelled_itself())
        else:
            outcome = run(call, self._clock, self._wheel)
        outcome.ended_us = self._clock.steady_us()
        self._finish(outcome)

    def quiet(self) -> None:
        """Do nothing: nothing is queued here."""

    def busy(self) -> int:
        """Return 0: nothing goes on here."""
        return 0

    def give_up(self, call: Call) -> None:
        """Do nothing: a call has ended before anyone could give it up."""

    def stop(self) -> None:
        """Close the event loop."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
