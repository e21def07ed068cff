"""One partition of a level: what was read of it and is not due, the unit under way, and how far it is done.

Records go out in the order of their offsets. The one at the head holds those behind it, which is why all records of a
topic wait equally long.
Invariant: `done` is an offset before which every record is confirmed, in its target or among the dead letters. A crash
forwards again what lies between the committed offset and the records that were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.transport import End, UnitOutcome
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.records.fate import id_of
from filewheel.kafka.records.headers import DELAY_MS, DUE
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import Message, MessageId

BACK_OFF_US = 100_000
BACK_OFF_MAX_US = 10_000_000
RECORDS_MAX = 2000
"""A partition is paused above this; it is read again at half of it."""
BYTES_MAX = 4 << 20


class QueueStage(Enum):
    """Where a partition stands."""

    IDLE = "idle"
    SENDING = "sending"
    BACKING_OFF = "backing-off"


class LevelQueue:
    """The queue of one partition. One thread uses it."""

    def __init__(self, topic: str, partition: int, delay_ms: int, rules: Rules) -> None:
        self.topic = topic
        self.partition = partition
        self._delay = (DELAY_MS, b"%d" % delay_ms)
        self._rules = rules
        self._queue: deque[LogPut] = deque()
        self._bytes = 0
        self.stage = QueueStage.IDLE
        self.done: int | None = None
        """The next offset to forward; None until something was."""
        self.read_to = 0
        """The offset after all that was read."""
        self.is_paused = False
        self.forwarded = 0
        self.late_us = 0
        """How late the first record of the last unit was confirmed."""
        self.reason = ""
        """Why the last unit was not delivered; empty after one that was."""
        self._unit: list[LogPut] = []
        self._records: list[Outgoing] = []
        self._left: list[int] = []
        self._retry_us = 0
        self._back_off_us = BACK_OFF_US

    # -- coming in -------------------------------------------------------------------------------------------

    def add(self, records: Sequence[Record]) -> None:
        """Queue records, in the order of their offsets. One without a due waits as long as the level says."""
        for put in self._rules.understand([self._with_due(record) for record in records]):
            self._queue.append(put)
            self._bytes += len(put.envelope)
        self.read_to = records[-1].offset + 1

    def _with_due(self, record: Record) -> Record:
        if any(name in DUE for name, _ in record.headers):
            return record
        headers = [*record.headers, self._delay]
        return Record(record.partition, record.offset, record.key, record.value, headers, record.timestamp_ms)

    @property
    def is_long(self) -> bool:
        """Whether to read no more for now."""
        return len(self._queue) > RECORDS_MAX or self._bytes > BYTES_MAX

    @property
    def is_short(self) -> bool:
        """Whether to read again."""
        return len(self._queue) <= RECORDS_MAX // 2 and self._bytes <= BYTES_MAX // 2

    @property
    def waiting(self) -> int:
        """How many records were read and are not confirmed."""
        return len(self._queue) + len(self._unit)

    @property
    def first_due_us(self) -> int | None:
        """The due of the first record that is not confirmed."""
        unit, queue = self._unit, self._queue
        return unit[0].due_us if unit else queue[0].due_us if queue else None

    # -- going out -------------------------------------------------------------------------------------------

    def next_us(self, now_us: int, steady_us: int) -> int | None:
        """Return in how many microseconds there is something to send; None if only an event changes that."""
        if self.stage is QueueStage.BACKING_OFF:
            return max(self._retry_us - steady_us, 0)
        if self.stage is QueueStage.SENDING or not self._queue:
            return None
        return max(self._queue[0].due_us - now_us, 0)

    def take(self, limit: int, now_us: int, steady_us: int) -> list[Outgoing]:
        """Return what is to be sent now: records that are due, or those of a unit that failed."""
        if self.stage is QueueStage.SENDING:
            return []
        if self.stage is QueueStage.BACKING_OFF:
            if steady_us < self._retry_us:
                return []
        else:
            self._begin(limit, now_us)
        if not self._left:
            return []
        self.stage = QueueStage.SENDING
        return [self._records[n] for n in self._left]

    def _begin(self, limit: int, now_us: int) -> None:
        while self._queue and len(self._unit) < limit and self._queue[0].due_us <= now_us:  # mutant: kafka-level-early
            put = self._queue.popleft()
            self._bytes -= len(put.envelope)
            self._unit.append(put)
        messages = [_message_of(put) for put in self._unit]
        self._records = self._rules.outgoing(self.partition, messages, now_us // 1000)
        self._left = list(range(len(self._unit)))

    def ended(self, outcome: UnitOutcome, now_us: int, steady_us: int) -> None:
        """Take the outcome of what was sent. What is left of it is sent again; `done` moves when nothing is left."""
        if outcome.end is End.DELIVERED:
            self.stage = QueueStage.IDLE
            self.late_us = now_us - self._unit[0].due_us
            self.forwarded += len(self._unit)
            self.done = self._unit[-1].offset + 1
            self._unit, self._records, self._left = [], [], []
            self._back_off_us, self.reason = BACK_OFF_US, ""
            return
        self.reason = outcome.reason
        replaced = [self._replace(self._left[n], outcome, n, now_us) for n in outcome.refused]
        self._left = [self._left[n] for n in sorted(outcome.left)]
        self.stage = QueueStage.BACKING_OFF
        self._retry_us = steady_us if any(replaced) else steady_us + self._back_off_us
        if not any(replaced):
            self._back_off_us = min(self._back_off_us * 2, BACK_OFF_MAX_US)

    def _replace(self, index: int, outcome: UnitOutcome, n: int, now_us: int) -> bool:
        """Put a dead letter in the place of a refused record; return False if it is to be sent again."""
        refused, refusal = self._records[index], outcome.refused[n]
        self.reason = f"{refused.topic}: {refusal.reason}"
        other = self._rules.instead(self.partition, _message_of(self._unit[index]), refusal, now_us // 1000)
        if other is None or other.topic == refused.topic:
            return False
        self._records[index] = other
        return True


def _message_of(put: LogPut) -> Message:
    """Return a record as the rules of the service know it."""
    return Message(MessageId(id_of(put.due_us, put.offset)), put.envelope, put.target)
