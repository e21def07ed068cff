"""The loop of the levels: one thread reads, fires the heads of the queues, and commits.

Owns the queues of the partitions of this member. Their firings, and the loop that fires them, are those of a node.
Invariant: an offset is committed after every record before it was confirmed. A partition that another member may own
is neither sent from nor committed any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from filewheel.env import Clock, Event
from filewheel.errors import FilewheelError
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.queue import LevelQueue
from filewheel.kafka.node.fire import PartitionFiring
from filewheel.kafka.node.loop import FireLoop
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import BEGINNING, Listener, Place, RecordSource, Sink, UnitOutcome
from filewheel.kafka.partition.marker import NO_MARKER
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka")

UNIT = 1000
"""The most records of one send."""
POLL = 500
POLL_S = 0.05
"""The longest wait of a turn: an outcome that comes in is seen within this time."""
SENDING_S = 0.005
COMMIT_S = 0.5
"""How often offsets are committed. After a crash so much is forwarded again."""
DRAIN_S = 5.0
"""How long a partition that goes away may wait for the outcome of its unit."""


@dataclass(slots=True)
class LevelPartition:
    """One partition of this member."""

    queue: LevelQueue
    firing: PartitionFiring

    @property
    def first_due_us(self) -> int | None:
        """The due of the first record that is not confirmed."""
        in_hand_us = self.firing.first_due_us
        return self.queue.next_due_us() if in_hand_us is None else in_hand_us


class LevelLoop:
    """The partitions of this member. All calls come from one thread."""

    def __init__(
        self,
        source: Callable[[Listener[Place]], RecordSource[Place]],
        sink: Callable[[], Sink],
        levels: Mapping[str, tuple[Level, Rules]],
        ids: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Join the group. `levels` has the level and the rules of each topic, `ids` the cluster's id of each."""
        self._sink = sink
        self._levels = levels
        self._ids = ids
        self._clock = clock
        self._tally = NodeCounters(clock=clock)
        self._lock = threading.RLock()
        self.fire = FireLoop(clock, failed=self._failed, stopped=self._sink_finished)
        self.coming: set[Place] = set()
        """Assigned partitions whose committed offset is not known yet."""
        self.partitions: dict[Place, LevelPartition] = {}
        self.gaps = dict.fromkeys(levels, 0)
        """How often records were deleted before they were read, by topic."""
        self.forwarded = dict.fromkeys(levels, 0)
        """Records that were confirmed, by topic: of partitions that went away, too."""
        self.turns = 0
        self._committed: dict[Place, int] = {}
        self._commit_us = clock.steady_us()
        self._source = source(self)

    # The listener.

    def assigned(self, places: Sequence[Place]) -> None:
        """Note partitions that are ours: they begin once their committed offsets are known."""
        self.coming.update(places)

    def revoked(self, places: Sequence[Place]) -> None:
        """Wait for the units of these partitions, commit what is done, and let them go."""
        leaving = [place for place in places if place in self.partitions]
        self._drain([self.fire.drain(place) for place in leaving])  # mutant: kafka-level-undrained
        self._commit(leaving, wait=True)
        self.lost(places)

    def lost(self, places: Sequence[Place]) -> None:
        """Let partitions go: another member forwards them again from what was committed."""
        for place in places:
            self.coming.discard(place)
            self._committed.pop(place, None)
            gone = self.partitions.pop(place, None)
            if gone is not None:
                gone.firing.sink.close()
                self.fire.drop(place)
                log.info("%s [%d]: this node forwards it no more", *place)

    # The turns.

    def step(self, timeout_s: float = POLL_S) -> bool:
        """Take one turn: read, send what is due, take in outcomes, commit. Return whether anything was done."""
        if any(one.firing.is_sending for one in self.partitions.values()):
            timeout_s = min(timeout_s, SENDING_S)
        polled = self._source.poll(POLL, min(timeout_s, self.fire.until_next_s()))
        for error in polled.errors:
            log.warning("%s", error)
        self.turns += 1
        for place in polled.gone:
            self.gaps[place[0]] += 1
            log.error("%s [%d]: its log was deleted before it was forwarded; a longer retention keeps it", *place)
            self._source.start(place, BEGINNING)
        for place, records in polled.records.items():
            self.partitions[place].queue.add(records)
            self.fire.wake(place)
        for place, end in polled.ends.items():
            self.partitions[place].queue.ingested = end
        did = self._start_coming() or bool(polled.records)
        did = self.fire.step() or did
        self._balance()
        if self._clock.steady_us() - self._commit_us >= COMMIT_S * US_PER_S:
            self._commit_us = self._clock.steady_us()
            self._commit(self.partitions, wait=False)
        return did

    def close(self) -> None:
        """Wait for the units under way, commit, and leave the group."""
        self._source.close()

    def _start_coming(self) -> bool:
        """Begin with the partitions whose committed offsets the group says; return whether it said any.

        Without one, a partition begins at its first record.
        """
        found = self._source.committed(list(self.coming)) if self.coming else None
        for place, position in (found or {}).items():
            level, rules = self._levels[place[0]]
            queue = LevelQueue(level.delay_ms, rules, partial(self._count, place[0]))
            self._begin(place, queue)
            offset, topic_id = position or (BEGINNING, "")
            # An offset of a topic that was deleted says nothing of the next one with its name.
            self._source.start(place, offset if topic_id in ("", self._ids[place[0]]) else BEGINNING)
            self.coming.discard(place)
            log.info("%s [%d]: this node forwards it", *place)
        return bool(found)

    def _begin(self, place: Place, queue: LevelQueue) -> None:
        """Fire a queue through a new sink."""
        firing = PartitionFiring(
            place[1],
            queue,
            self._sink(),
            NO_MARKER,
            self._levels[place[0]][1],
            lock=self._lock,
            limit=UNIT,
            done=self.fire.outcome,
            tally=self._tally,
            key=place,
        )
        self.partitions[place] = LevelPartition(queue, firing)
        self.fire.add(firing)

    def _count(self, topic: str, records: int) -> None:
        self.forwarded[topic] += records

    def _sink_finished(self, place: Place, outcome: UnitOutcome) -> None:
        log.warning("%s [%d]: %s (%s)", *place, outcome.end.value, outcome.reason)
        if place in self.partitions:
            self._begin(place, self.partitions[place].queue)

    def _failed(self, place: Place, exc: FilewheelError) -> None:
        raise exc

    def _balance(self) -> None:
        for place, one in self.partitions.items():
            queue = one.queue
            if queue.is_long and not queue.is_paused:
                self._source.pause(place)
                queue.is_paused = True
            elif queue.is_paused and queue.is_short:
                self._source.resume(place)
                queue.is_paused = False

    def _commit(self, places: Collection[Place], *, wait: bool) -> None:
        done = {place: self.partitions[place].queue.done for place in places}
        offsets = {p: offset for p, offset in done.items() if offset is not None and offset != self._committed.get(p)}
        if offsets:
            self._source.commit({p: (offset, self._ids[p[0]]) for p, offset in offsets.items()}, wait=wait)
            self._committed.update(offsets)

    def _drain(self, events: Collection[Event]) -> None:
        """Wait until no unit of these is under way. One that is not confirmed in time is forwarded again."""
        for _ in range(round(DRAIN_S / SENDING_S)):
            self.fire.step(SENDING_S)
            if all(event.is_set() for event in events):
                return
