"""The engine of a worker: joins the group, runs calls until it is stopped, and joins again after an error.

It has one thread, which polls: no handler, no commit of a transaction and no refused record makes it wait, so the group
keeps this member however long a call takes. A second one looks at it, and at the topic of calls (node/topic_look.py).
Invariants: when the thread ends, the group has left this member out, and what had ended was produced or runs again. It
ends for good when the topic of calls is another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from filewheel.env import Clock
from filewheel.errors import FilewheelError, WrongSource, anew
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.topic_look import TopicLook
from filewheel.kafka.node.transport import Place
from filewheel.kafka.node.watchdog import Unit
from filewheel.kafka.scheduling.call import CallTopics
from filewheel.kafka.scheduling.keeper import POLL_S, CallKeeper
from filewheel.kafka.scheduling.occurrences import KafkaOccurrences
from filewheel.kafka.scheduling.transport import CallTransport
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.engine import Limits, end_calls, runners_of
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import Handlers
from filewheel.scheduling.life import FiringThread
from filewheel.scheduling.runners.runner import Runner

log = logging.getLogger("filewheel.kafka.scheduling")

PAUSE_S = 1.0
PAUSE_MAX_S = 60.0


class KafkaEngine(FiringThread):
    """Runs the calls of one worker from a thread of its own."""

    def __init__(
        self,
        path: str,
        transport: CallTransport,
        topics: CallTopics,
        ids: Mapping[str, str],
        handlers: Handlers,
        occurrences: KafkaOccurrences,
        limits: Limits,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        """`path` names the scheduler in its jobs. `ids`: the cluster's id of the topic of calls."""
        super().__init__("filewheel-kafka-calls")
        self._path = path
        self._transport = transport
        self._topics = topics
        self._ids = ids
        self._handlers = handlers
        self._occurrences = occurrences
        self._limits = limits
        self._telemetry = telemetry
        self._clock = clock
        self._keeper: CallKeeper | None = None
        self._trouble = ""
        """Why the last term ended."""
        self._failure: WrongSource | None = None
        self.look = TopicLook(transport, ids, self._places, self._units, self._made_anew, clock)

    def check(self) -> None:
        """Raise WrongSource when the thread has ended because the topic of calls is another one now."""
        if self._failure is not None:
            raise anew(self._failure)

    def health(self) -> NodeHealth:
        """Return what is wrong with this worker now. From any thread."""
        if self._failure is not None:
            return NodeHealth([Problem("failed", "failing", str(self._failure))])
        return NodeHealth(self.look.watchdog.look())

    def _places(self) -> list[Place]:
        keeper = self._keeper
        return [] if keeper is None else [(self._topics.calls, number) for number in keeper.partitions]

    def _units(self, ends: Mapping[Place, int]) -> Iterator[Unit]:
        keeper = self._keeper
        yield Unit("the worker made no turn", (id(keeper), 0 if keeper is None else keeper.polls), self._trouble)
        if keeper is not None:
            yield from keeper.units({number: end for (_, number), end in ends.items()})

    def _made_anew(self, failure: WrongSource) -> None:
        log.critical("calls are not run any more: %s", failure)
        self._failure = failure
        self._stop.set()

    def _live(self) -> None:
        self.look.start()
        pause_s = PAUSE_S
        while not self._stop.is_set():
            try:
                self._term()
                pause_s = PAUSE_S
            except Exception as exc:
                is_ours = isinstance(exc, FilewheelError)
                log.critical("calls are not run: %s; again in %d s", exc, pause_s, exc_info=not is_ours)
                self._trouble = str(exc)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
        self.look.end()

    def join(self) -> CallKeeper:
        """Return a new member of the group."""
        return CallKeeper(
            self._transport,
            self._topics,
            self._clock,
            in_flight=self._limits.in_flight,
            occurrences=self._occurrences,
            topic_id=self._ids[self._topics.calls],
        )

    def _term(self) -> None:
        """Run calls until the stop, or an error."""
        self._keeper = keeper = self.join()
        runners: dict[str, Runner] = {}
        dispatcher = self.dispatcher(keeper, runners)
        runners |= runners_of(self._limits, dispatcher, self._clock, self._path)
        keeper.on_drain = lambda: dispatcher.step(fire=False)
        try:
            while not self._stop.is_set():
                polls = keeper.polls
                dispatcher.step()
                dispatcher.wait(POLL_S)
                if keeper.polls == polls:  # the group must hear of this member however much there is to do
                    keeper.poll(0)
            end_calls(dispatcher, runners, self._grace_s, self._clock, self._hurry)
        finally:
            for runner in runners.values():
                runner.stop()
            if (why := dispatcher.settle_all()) is not None:
                log.error("the outcomes of the last calls were not produced: %s", why)
            keeper.close()
            self._keeper = None

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
