"""Looks at the topics that a member of a group reads, from a thread of its own: the member's thread may wait.

A topic that was deleted and made anew has other records at the offsets that were read, so its reader must end. And a
member that makes no progress must say so itself: its offsets in the group look the same as those of one without work.
Owns the thread, the ends of the logs as they were at the last look, and the watchdog of the member's units.
Invariant: a look never waits for the member, and the member never for a look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from filewheel.disk.threads import started
from filewheel.env import Clock, Event
from filewheel.errors import ClusterError, WrongSource
from filewheel.kafka.node.transport import Place
from filewheel.kafka.node.watch import LOOK_S
from filewheel.kafka.node.watchdog import Unit, Watchdog
from filewheel.message import US_PER_S


class ReadTopics(Protocol):
    """The topics, as a cluster tells of them."""

    def ids(self) -> Mapping[str, str]:
        """Return the cluster's id of each topic that is read. Raises ClusterError."""

    def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        """Return where logs end, of those that are known. Raises ClusterError if none is."""

    def interrupt(self) -> None:
        """Let questions that wait for an answer end with NoBroker, soon."""


class TopicLook:
    """Looks each second at the units, and every LOOK_S at the topics."""

    def __init__(
        self,
        topics: ReadTopics,
        ids: Mapping[str, str],
        places: Callable[[], Sequence[Place]],
        units: Callable[[Mapping[Place, int]], Iterable[Unit]],
        changed: Callable[[WrongSource], None],
        clock: Clock,
    ) -> None:
        """`ids` are those of the topics when the member began. `places` returns the partitions that it reads; `units`
        gets the ends of their logs. `changed` is called when a topic has another id.
        """
        self._topics = topics
        self._ids = ids
        self._places = places
        self._units_of = units
        self._changed = changed
        self._clock = clock
        self._ends: Mapping[Place, int] = {}
        self._looks = 0
        self._silence = ""
        self._stop = Event()
        self._thread: threading.Thread | None = None
        self.watchdog = Watchdog(self._units, clock)

    def start(self) -> None:
        """Start the thread."""
        self._thread = started(threading.Thread(target=self._look_on, name="filewheel-kafka-look", daemon=True))

    def end(self) -> None:
        """End the thread, and the question that it waits for."""
        self._stop.set()
        self._topics.interrupt()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> None:
        """Ask how far the logs reach, and whether the topics are still those that were begun with."""
        try:
            self._ends = self._topics.ends(self._places())
            found = self._topics.ids()
        except ClusterError as exc:
            self._silence = exc.what
            return
        self._looks, self._silence = self._looks + 1, ""
        for topic in sorted(self._ids):
            if found[topic] != self._ids[topic]:  # mutant: kafka-read-anew
                hint = "start it again: it begins with the first record of the new topic"
                self._changed(WrongSource(f"{topic} was deleted and made anew", hint=hint))

    def _look_on(self) -> None:
        next_us = 0
        while not self._stop.wait(1.0):
            self.watchdog.look()
            if self._clock.steady_us() >= next_us:
                next_us = self._clock.steady_us() + round(LOOK_S * US_PER_S)
                self.look()

    def _units(self) -> Iterator[Unit]:
        yield Unit("the cluster gave no answer", self._looks, self._silence)
        yield from self._units_of(self._ends)
