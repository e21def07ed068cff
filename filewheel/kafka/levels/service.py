"""A member of the levels: it reads the topics of all levels, and forwards each record when its delay has passed.

Runs on the thread that calls `run`, and owns no signal. Invariant: on return of `run` the units under way have ended,
or are forwarded again by the next owner, and what was confirmed is committed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument
from filewheel.kafka.levels.loop import LevelLoop
from filewheel.kafka.levels.metrics import families_of, health_of
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.queue import Stage
from filewheel.kafka.levels.seam import LevelSource, Listener, Sender
from filewheel.kafka.node.health import Health
from filewheel.kafka.node.rules import Rules
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family


class LevelTransport(Protocol):
    """A cluster, for the topics of some levels and one node."""

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed unless all topics are there, with the next command to try."""

    def source(self, listener: Listener) -> LevelSource: ...
    def sender(self) -> Sender: ...


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
        self._stop = threading.Event()
        self._loop: LevelLoop | None = None

    def run(self) -> None:
        """Serve until `stop`. Raises ClusterError when the cluster refuses this user or the client is finished."""
        if self._loop is not None:
            raise BadArgument("a service runs once", hint="make another one")
        sender = self._transport.sender()
        try:
            self._loop = loop = LevelLoop(self._transport.source, sender, self._levels, self._clock)
            try:
                while not self._stop.is_set():
                    loop.step()
            finally:
                loop.close()
        finally:
            sender.close()

    def stop(self) -> None:
        """Let `run` return. From any thread, and from a signal handler."""
        self._stop.set()

    def metrics(self) -> list[Family]:
        """Return the metrics of this node as families. From any thread."""
        loop = self._loop
        return [] if loop is None else families_of(loop, self._names, self._clock.now_us())

    def health(self) -> Health:
        """Return what is wrong with this node now. From any thread."""
        loop = self._loop
        return Health([]) if loop is None else health_of(loop, self._clock.steady_us())

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
                one.reason if one.stage is Stage.BACKING_OFF else "",
            )
            for (topic, partition), one in sorted(queues.items())
        ]
