"""A member of the levels: it reads the topics of all levels, and forwards each record when its delay has passed.

Runs on the thread that calls `run`, and owns no signal. Invariant: on return of `run` the units under way have ended,
or are forwarded again by the next owner, and what was confirmed is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import BadArgument, WrongSource, anew
from filewheel.kafka.levels.loop import LevelLoop, LevelPartition
from filewheel.kafka.levels.metrics import families_of
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.node.fire import FiringStage
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.topic_look import ReadTopics, TopicLook
from filewheel.kafka.node.transport import Listener, Place, RecordSource, Sink
from filewheel.kafka.node.watchdog import Unit
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family


class LevelTransport(ReadTopics, Protocol):
    """A cluster, for the topics of some levels and one node."""

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all topics are there."""

    def source(self, listener: Listener[Place]) -> RecordSource[Place]: ...
    def sink(self) -> Sink:
        """Return the way out of one partition."""

    def close(self) -> None:
        """Wait some seconds for what was sent."""


@dataclass(frozen=True, slots=True)
class LevelStatus:
    """One partition of a level on this node."""

    topic: str
    partition: int
    waiting: int
    """Records that were read and are not forwarded. More may wait on the brokers."""
    forwarded: int
    late_s: float
    """How late the first record of the last unit went out."""
    reason: str
    """Why it stands; empty when it does not."""


class LevelService:
    """A node that forwards the records of levels. `run` blocks until `stop`."""

    def __init__(
        self, transport: LevelTransport, levels: Mapping[str, tuple[Level, Rules]], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Serve these topics; each has its level and its rules. The group is joined by `run`."""
        self._transport = transport
        self._levels = levels
        self._clock = clock
        self._names = {topic: level.name for topic, (level, _) in levels.items()}
        self._stop = Event()
        self._loop: LevelLoop | None = None
        self._look: TopicLook | None = None
        self._failure: WrongSource | None = None

    def run(self) -> None:
        """Serve until `stop`.

        Raises ClusterError when the cluster refuses this user or the client is finished; WrongSource when a topic was
        deleted and made anew.
        """
        if self._loop is not None:
            raise BadArgument("a service runs once", hint="make another one")
        self._transport.check()
        ids = self._transport.ids()
        try:
            loop = LevelLoop(self._transport.source, self._transport.sink, self._levels, ids, self._clock)
            look = self.watch(loop, ids)
            look.start()
            try:
                while not self._stop.is_set():
                    loop.step()
            finally:
                loop.close()
                look.end()
        finally:
            self._transport.close()
        if self._failure is not None:
            raise anew(self._failure)

    def watch(self, loop: LevelLoop, ids: Mapping[str, str]) -> TopicLook:
        """Serve with this loop; return what looks at it. `ids`: the cluster's id of each topic."""
        self._loop = loop
        self._look = TopicLook(
            self._transport, ids, lambda: list(loop.partitions), self._units, self._made_anew, self._clock
        )
        return self._look

    def _made_anew(self, failure: WrongSource) -> None:
        self._failure = failure
        self._stop.set()

    def stop(self) -> None:
        """Let `run` return. From any thread, and from a signal handler."""
        self._stop.set()

    def metrics(self) -> list[Family]:
        """Return the metrics of this node as families. From any thread."""
        loop = self._loop
        return [] if loop is None else families_of(loop, self._names, self._clock.now_us())

    def health(self) -> NodeHealth:
        """Return what is wrong with this node now. From any thread."""
        steady_us = self._clock.steady_us()
        refusing = [
            Problem("target", "warning", f"{topic}: target {target} refuses records: {why}", number)
            for (topic, number), one in self._partitions()
            for target, why in one.firing.refusals(steady_us)
        ]
        return NodeHealth([*refusing, *([] if self._look is None else self._look.watchdog.look())])

    def _partitions(self) -> list[tuple[Place, LevelPartition]]:
        return [] if self._loop is None else sorted(self._loop.partitions.copy().items(), key=lambda item: item[0])

    def _units(self, ends: Mapping[Place, int]) -> Iterator[Unit]:
        if self._loop is None:
            return
        yield Unit("the loop made no turn", self._loop.turns, "")
        now_us = self._clock.now_us()
        for topic, number in sorted(self._loop.coming.copy()):
            yield Unit(f"{topic} [{number}] was not read", None, "the group does not say where to begin", number)
        for (topic, number), one in self._partitions():
            queue, end = one.queue, ends.get((topic, number))
            has_read = queue.is_paused or end in (None, queue.ingested)
            why = None if has_read else f"it was read up to offset {queue.ingested}, and ends at {end}"
            yield Unit(f"{topic} [{number}] was not read", queue.ingested, why, number)
            yield Unit(f"{topic} [{number}] was not forwarded", queue.done, one.firing.waits_for(now_us), number)

    def status(self) -> Sequence[LevelStatus]:
        """Return what each partition of this node does."""
        return [
            LevelStatus(
                topic,
                number,
                one.queue.waiting,
                one.firing.counts.fired,
                max(one.firing.counts.late_us, 0) / US_PER_S,
                one.firing.reason if one.firing.stage is FiringStage.BACKING_OFF else "",
            )
            for (topic, number), one in self._partitions()
        ]
