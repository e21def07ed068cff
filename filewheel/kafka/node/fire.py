"""The firing of one partition: a unit of due messages goes out, then its marker, then the wheel drops them.

Owns the unit under way and the marker that counts. A crash at any line leaves the messages pending in the wheel; the
marker decides which of them were produced.
Invariant: a marker states only what is already in the log, and the wheel drops only what a published marker says. At
most one unit is under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import End, Refusal, Sink, UnitOutcome
from filewheel.kafka.partition.marker import NO_MARKER, Marker
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.record import Outgoing
from filewheel.message import ID_BYTES, LOW_BITS, Message, due_of

log = logging.getLogger("filewheel.kafka")

BACK_OFF_US = 100_000
"""The first wait after a unit that failed; each next one doubles it."""
BACK_OFF_MAX_US = 10_000_000
REFUSED_US = 60_000_000
"""A target is reported for so long after its last refusal. What was put back is tried every ten seconds."""


class Claimed(Protocol):
    """Due messages in the order of their ids, claimed under one lock with the offset that was taken in by then."""

    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def ingested(self) -> int: ...
    @property
    def is_all(self) -> bool:
        """Whether no other record before `ingested` is due."""


class FiringWheel(Protocol):
    """The wheel of a partition, as its firing uses it."""

    @property
    def ingested(self) -> int:
        """The offset after the last record that was taken in."""

    @property
    def last_read(self) -> LastRead | None:
        """The last record that was read and whose epoch is known."""

    @property
    def waiting(self) -> int | None:
        """How many records wait; None until they were counted."""

    def next_chunk(self, limit: int, now_us: int) -> Claimed: ...
    def settle(self, chunk: Any) -> None: ...
    def give_back(self, chunk: Any) -> None: ...
    def low(self, chunk: Any = None) -> int:
        """Return an offset before which every record is done, or in this chunk."""

    def next_due_us(self) -> int | None: ...


class Rendering(Protocol):
    """Makes records of messages (rules.py)."""

    @property
    def options(self) -> str:
        """The digest of the options that give the ids."""

    @property
    def delivery(self) -> str:
        """How records are delivered, in words: all nodes need the same."""

    def outgoing(self, partition: int, messages: Sequence[Message], fired_ms: int) -> list[Outgoing]:
        """Return the records that due messages become."""

    def instead(self, partition: int, message: Message, refusal: Refusal, now_ms: int) -> Outgoing | None:
        """Return the record that takes the place of a refused one; None to send the same one again."""

    def marker(self, partition: int, marker: Marker) -> Outgoing:
        """Return the record that publishes a marker."""


@dataclass(slots=True)
class Counts:
    """What one partition did since it was owned."""

    fired: int = 0
    replaced: int = 0
    """Refused records that went to the dead-letter topic or back to the delay topic."""
    units: int = 0
    failures: int = 0
    late_us: int = 0
    """How late the last unit's first message went out."""


class FiringStage(Enum):
    """Where the firing of a partition stands."""

    IDLE = "idle"
    SENDING = "sending"
    BACKING_OFF = "backing-off"
    STOPPED = "stopped"
    """The sink is finished, or the partition is given away."""


@dataclass(slots=True)
class _Unit:
    chunk: Claimed
    records: list[Outgoing]
    marker: Marker
    left: list[int]
    """The indexes of the records that are not in the log yet."""
    sent: list[int] = field(default_factory=list)
    """The indexes of the records of the current send."""
    replaced: set[int] = field(default_factory=set)
    """The indexes of the records that took the place of refused ones."""


