"""What calls ended with, on its way to the cluster.

At least once each end goes by itself; exactly once all that are ready go as one transaction with the positions of their
calls, one at a time. Nothing leaves the memory before it is confirmed: what was refused, failed or aborted is sent
again, what lost its answer is decided, and a worker never has to read a record a second time.
Invariant: an offset is finished only after each record of its end was confirmed; what belongs to no partition of this
member is not sent.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from filewheel.env import Clock
from filewheel.kafka.node.transport import CallSink, End, GroupCommit, RecordSource, UnitOutcome
from filewheel.kafka.records.record import Outgoing
from filewheel.kafka.scheduling.progress import Committed, Progress, is_done
from filewheel.message import US_PER_S

log = logging.getLogger("filewheel.kafka.scheduling")

BACK_OFF_US = 100_000
"""The first wait after an end that was not produced; each next one doubles it."""
BACK_OFF_MAX_US = 10 * US_PER_S

Place = tuple[Progress, int]
"""Where a call was read: the progress of its partition, and its offset."""


@dataclass(slots=True, eq=False)
class _Ending:
    """The end of a call that is not confirmed yet."""

    number: int
    """Counts from 1, in the order in which calls ended."""
    records: list[Outgoing]
    places: list[Place]
    """What it ends: one place, or more for a record that was produced twice. None for a planted occurrence."""
    retry_us: int = 0
    back_off_us: int = BACK_OFF_US

    @property
    def is_ours(self) -> bool:
        return not self.places or any(progress.is_owned for progress, _ in self.places)

    def finish(self) -> None:
        for progress, offset in self.places:
            progress.finish(offset)


class UnconfirmedEnds:
    """The ends of calls that are not confirmed. One thread uses it; the sink answers on any."""

    def __init__(self, sink: CallSink, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` is called on the sink's thread when an answer came."""
        self._sink = sink
        self._clock = clock
        self._wake = wake
        self._endings: deque[_Ending] = deque()
        """Not sent, or to be sent again."""
        self._sent: set[_Ending] = set()
        self._answers: deque[tuple[list[_Ending], UnitOutcome]] = deque()
        """Appended to by the sink's thread."""
        self._undecided: list[_Ending] = []
        """A transaction whose answer was lost; nothing is sent until it is decided."""
        self._group: Any = None
        """This member and its generation, for the sink."""
        self._added = 0
        self.reason = ""
        """Why the last end that failed was not produced."""

    def __len__(self) -> int:
        """Return how many ends are not confirmed."""
        return len(self._endings) + len(self._sent) + len(self._undecided)

    @property
    def exactly_once(self) -> bool:
        """Whether positions are committed with the records."""
        return self._sink.exactly_once

    def places(self) -> Iterator[list[Place]]:
        """Return the places of each end."""
        return (ending.places for ending in (*self._endings, *self._sent, *self._undecided))

    @property
    def oldest(self) -> int | None:
        """The number of the first end that is not confirmed. From any thread."""
        return min([e.number for e in (*self._endings.copy(), *self._sent.copy(), *self._undecided)], default=None)

    def add(self, records: list[Outgoing], places: list[Place]) -> None:
        """Take the end of a call: with no records it is done, but for its position."""
        self._added += 1
        ending = _Ending(self._added, records, places)
        if records or self.exactly_once:
            self._endings.append(ending)
        else:
            ending.finish()

    def pump(
        self,
        source: RecordSource[int],
        owned: Mapping[int, Progress],
        positions: Callable[[Sequence[Place]], dict[int, Committed]],
    ) -> None:
        """Take the answers, and send what is to be sent. `positions` returns what to commit when places are done."""
        if self.exactly_once:
            # Only the thread that polls may ask for the generation, and the sink's needs it later.
            self._group = source.group()  # mutant: kafka-generation-kept
        while self._answers:
            self._answered(*self._answers.popleft())
        if self._undecided:
            self._decide(source, owned)
        self._endings = deque(e for e in self._endings if e.is_ours)  # mutant: kafka-revoked-is-written
        now_us = self._clock.steady_us()
        ready = [e for e in self._endings if e.retry_us <= now_us]
        if not ready or (self.exactly_once and (self._sent or self._undecided)):
            return
        self._endings = deque(e for e in self._endings if e.retry_us > now_us)
        if self.exactly_once:
            self._send(ready, positions([place for ending in ready for place in ending.places]))
        else:
            for ending in ready:
                self._send([ending], {})

    def close(self) -> None:
        """Report nothing more, and send nothing more."""
        self._sink.close()

    def _send(self, unit: list[_Ending], positions: Mapping[int, Committed]) -> None:
        self._sent.update(unit)
        records = [record for ending in unit for record in ending.records]
        commit = GroupCommit(positions, lambda: self._group) if self.exactly_once else None
        self._sink.send(records, commit, partial(self._answer, unit))

    def _answer(self, unit: list[_Ending], outcome: UnitOutcome) -> None:
        """Note an outcome. On any thread."""
        self._answers.append((unit, outcome))
        self._wake()

    def _answered(self, unit: list[_Ending], outcome: UnitOutcome) -> None:
        self._sent.difference_update(unit)
        if outcome.end is End.DELIVERED:
            for ending in unit:
                ending.finish()
            return
        self.reason = outcome.reason
        log.warning("the outcomes of %d calls were not produced: %s; again later", len(unit), outcome.reason)
        if outcome.end in (End.UNDECIDED, End.FENCED) and self.exactly_once:
            self._undecided = unit  # mutant: kafka-undecided-again
            return
        if self.exactly_once:
            self._again_apart(unit, outcome)
            return
        (ending,) = unit
        ending.records = [ending.records[n] for n in sorted(outcome.left)]  # mutant: kafka-left-forgotten
        self._again(ending)

    def _again_apart(self, unit: list[_Ending], outcome: UnitOutcome) -> None:
        """Send a unit again: what was refused waits, and the rest does not wait for it."""
        first = 0
        for ending in unit:
            refused = any(first <= n < first + len(ending.records) for n in outcome.refused)
            first += len(ending.records)
            if refused or not outcome.refused:
                self._again(ending)
            else:
                self._endings.appendleft(ending)

    def _again(self, ending: _Ending) -> None:
        ending.retry_us = self._clock.steady_us() + ending.back_off_us
        ending.back_off_us = min(ending.back_off_us * 2, BACK_OFF_MAX_US)
        self._endings.append(ending)

    def _decide(self, source: RecordSource[int], owned: Mapping[int, Progress]) -> None:
        """Ask the group how a transaction ended whose answer was lost: its positions are there, or they are not."""
        numbers = {progress: number for number, progress in owned.items()}
        found = source.committed(list(owned))
        if found is None:
            return
        unit, self._undecided = self._undecided, []
        for ending in unit:
            ours = [(found.get(numbers[p]), n) for p, n in ending.places if p in numbers]
            if ours and all(is_done(place and Committed(*place), n) for place, n in ours):
                ending.finish()
            elif ours or not ending.places:
                self._endings.append(ending)
