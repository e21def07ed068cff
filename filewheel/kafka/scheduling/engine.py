"""The engine of a worker: joins the group, runs calls until it is stopped, and joins again after an error.

It has one thread, which polls: no handler, no commit of a transaction and no refused record makes it wait, so the group
keeps this member however long a call takes.
Invariant: when the thread ends, the group has left this member out, and what had ended was produced or runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from filewheel.env import Clock
from filewheel.errors import FilewheelError
from filewheel.kafka.scheduling.keeper import POLL_S, CallKeeper
from filewheel.kafka.scheduling.occurrences import KafkaOccurrences
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.engine import Limits, end_calls
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import Handlers
from filewheel.scheduling.life import FiringThread
from filewheel.scheduling.runners.loop import Loop
from filewheel.scheduling.runners.processes import Processes
from filewheel.scheduling.runners.runner import Runner
from filewheel.scheduling.runners.threads import Threads

log = logging.getLogger("filewheel.kafka.scheduling")

PAUSE_S = 1.0
PAUSE_MAX_S = 60.0


class KafkaEngine(FiringThread):
    """Runs the calls of one worker from a thread of its own."""

    def __init__(
        self,
        path: str,
        join: Callable[[], CallKeeper],
        handlers: Handlers,
        occurrences: KafkaOccurrences,
        limits: Limits,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        """`path` names the scheduler in its jobs; `join` makes a new member of the group."""
        super().__init__("filewheel-kafka-calls")
        self._path = path
        self._join = join
        self._handlers = handlers
        self._occurrences = occurrences
        self._limits = limits
        self._telemetry = telemetry
        self._clock = clock

    def _live(self) -> None:
        pause_s = PAUSE_S
        while not self._stop.is_set():
            try:
                self._term()
                pause_s = PAUSE_S
            except Exception as exc:
                is_ours = isinstance(exc, FilewheelError)
                log.critical("calls are not run: %s; again in %d s", exc, pause_s, exc_info=not is_ours)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _term(self) -> None:
        """Run calls until the stop, or an error."""
        keeper = self._join()
        runners: dict[str, Runner] = {}
        dispatcher = self.dispatcher(keeper, runners)
        begin, finish, clock, path = dispatcher.begin, dispatcher.finish, self._clock, self._path
        runners |= {
            "thread": Threads(self._limits.threads, begin, finish, clock, path),
            "loop": Loop(begin, finish, clock, path),
            "process": Processes(self._limits.processes, begin, finish, clock, path),
        }
        keeper.on_drain = lambda: dispatcher.step(fire=False)
        try:
            while not self._stop.is_set():
                keeper.has_polled = False
                dispatcher.step()
                dispatcher.wait(POLL_S)
                if not keeper.has_polled:  # the group must hear of this member however much there is to do
                    keeper.poll(0)
            end_calls(dispatcher, runners, self._grace_s, clock, self._hurry)
        finally:
            for runner in runners.values():
                runner.stop()
            if (why := dispatcher.settle_all()) is not None:
                log.error("the outcomes of the last calls were not produced: %s", why)
            keeper.close()

    def dispatcher(self, keeper: CallKeeper, runners: dict[str, Runner]) -> Dispatcher:
        """Return a dispatcher of calls."""
        limits = self._limits
        return Dispatcher(
            keeper,
            self._handlers,
            runners,
            slots={"thread": None, "loop": None, "process": None},
            in_flight=limits.in_flight,
            catch_up_per_s=None,
            unknown=limits.unknown,
            clock=self._clock,
            telemetry=self._telemetry,
            occurrences=self._occurrences,
        )