class PartitionFiring:
    """Fires one owned partition. All calls but `may_take_in` come from one thread, that of loop.py."""

    def __init__(
        self,
        partition: int,
        wheel: FiringWheel,
        sink: Sink,
        marker: Marker,
        rendering: Rendering,
        *,
        lock: threading.RLock,
        limit: int,
        done: Callable[[Any, Sink, UnitOutcome], None],
        tally: NodeCounters | None = None,
        key: Any = None,
    ) -> None:
        """`key` is what the fire loop knows it by; default: the partition."""
        self.partition = partition
        self.key = partition if key is None else key
        self.wheel = wheel
        self.sink = sink
        self.marker = marker
        """The last marker that is known to be in the log."""
        self.stage = FiringStage.IDLE
        self.counts = Counts()
        self.reason = ""
        """Why the last unit failed, or a record of it was refused; empty after one that was delivered."""
        self.lock = lock
        """Held for a claim. The intake of records holds it too, and asks `may_take_in` first."""
        self._rendering = rendering
        self._limit = limit
        self._done = done
        self._tally = tally or NodeCounters()
        self._unit: _Unit | None = None
        self._is_full = marker.is_full(wheel.ingested)
        self._back_off_us = BACK_OFF_US
        self._retry_at_us = 0
        self._refusals: dict[str, tuple[str, int]] = {}
        """Targets that refused a record and took none since: why, and when."""
        self._due_us: int | None = None
        """When something is due that is not under way, as it was asked last."""
        self._is_amiss = False
        """Records wait and none of them is under way, but the wheel named no due."""

    @property
    def may_take_in(self) -> bool:
        """Whether records may be taken in now. Not while the marker has no room for another step."""
        return not self._is_full

    @property
    def first_due_us(self) -> int | None:
        """The due of the first message that is under way or is to be sent again. From any thread."""
        unit = self._unit
        return unit.chunk.messages[0].due_us if unit is not None and unit.chunk.messages else None

    @property
    def is_sending(self) -> bool:
        """Whether an outcome is still to come."""
        return self.stage is FiringStage.SENDING

    def refusals(self, steady_us: int) -> list[tuple[str, str]]:
        """Return each target that refuses records, and why. From any thread."""
        found = list(self._refusals.items())
        return [(topic, why) for topic, (why, at_us) in found if steady_us - at_us < REFUSED_US]

    def waits_for(self, now_us: int) -> str | None:
        """Return what keeps this from delivering; None if nothing is due. From any thread."""
        if self._unit is None and self._is_amiss:
            return "records wait, and the wheel does not say when one is due"
        if self._unit is None and (self._due_us is None or self._due_us > now_us):
            return None
        return self.reason or ("the brokers have not confirmed a unit" if self.is_sending else "records are due")

    @property
    def needs_sink(self) -> bool:
        """Whether the sink is finished: the marker must be read behind a new one."""
        return self.stage is FiringStage.STOPPED

    def next_us(self, steady_us: int, now_us: int) -> int | None:
        """Return in how many microseconds `step` has something to do; None if only an event changes that."""
        if self.stage is FiringStage.BACKING_OFF:
            return max(self._retry_at_us - steady_us, 0)
        if self.stage is not FiringStage.IDLE:
            return None
        due_us = self.wheel.next_due_us()
        if self._is_full:
            # Nothing is taken in until a step is covered: that needs no message, only the time of the last step.
            closing_us = due_of(self.marker.steps_before(self.wheel.ingested)[-1][1]) + 1
            due_us = closing_us if due_us is None else min(due_us, closing_us)
        self._due_us = due_us
        self._is_amiss = due_us is None and bool(self.wheel.waiting)
        return None if due_us is None else max(due_us - now_us, 0)

    def step(self, now_us: int, steady_us: int) -> bool:
        """Begin a unit of what is due, or repeat one that failed; return whether something was sent."""
        if self.stage is FiringStage.BACKING_OFF and steady_us >= self._retry_at_us:
            self._send()
            return True
        if self.stage is not FiringStage.IDLE:
            return False
        unit = self._claim(now_us)
        if unit is None:
            return False
        self._unit = unit
        self.counts.units += 1
        self._send()
        return True

    def hold(self, reason: str, now_us: int) -> None:
        """Note that something is due, and cannot be handed out now."""
        self.reason, self._due_us = reason, now_us

    def ended(self, sink: Sink, outcome: UnitOutcome, now_us: int, steady_us: int) -> None:
        """Take the outcome of the unit under way. One of a sink that is not ours any more changes nothing."""
        unit = self._unit
        if unit is None or sink is not self.sink or self.stage is not FiringStage.SENDING:
            return
        self._tally.count("units_total", label=outcome.end.value)
        if outcome.end is End.DELIVERED:
            self._delivered(unit, now_us)
            return
        self.counts.failures += 1
        self.reason = outcome.reason
        if outcome.end in (End.UNDECIDED, End.FENCED):  # mutant: kafka-undecided-is-repeated
            self.stage = FiringStage.STOPPED
            return
        again = [unit.sent[n] for n in sorted(outcome.left)]
        replaced = [
            self._replace(unit, unit.sent[n], refusal, now_us, steady_us) for n, refusal in outcome.refused.items()
        ]
        unit.left = again
        if any(replaced):
            self._send()
            return
        self.stage = FiringStage.BACKING_OFF
        self._retry_at_us = steady_us + self._back_off_us
        self._back_off_us = min(self._back_off_us * 2, BACK_OFF_MAX_US)

    def _replace(self, unit: _Unit, index: int, refusal: Refusal, now_us: int, steady_us: int) -> bool:
        """Put another record in the place of a refused one; return False if the same one is to be sent again."""
        refused = unit.records[index]
        self.reason = f"{refused.topic}: {refusal.reason}"
        self._refusals[refused.topic] = (refusal.reason, steady_us)
        other = self._rendering.instead(self.partition, unit.chunk.messages[index], refusal, now_us // 1000)
        if self._tally.may_say(f"target {refused.topic}"):
            fate = "it is tried again" if other is None else f"it goes to {other.topic}"
            log.warning("target %s refuses a record: %s; %s", refused.topic, refusal.reason, fate)
        if other is None or other.topic == refused.topic:
            return False
        unit.records[index] = other
        unit.replaced.add(index)
        self.counts.replaced += 1
        return True

    def stop(self) -> None:
        """Give back what is under way, and fire no more. What was sent already may be in the log."""
        self.stage = FiringStage.STOPPED
        self._give_back()

    def _give_back(self) -> None:
        unit, self._unit = self._unit, None
        if unit is not None:
            self.wheel.give_back(unit.chunk)
        self._is_full = self.marker.is_full(self.wheel.ingested)

    def _claim(self, now_us: int) -> _Unit | None:
        """Claim what is due, with the marker that will be true once it is in the log; None if nothing is to be said.

        A crash here leaves everything pending: a claim is in memory only.
        """
        with self.lock:
            chunk = self.wheel.next_chunk(self._limit, now_us)
            messages = chunk.messages
            through = bytes(messages[-1].id) if messages else b""
            if chunk.is_all:  # mutant: kafka-through-more
                # Nothing else that is due is left, so nothing at or below a step in the past is.
                now_id = (now_us << LOW_BITS).to_bytes(ID_BYTES, "big")
                through = max([through, *(id_ for _, id_ in self.marker.steps if id_ < now_id)])
            if not messages and (not self._is_full or not through):
                return None
            after = self.marker.after_chunk(chunk.ingested, through)
            after = after.with_last_read(self.wheel.last_read)  # mutant: kafka-marker-without-epoch
            self._is_full = after.is_full(chunk.ingested)
        fired_ms = now_us // 1000
        if messages:
            self.counts.late_us = now_us - messages[0].due_us
        records = self._rendering.outgoing(self.partition, messages, fired_ms)
        return _Unit(chunk, records, after, list(range(len(records))))

    def _send(self) -> None:
        unit = self._unit
        assert unit is not None
        self.stage = FiringStage.SENDING
        unit.sent = unit.left
        # `low` as it is once the unit is in the log: retention may delete the unit before there is another.
        low = self.wheel.low(unit.chunk)  # mutant: kafka-low-of-the-unit
        is_published = unit.marker is not NO_MARKER
        marker = self._rendering.marker(self.partition, unit.marker.with_low(low)) if is_published else None
        sink = self.sink
        sink.send(
            [unit.records[n] for n in unit.left],
            marker,
            lambda outcome: self._done(self.key, sink, outcome),
        )

    def _delivered(self, unit: _Unit, now_us: int) -> None:
        """Drop what went out. A crash before the drops leaves them pending, and the marker says that they are done."""
        self._unit = None
        self.marker = unit.marker
        self.wheel.settle(unit.chunk)
        self.counts.fired += len(unit.chunk.messages)
        self._tally.sent_out(unit.records, unit.replaced)
        if self._refusals:
            for record in unit.records:
                self._refusals.pop(record.topic, None)
        self._tally.was_late([message.id for message in unit.chunk.messages], now_us)
        self.stage = FiringStage.IDLE
        self.reason = ""
        self._back_off_us = BACK_OFF_US
        self._is_full = unit.marker.is_full(unit.chunk.ingested)
