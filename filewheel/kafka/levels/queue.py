"""One partition of a level: what was read of it and is not forwarded, in place of the wheel of a partition.

A partition is strictly FIFO, so every topic has a single delay, and no wheel is needed.
Owns the records in memory. Invariant: `done` is an offset before which every record is confirmed, in its target or
among the dead letters. A crash forwards again what lies between the committed offset and the records that were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from filewheel.kafka.node.rules import Rules
from filewheel.kafka.records.fate import id_of, offset_of
from filewheel.kafka.records.headers import DELAY_MS, DUE
from filewheel.kafka.records.record import Record
from filewheel.message import Message, MessageId

RECORDS_MAX = 2000
"""A partition is paused above this; it is read again at half of it."""
BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class QueueChunk:
    """Due messages from the head of a queue."""

    messages: Sequence[Message]
    ingested: int
    is_all: bool = False


class LevelQueue:
    """The queue of one partition, as its firing uses it (node/fire.py: FiringWheel). One thread uses it."""

    last_read = None

    def __init__(self, delay_ms: int, rules: Rules, forwarded: Callable[[int], None]) -> None:
        """`forwarded` is called with the number of records that were confirmed."""
        self._delay = (DELAY_MS, b"%d" % delay_ms)
        self._rules = rules
        self._forwarded = forwarded
        self._queue: deque[Message] = deque()
        self._bytes = 0
        self._in_hand = 0
        self.done: int | None = None
        """The next offset to forward; None until a record was."""
        self.ingested = 0
        """The offset after all that was read."""
        self.is_paused = False

    def add(self, records: Sequence[Record]) -> None:
        """Queue records, in the order of their offsets. One without a due waits as long as the level says."""
        for put in self._rules.understand([self._with_due(record) for record in records]):
            self._queue.append(Message(MessageId(id_of(put.due_us, put.offset)), put.envelope, put.target))
            self._bytes += len(put.envelope)
        self.ingested = records[-1].offset + 1

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
        return len(self._queue) + self._in_hand

    def next_due_us(self) -> int | None:
        """Return the due of the first record that is not under way; it holds those behind it."""
        return self._queue[0].due_us if self._queue else None

    def next_chunk(self, limit: int, now_us: int) -> QueueChunk:
        """Take what is due from the head."""
        chunk: list[Message] = []
        while self._queue and len(chunk) < limit and self._queue[0].due_us <= now_us:  # mutant: kafka-level-early
            message = self._queue.popleft()
            self._bytes -= len(message.payload)
            chunk.append(message)
        self._in_hand = len(chunk)
        return QueueChunk(chunk, self.ingested)

    def settle(self, chunk: QueueChunk) -> None:
        """Note that a chunk was confirmed."""
        self.done = offset_of(chunk.messages[-1].id) + 1
        self._in_hand = 0
        self._forwarded(len(chunk.messages))

    def give_back(self, chunk: QueueChunk) -> None:
        """Put a chunk back to the head."""
        self._queue.extendleft(reversed(chunk.messages))
        self._bytes += sum(len(message.payload) for message in chunk.messages)
        self._in_hand = 0

    def low(self, chunk: QueueChunk | None = None) -> int:
        """Return an offset before which every record is done."""
        return self.done or 0
