"""A record that waits in a wheel, as a person or a program looks at it: from any message of a partition's wheel.

Invariant: it is what was read from the delay topic; nothing of it is made up.
"""

from __future__ import annotations

from dataclasses import dataclass

from filewheel.kafka.records.envelope import Envelope, Fate
from filewheel.kafka.records.fate import offset_of
from filewheel.kafka.records.headers import ROUTING
from filewheel.kafka.records.record import Headers
from filewheel.message import Message

_WORDS = {Fate.DELIVER: "deliver", Fate.DEAD_LETTER: "dead-letter", Fate.ROLL: "roll"}


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A record that waits until it is due."""

    topic: str
    """The delay topic."""
    partition: int
    offset: int
    due_us: int
    target: str
    fate: str
    """deliver, dead-letter, or roll: it goes back to the delay topic, because its due is beyond the horizon."""
    reason: str
    """Why it is a dead letter; else empty."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    target_key: bytes | None
    target_partition: int | None
    timestamp_ms: int

    @property
    def id(self) -> str:
        """The header `filewheel-id` that it will have at its target, unless it was put back before."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def own_headers(self) -> Headers:
        """Its headers without those that asked for the delay: a producer takes them as they are."""
        return [pair for pair in self.headers if pair[0] not in ROUTING]


def waiting_record(message: Message, topic: str, partition: int) -> WaitingRecord:
    """Return the record that a message in the wheel of a partition is. Raises Damaged, NewerFormat."""
    found = Envelope.unpack(message.payload)
    return WaitingRecord(
        topic,
        partition,
        offset_of(message.id),
        message.due_us,
        message.topic,
        _WORDS[found.fate],
        found.note,
        found.key,
        found.value,
        found.headers,
        found.target_key,
        found.target_partition,
        found.timestamp_ms,
    )
