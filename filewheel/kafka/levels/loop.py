"""The loop of the levels: one thread reads, waits for the heads, sends, and commits.

Owns the queues of the partitions of this member. Outcomes come in from the thread of the producer through one queue.
Invariant: an offset is committed after every record before it was confirmed. A partition that another member may own
is neither sent from nor committed any more.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Collection, Mapping, Sequence

from filewheel.env import Clock
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.levels.queue import LevelQueue, QueueStage
from filewheel.kafka.levels.seam import LevelListener, LevelSink, LevelSource
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.transport import Place, UnitOutcome
from filewheel.kafka.records.record import Record
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


class LevelLoop:
    """The partitions of this member. All calls come from one thread."""

    def __init__(
        self,
        source: Callable[[LevelListener], LevelSource],
        sender: LevelSink,
        levels: Mapping[str, tuple[Level, Rules]],
        clock: Clock,
    ) -> None:
        """Join the group. `levels` has the level and the rules of each topic."""
        self._sender = sender
        self._levels = levels
        self._clock = clock
        self._outcomes: queue.SimpleQueue[tuple[LevelQueue, UnitOutcome]] = queue.SimpleQueue()
        self.queues: dict[Place, LevelQueue] = {}
        self.gaps = dict.fromkeys(levels, 0)
        """How often records were deleted before they were read, by topic."""
        self.forwarded = dict.fromkeys(levels, 0)
        """Records that were confirmed, by topic: of partitions that went away, too."""
        self.turns = 0
        self._said: set[str] = set()
        """Refusals of targets that the log has."""
        self._committed: dict[Place, int] = {}
        self._commit_us = clock.steady_us()
        self._source = source(self)

    # The listener.

    def assigned(self, places: Sequence[Place]) -> None:
        """Begin with these partitions."""
        for place in places:
            level, rules = self._levels[place[0]]
            self.queues[place] = LevelQueue(*place, level.delay_ms, rules)
            log.info("%s [%d]: this node forwards it", *place)

    def revoked(self, places: Sequence[Place]) -> None:
        """Wait for the units of these partitions, commit what is done, and let them go."""
        leaving = {place: self.queues[place] for place in places if place in self.queues}
        self._drain(leaving.values())  # mutant: kafka-level-undrained
        self._commit(leaving, wait=True)
        self.lost(places)

    def lost(self, places: Sequence[Place]) -> None:
        """Let partitions go: another member forwards them again from what was committed."""
        for place in places:
            if self.queues.pop(place, None) is not None:
                log.info("%s [%d]: this node forwards it no more", *place)
            self._committed.pop(place, None)

    # The turns.

    def step(self, timeout_s: float = POLL_S) -> bool:
        """Take one turn: read, send what is due, take in outcomes, commit. Return whether anything was done."""
        polled = self._source.poll(POLL, min(timeout_s, self._until_next_s()))
        for error in polled.errors:
            log.warning("%s", error)
        self.turns += 1
        for place in polled.gone:
            self.gaps[place[0]] += 1
            log.error("%s [%d]: its log was deleted before it was forwarded; a longer retention keeps it", *place)
        self._add(polled.records)
        for place, end in polled.ends.items():
            if place in self.queues:
                self.queues[place].read_to = end
        did = self._take_outcomes() or bool(polled.records)
        did = self._send() or did
        self._balance()
        if self._clock.steady_us() - self._commit_us >= COMMIT_S * US_PER_S:
            self._commit_us = self._clock.steady_us()
            self._commit(self.queues, wait=False)
        return did

    def close(self) -> None:
        """Wait for the units under way, commit, and leave the group."""
        self._source.close()

    def _add(self, records: Sequence[tuple[str, Record]]) -> None:
        batches: dict[Place, list[Record]] = {}
        for topic, record in records:
            batches.setdefault((topic, record.partition), []).append(record)
        for place, batch in batches.items():
            if place in self.queues:
                self.queues[place].add(batch)

    def _send(self) -> bool:
        now_us, steady_us = self._clock.now_us(), self._clock.steady_us()
        did = False
        for one in self.queues.values():
            records = one.take(UNIT, now_us, steady_us)
            if records:
                did = True
                self._sender.send(records, lambda outcome, one=one: self._outcomes.put((one, outcome)))  # type: ignore[misc]
        return did

    def _take_outcomes(self) -> bool:
        did = False
        while True:
            try:
                one, outcome = self._outcomes.get_nowait()
            except queue.Empty:
                return did
            did = True
            self._end(one, outcome)

    def _end(self, one: LevelQueue, outcome: UnitOutcome) -> None:
        before = one.forwarded
        one.ended(outcome, self._clock.now_us(), self._clock.steady_us())
        self.forwarded[one.topic] += one.forwarded - before
        if outcome.refused and one.reason not in self._said:
            self._said.add(one.reason)
            log.warning("target %s", one.reason)

    def _balance(self) -> None:
        for place, one in self.queues.items():
            if one.is_long and not one.is_paused:
                self._source.pause(place)
                one.is_paused = True
            elif one.is_paused and one.is_short:
                self._source.resume(place)
                one.is_paused = False

    def _commit(self, queues: Mapping[Place, LevelQueue], *, wait: bool) -> None:
        offsets = {
            place: one.done
            for place, one in queues.items()
            if one.done is not None and one.done != self._committed.get(place)
        }
        if offsets:
            self._source.commit(offsets, wait=wait)
            self._committed.update(offsets)

    def _drain(self, queues: Collection[LevelQueue]) -> None:
        """Wait until no unit of these is under way. One that is not confirmed in time is forwarded again."""
        for _ in range(round(DRAIN_S / SENDING_S)):
            if not any(one.stage is QueueStage.SENDING for one in queues):
                return
            try:
                one, outcome = self._outcomes.get(timeout=SENDING_S)
            except queue.Empty:
                continue
            self._end(one, outcome)

    def _until_next_s(self) -> float:
        now_us, steady_us = self._clock.now_us(), self._clock.steady_us()
        waits = [wait for one in self.queues.values() if (wait := one.next_us(now_us, steady_us)) is not None]
        if any(one.stage is QueueStage.SENDING for one in self.queues.values()):
            waits.append(round(SENDING_S * US_PER_S))
        return min(waits, default=round(POLL_S * US_PER_S)) / US_PER_S
