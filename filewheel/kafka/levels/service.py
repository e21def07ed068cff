"""A member of the levels: it reads the topics of all levels, and forwards each record when its delay has passed.

Runs on the thread that calls `run`, and owns no signal. Invariant: on return of `run` the units under way have ended,
or are forwarded again by the next owner, and what was confirmed is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import BadArgument, WrongSource, anew
from filewheel.kafka.levels.loop import LevelLoop
from filewheel.kafka.levels.metrics import families_of
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.queue import QueueStage
from filewheel.kafka.levels.seam import LevelListener, LevelSink, LevelSource
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.topic_look import ReadTopics, TopicLook
from filewheel.kafka.node.transport import Place
from filewheel.kafka.node.watchdog import Unit
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family


class LevelTransport(ReadTopics, Protocol):
    """A cluster, for the topics of some levels and one node."""

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all topics are there."""

    def source(self, listener: LevelListener, ids: Mapping[str, str]) -> LevelSource: ...
    def sender(self) -> LevelSink: ...


@dataclass(frozen=True, slots=True)
class LevelStatus:
    """One partition of a level on this node."""

    topic: str
    partition: int
    waiting: int
    """Records that were read and are not forwarded. More may wait on the brokers."""
    forwarded: int
    late_s: float
    """How late the first record of the last unit was confirmed."""
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
        sender = self._transport.sender()
        try:
            source = partial(self._transport.source, ids=ids)
            loop = LevelLoop(source, sender, self._levels, self._clock)
            look = self.watch(loop, ids)
            look.start()
            try:
                while not self._stop.is_set():
                    loop.step()
            finally:
                loop.close()
                look.end()
        finally:
            sender.close()
        if self._failure is not None:
            raise anew(self._failure)

    def watch(self, loop: LevelLoop, ids: Mapping[str, str]) -> TopicLook:
        """Serve with this loop; return what looks at it. `ids`: the cluster's id of each topic."""
        self._loop = loop
        self._look = TopicLook(
            self._transport, ids, lambda: list(loop.queues), self._units, self._made_anew, self._clock
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
        queues = {} if self._loop is None else self._loop.queues.copy()
        held = [one for _, one in sorted(queues.items()) if one.stage is QueueStage.BACKING_OFF]
        stalled = [Problem("target", "warning", f"{one.topic}: {one.reason}", one.partition) for one in held]
        return NodeHealth([*stalled, *([] if self._look is None else self._look.watchdog.look())])

    def _units(self, ends: Mapping[Place, int]) -> Iterator[Unit]:
        if self._loop is None:
            return
        yield Unit("the loop made no turn", self._loop.turns, "")
        now_us = self._clock.now_us()
        for place, one in sorted(self._loop.queues.copy().items()):
            name, end = f"{place[0]} [{place[1]}]", ends.get(place)
            has_read = one.is_paused or end in (None, one.read_to)
            why = None if has_read else f"it was read up to offset {one.read_to}, and ends at {end}"
            yield Unit(f"{name} was not read", one.read_to, why, place[1])
            is_late = one.first_due_us is not None and one.first_due_us <= now_us
            waits_for = one.reason or "records are due"
            yield Unit(f"{name} was not forwarded", one.done, waits_for if is_late else None, place[1])

    def status(self) -> Sequence[LevelStatus]:
        """Return what each partition of this node does."""
        queues = {} if self._loop is None else dict(self._loop.queues)
        return [
            LevelStatus(
                topic,
                partition,
                one.waiting,
                one.forwarded,
                max(one.late_us, 0) / US_PER_S,
                one.reason if one.stage is QueueStage.BACKING_OFF else "",
            )
            for (topic, partition), one in sorted(queues.items())
        ]
