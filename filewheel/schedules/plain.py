"""A schedule of plain messages, as a caller gives it.

Invariant: one that was checked can be enqueued for all of its occurrences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from filewheel.checks import check_choice
from filewheel.errors import BadArgument
from filewheel.format.limits import bytes_of, check_headers, check_key, check_topic
from filewheel.keys.unique import POLICIES
from filewheel.message import DUE_END_US, KEY, SCHEDULE, US_PER_S
from filewheel.schedules.definition import COUNT_MAX, GRACE_US, OneOrMore, ScheduleTerms, Time
from filewheel.schedules.planting import Plant
from filewheel.schedules.recurrence import Missed


@dataclass(frozen=True)
class PlainSchedule:
    """A schedule of plain messages, for `Wheel.schedule_many`; the fields are the arguments of `Wheel.schedule`."""

    name: str
    when: OneOrMore
    payload: bytes = b""
    topic: str = ""
    headers: Mapping[str, str] | None = None
    tz: str = "UTC"
    missed: Missed = "once"
    grace_s: float = GRACE_US / US_PER_S
    jitter_s: float = 0
    start: Time | None = None
    end: Time | None = None
    count: int | None = None
    on_conflict: str = "replace"
    source: str = ""
    """The file that it is loaded from."""

    def plant(self, payload_bytes_max: int) -> Plant:
        """Return it checked. Raises BadArgument, TooLarge."""
        options = ScheduleTerms(self.tz, self.missed, self.grace_s, self.jitter_s, self.start, self.end, self.count)
        check_choice("on_conflict", self.on_conflict, POLICIES)
        definition = options.defined(self.name, self.when, is_declared=False, source=self.source)
        plant = Plant(definition, self.payload, self.topic, dict(check_headers(self.headers or {})), self.on_conflict)
        return checked(plant, payload_bytes_max)


def checked(plant: Plant, payload_bytes_max: int) -> Plant:
    """Return a schedule whose occurrences can be enqueued. Raises BadArgument, TooLarge."""
    check_topic(plant.topic)
    if KEY in plant.headers or SCHEDULE in plant.headers:
        raise BadArgument(f"the headers {KEY} and {SCHEDULE} are the schedule's own", hint="leave them out")
    definition = plant.definition
    check_headers({**plant.headers, KEY: check_key(definition.key), SCHEDULE: definition.header(COUNT_MAX, DUE_END_US)})
    return replace(plant, payload=bytes_of(plant.payload, payload_bytes_max))
