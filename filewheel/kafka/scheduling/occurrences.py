"""The occurrences of schedules on Kafka: each has the record key of its schedule, so one of them waits.

Any worker that ends an occurrence produces the next one, and each worker plants them when it is assigned partitions.
Both compute the same instants, and a record takes the place of the waiting one only if that is not due
(records/headers.py:UNLESS_DUE_MS). The program's own definition counts, not the stored one: after a deploy the last old
worker may still have produced an occurrence of the old definition.
Invariant: a schedule that some worker declares has an occurrence that waits, runs, or is on its way. What was due is
called, whatever a worker has planted since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import blake2b

from filewheel.errors import BadArgument
from filewheel.message import ID_BYTES, KEY, LOW_BITS, SCHEDULE, Message, MessageId
from filewheel.schedules.definition import schedule_key, schedule_of
from filewheel.schedules.occurrences import Now, Occurrences
from filewheel.schedules.planting import Plant


class KafkaOccurrences(Occurrences):
    """Computes the next occurrences, by the definitions of the program."""

    def __init__(self, schedules: Mapping[str, Plant], ended: Collection[str], clock: Now) -> None:
        """`ended` has the names of the schedules that the program has ended."""
        super().__init__(schedules, clock)
        self._schedules = schedules
        self._ended = ended

    def plants(self, now_us: int) -> list[Message]:
        """Return the next occurrence of each declared schedule that is not over."""
        found = [_next(schedule, now_us) for schedule in self._schedules.values()]
        return [message for message in found if message is not None]

    @property
    def ended_keys(self) -> list[str]:
        """The keys of the schedules that the program has ended."""
        return [schedule_key(name) for name in self._ended if name not in self._schedules]

    def as_declared(self, message: Message) -> Message | None:
        """Return a call, an occurrence as the program declares it; None for one of a schedule that it has ended."""
        stored = schedule_of(message)
        if stored is None:
            return message
        declared = self._schedules.get(stored.name)
        if declared is None:
            return None if stored.name in self._ended else message
        return replace(
            message, payload=declared.payload, topic=declared.topic, headers=message.headers | _own(declared)
        )

    def _now_us(self, message: Message) -> int:
        """Return the time, by a clock that is not behind that of the node: what a worker was given is due."""
        return max(self._clock.now_us(), (message.root or message.id).due_us)

    def _new_id(self, key: str, due_us: int) -> MessageId:
        return _id_of(key, due_us)


def _next(schedule: Plant, now_us: int) -> Message | None:
    key = schedule.definition.key
    try:
        id_ = _id_of(key, schedule.definition.after(now_us))
    except BadArgument:  # it is over
        return None
    return Message(id_, schedule.payload, schedule.topic, _own(schedule) | {KEY: key}, 0, now_us)


def _own(schedule: Plant) -> dict[str, str]:
    """Return the headers of each occurrence."""
    return {**schedule.headers, SCHEDULE: schedule.definition.header()}


def _id_of(key: str, due_us: int) -> MessageId:
    """Return the id of a schedule's occurrence at a time: the same one from each worker.

    A worker that joins at that moment may produce an occurrence that has just gone out, so that its key no longer finds
    it. With one id a worker that has both runs one, and a handler can tell the other.
    """
    low = int.from_bytes(blake2b(key.encode(), digest_size=9).digest(), "big") >> 2
    return MessageId((due_us << LOW_BITS | low).to_bytes(ID_BYTES, "big"))  # mutant: kafka-occurrence-twice
