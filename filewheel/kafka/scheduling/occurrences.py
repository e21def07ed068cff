"""The occurrences of schedules on Kafka: each has the record key of its schedule, so one of them waits.

Any worker that ends an occurrence produces the next one, and each worker plants them when it is assigned partitions.
Both compute the same instants, and the later record replaces the earlier. The program's own definition counts, not the
stored one: after a deploy the last old worker may still have produced an occurrence of the old definition.
Invariant: a schedule that some worker declares has an occurrence that waits, runs, or is on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from filewheel.errors import BadArgument
from filewheel.format.ids import MINT
from filewheel.message import ARGS, ID_BYTES, KEY, LOW_BITS, SCHEDULE, US_PER_S, Message, MessageId
from filewheel.schedules.definition import ASTRAY_US, schedule_of
from filewheel.schedules.occurrences import Now, Occurrences
from filewheel.schedules.recurrence import next_due
from filewheel.scheduling.schedule import Schedule

UNDECLARED_US = 60 * US_PER_S
"""How long an occurrence waits for a worker that declares its schedule."""
FORGOTTEN_US = 86_400 * US_PER_S
"""A schedule that no worker declared for this long has ended."""


class KafkaOccurrences(Occurrences):
    """Computes the next occurrences; those of a schedule that this program does not declare are passed on."""

    def __init__(self, schedules: Mapping[str, Schedule], clock: Now) -> None:
        super().__init__(schedules, clock)
        self._schedules = schedules

    def plants(self, now_us: int) -> list[Message]:
        """Return the next occurrence of each declared schedule that is not over."""
        found = [_next(s, now_us, now_us) for s in self._schedules.values()]
        return [message for message in found if message is not None]

    def next_of(self, message: Message, started_us: int, *, called: bool = True) -> Message | None:
        """Return the occurrence after one that was started at a time; None when nothing follows."""
        found = schedule_of(message)
        if found is None:
            return None
        now_us = self._clock.now_us()
        declared = self._schedules.get(found.name)
        first = message.root or message.id
        if declared is None:
            if now_us - first.due_us > FORGOTTEN_US:
                return None
            # Another worker may declare it, an older or a newer program.  # mutant: kafka-foreign-schedule-ends
            return replace(message, id=MINT.id_at(now_us + UNDECLARED_US), root=first)
        ahead_us = now_us + ASTRAY_US  # later than this, and the time came from a wrong clock
        was_due_us, started_us = (now_us if us > ahead_us else us for us in (first.due_us, started_us))
        try:
            due_us = next_due(declared.definition, was_due_us, started_us, declared.definition.missed)
        except BadArgument:
            return None  # after the year 9999
        return _occurrence(declared, due_us, now_us)

    def fate_of(self, message: Message, now_us: int) -> str | None:
        """Return why an occurrence is not to be called ("missed", "deferred", "stopped"), or None."""
        found = schedule_of(message)
        if found is not None and found.name not in self._declared:
            first = message.root or message.id
            return "stopped" if now_us - first.due_us > FORGOTTEN_US else "deferred"
        return super().fate_of(message, now_us)


def _next(schedule: Schedule, us: int, now_us: int) -> Message | None:
    try:
        return _occurrence(schedule, schedule.definition.after(us), now_us)
    except BadArgument:  # it is over
        return None


def _occurrence(schedule: Schedule, due_us: int, now_us: int) -> Message:
    definition = schedule.definition
    payload, how = schedule.packed()
    headers = {ARGS: how, SCHEDULE: definition.header(), KEY: definition.key}
    return Message(_id_of(definition.key, due_us), payload, schedule.handler, headers, 0, now_us)


def _id_of(key: str, due_us: int) -> MessageId:
    """Return the id of a schedule's occurrence at a time: the same one from each worker.

    A worker that joins at that moment may produce an occurrence that has just gone out, so that its key no longer finds
    it. With one id a worker that has both runs one, and a handler can tell the other.
    """
    low = int.from_bytes(blake2b(key.encode(), digest_size=9).digest(), "big") >> 2
    return MessageId((due_us << LOW_BITS | low).to_bytes(ID_BYTES, "big"))  # mutant: kafka-occurrence-twice
