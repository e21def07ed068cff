"""A member of the levels: it reads the topics of all levels, and forwards each record when its delay has passed.

Runs on the thread that calls `run`, and owns no signal. Invariant: on return of `run` the units under way have ended,
or are forwarded again by the next owner, and what was confirmed is committed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import BadArgument, ClusterError, FilewheelError, WrongSource, anew
from filewheel.kafka.levels.loop import LevelLoop
from filewheel.kafka.levels.metrics import families_of
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.queue import QueueStage
from filewheel.kafka.levels.seam import LevelListener, LevelSink, LevelSource, Place
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.watch import LOOK_S
from filewheel.kafka.node.watchdog import Unit, Watchdog
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family


class LevelTransport(Protocol):
    """A cluster, for the topics of some levels and one node."""

    def check(self) -> Mapping[str, str]:
        """Return the cluster's id of each level's topic.

        Raises NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all topics are there.
        """

    def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return where logs end, of those that are known. Raises ClusterError if none is."""

    def source(self, listener: LevelListener, ids: Mapping[str, str]) -> LevelSource: ...
    def sender(self) -> LevelSink: ...
    def interrupt(self) -> None:
        """Let questions that wait for an answer end with NoBroker, soon."""


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
        self._watchdog = Watchdog(self._units, clock)
        self._ends: Mapping[Place, int] = {}
        self._looks = 0
        self._silence = ""
        self._failure: FilewheelError | None = None

    def run(self) -> None:
        """Serve until `stop`.

        Raises ClusterError when the cluster refuses this user or the client is finished; WrongSource when a topic was
        deleted and made anew.
        """
        if self._loop is not None:
            raise BadArgument("a service runs once", hint="make another one")
        ids = self._transport.check()
        sender = self._transport.sender()
        try:
            source = partial(self._transport.source, ids=ids)
            self._loop = loop = LevelLoop(source, sender, self._levels, self._clock)
            looks = threading.Thread(target=self._look_on, args=(ids,), name="filewheel-kafka-look")
            looks.start()
            try:
                while not self._stop.is_set():
                    loop.step()
            finally:
                self._stop.set()
                loop.close()
                self._transport.interrupt()
                looks.join()
        finally:
            sender.close()
        if self._failure is not None:
            raise anew(self._failure)

    def _look_on(self, ids: Mapping[str, str]) -> None:
        """Look at the units each second, and at the topics every LOOK_S: beside the loop, because that may wait."""
        next_us = 0
        while not self._stop.wait(1.0):
            self._watchdog.look()
            if self._clock.steady_us() >= next_us:
                next_us = self._clock.steady_us() + round(LOOK_S * US_PER_S)
                self._look(ids)

    def _look(self, ids: Mapping[str, str]) -> None:
        """Ask how far the logs reach, and whether the topics are those that have these ids; else the service ends."""
        assert self._loop is not None
        try:
            self._ends = self._transport.ends(list(self._loop.queues))
            found = self._transport.check()
        except ClusterError as exc:
            self._silence = exc.what
            return
        self._looks, self._silence = self._looks + 1, ""
        for topic in sorted(ids):
            if found[topic] != ids[topic]:
                hint = "start the nodes again: they forward everything that the new topic holds"
                self._failure = WrongSource(f"{topic} was deleted and made anew", hint=hint)
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
        return NodeHealth([*stalled, *self._watchdog.look()])

    def _units(self) -> Iterator[Unit]:
        if self._loop is None:
            return
        yield Unit("the loop made no turn", self._loop.turns, "")
        yield Unit("the cluster gave no answer", self._looks, self._silence)
        now_us, ends = self._clock.now_us(), self._ends
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
