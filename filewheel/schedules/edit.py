"""Changes of a schedule of plain messages: only what is given changes.

Invariant: an edit of what the schedule already is changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.format.limits import check_headers
from filewheel.message import ARGS, RETRY, TIMEOUT, US_PER_S, to_datetime
from filewheel.schedules.cron import Cron
from filewheel.schedules.definition import UNSET, OneOrMore, ScheduleTerms, StoredSchedule, Time, Unset, recurrence_of
from filewheel.schedules.planting import Plant, own_headers
from filewheel.schedules.recurrence import Every, Missed, Once, Recurrence, Unreadable


@dataclass(frozen=True)
class Edit:
    """The options of an edit; UNSET stays as it is, and None takes a start, an end or a count away."""

    when: OneOrMore | Unset = UNSET
    payload: bytes | Unset = UNSET
    topic: str | Unset = UNSET
    headers: Mapping[str, str] | Unset = UNSET
    change_headers: Mapping[str, str | None] | Unset = UNSET
    tz: str | Unset = UNSET
    missed: Missed | Unset = UNSET
    grace_s: float | Unset = UNSET
    jitter_s: float | Unset = UNSET
    start: Time | Unset | None = UNSET
    end: Time | Unset | None = UNSET
    count: int | Unset | None = UNSET

    def of(self, living: StoredSchedule) -> Plant:
        """Return the schedule as it is to be. Raises BadArgument, also when the stored one cannot be read here."""
        recurrence = self._recurrence(living)
        is_once = isinstance(recurrence, Once)
        before = ScheduleTerms(
            missed=living.missed,
            grace_s=living.grace_us / US_PER_S,
            jitter_s=living.jitter_us / US_PER_S,
            start=None if living.start_us is None or is_once else to_datetime(living.start_us),
            end=None if living.end_us is None or is_once else to_datetime(living.end_us),
            count=None if is_once else living.count,
        )
        given: dict[str, Any] = {
            name: value
            for name in ("missed", "grace_s", "jitter_s", "start", "end", "count")
            if (value := getattr(self, name)) is not UNSET
        }
        options = replace(before, **given)
        definition = options.defined(living.name, recurrence, is_declared=living.is_declared, source=living.source)
        message = living.occurrence
        if ARGS in message.headers and (self.payload, self.topic) != (UNSET, UNSET):
            raise BadArgument(
                f"the schedule {living.name!r} is one of calls of {message.topic!r}: its call cannot be edited",
                hint="all of it again: `filewheel schedule ... --topic NAME --args JSON`, or scheduler.schedule(...)",
            )
        return Plant(
            definition,
            message.payload if isinstance(self.payload, Unset) else self.payload,
            message.topic if isinstance(self.topic, Unset) else self.topic,
            self._headers(own_headers(message)),
            left=self.count if isinstance(self.count, int) else None,
        )

    def _headers(self, before: dict[str, str]) -> dict[str, str]:
        """Return the headers as they are to be."""
        headers = before
        if not isinstance(self.headers, Unset):
            terms = {name: before[name] for name in (RETRY, TIMEOUT) if name in before}
            headers = terms | dict(check_headers(self.headers))
        if isinstance(self.change_headers, Unset):
            return headers
        if not isinstance(self.change_headers, Mapping):
            raise BadArgument(f"change_headers maps names to text or None, not {shown(self.change_headers)}")
        gone = {name for name, value in self.change_headers.items() if value is None}
        added = {name: value for name, value in self.change_headers.items() if value is not None}
        return {name: value for name, value in headers.items() if name not in gone} | added

    def _recurrence(self, living: StoredSchedule) -> Recurrence:
        before = living.recurrence
        if isinstance(before, Unreadable):
            raise BadArgument(
                f"the schedule {living.name!r} cannot be read here: {before.why}",
                hint=f"start it anew: filewheel schedule {living.name} ...",
            )
        if not isinstance(self.when, Unset):
            zone = before.tz if isinstance(before, Cron) else "UTC"
            return recurrence_of(self.when, zone if isinstance(self.tz, Unset) else self.tz)
        if not isinstance(self.tz, Unset):
            if not isinstance(before, Cron):
                raise BadArgument(f"only a cron expression has a zone; {living.name!r} is {before!r}")
            return Cron(before.text, self.tz)
        if isinstance(before, Every) and self.start is not UNSET and before.start_us == living.start_us:
            return Every(timedelta(microseconds=before.interval_us))  # it counts from its new start
        return before
