"""Starts, changes and ends schedules of plain messages.

The part of a Wheel that plants occurrences (schedules/planting.py): each call reads the living occurrence of a name,
and writes the next one and its key in one frame.
Invariant: of two calls for one name at once, the later one sees what the earlier one wrote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from filewheel.changes import Changes
from filewheel.checks import check_items, shown
from filewheel.errors import BadArgument, KeyHeld, Locked, NotFound
from filewheel.firing.cancelled import BegunLook, Cancelled
from filewheel.format.settings import Sync, check_sync
from filewheel.keys.unique import Ask, put_all
from filewheel.message import US_PER_S, Message, MessageId, receipt
from filewheel.schedules.definition import (
    GRACE_US,
    UNSET,
    OneOrMore,
    StoredSchedule,
    Time,
    Unset,
    check_name,
    schedule_key,
    schedule_of,
)
from filewheel.schedules.edit import Edit
from filewheel.schedules.plain import PlainSchedule, checked
from filewheel.schedules.planting import Plant, decide
from filewheel.schedules.recurrence import Missed

_TRIES = 100


class ScheduleChanges(Changes):
    """The part of a Wheel that is about schedules."""

    def schedule(
        self,
        name: str,
        when: OneOrMore,
        payload: bytes = b"",
        *,
        topic: str = "",
        headers: Mapping[str, str] | None = None,
        tz: str = "UTC",
        missed: Missed = "once",
        grace_s: float = GRACE_US / US_PER_S,
        jitter_s: float = 0,
        start: Time | None = None,
        end: Time | None = None,
        count: int | None = None,
        on_conflict: str = "replace",
        sync: Sync | None = None,
    ) -> MessageId:
        """Start recurring work whose occurrences are this message; return the id of the next one.

        `when` is an interval (seconds, "90s"), a cron expression in a zone, or a single time. `filewheel run` fires the
        occurrences, and so does a scheduler that has a handler of this topic. `missed` and the other options are those
        of Scheduler.schedule. If there is such a schedule already, "replace" replaces it, "keep" keeps it, "reject"
        raises KeyHeld. The same again changes nothing (`kept` of the id is true), nor the number of calls that are
        left. An occurrence that is due already keeps its due, whatever the new times are, and is called before them.

        Raises BadArgument, also when no time is left; KeyHeld when a program declares the name, or calls a handler
        under it.
        """
        plan = PlainSchedule(
            name, when, payload, topic, headers, tz, missed, grace_s, jitter_s, start, end, count, on_conflict
        )
        return self.schedule_many([plan], sync=sync)[0]

    def schedule_many(self, schedules: Iterable[PlainSchedule], *, sync: Sync | None = None) -> list[MessageId]:
        """Start schedules as `schedule` does, all of them in one commit or none; return the ids of their occurrences.

        Raises BadArgument when two have one name, and the error of the first that is refused.
        """
        plans = [*check_items("schedules", schedules)]
        if not all(isinstance(plan, PlainSchedule) for plan in plans):
            raise BadArgument(f"schedules are a list of PlainSchedule, not {shown(plans)}")
        plants = [plan.plant(self.payload_bytes_max) for plan in plans]
        names = [plant.definition.name for plant in plants]
        for name, number in Counter(names).items():
            if number > 1:
                raise BadArgument(f"two schedules of this call are named {name!r}")
        return self._plant(names, lambda _: plants, sync) if names else []

    def edit_schedule(
        self,
        name: str,
        *,
        when: OneOrMore | Unset = UNSET,
        payload: bytes | Unset = UNSET,
        topic: str | Unset = UNSET,
        headers: Mapping[str, str] | Unset = UNSET,
        change_headers: Mapping[str, str | None] | Unset = UNSET,
        tz: str | Unset = UNSET,
        missed: Missed | Unset = UNSET,
        grace_s: float | Unset = UNSET,
        jitter_s: float | Unset = UNSET,
        start: Time | Unset | None = UNSET,
        end: Time | Unset | None = UNSET,
        count: int | Unset | None = UNSET,
        sync: Sync | None = None,
    ) -> MessageId:
        """Change what is given of a schedule; return the id of its next occurrence.

        None takes a start, an end or a count away. A count that is given counts from now. `headers` replace all but
        its own retry and time-out; `change_headers` sets some, or takes away those whose value is None. Of two edits at
        once each keeps what the other has changed.
        Raises NotFound; KeyHeld for a schedule that a program declares; BadArgument.
        """
        edit = Edit(when, payload, topic, headers, change_headers, tz, missed, grace_s, jitter_s, start, end, count)
        check_name(name)

        def edited(stored: Sequence[StoredSchedule | None]) -> list[Plant]:
            if stored[0] is None:
                raise NotFound(
                    f"there is no schedule {name!r}", path=self.path, hint="`filewheel schedule list` shows them"
                )
            if stored[0].is_declared:
                raise KeyHeld(
                    f"a program declares the schedule {name!r}",
                    key=schedule_key(name),
                    id=stored[0].occurrence.id,
                    path=self.path,
                    hint="change it in the program",
                )
            return [checked(edit.of(stored[0]), self.payload_bytes_max)]

        return self._plant([name], edited, sync)[0]

    def unschedule(self, name: str, *, sync: Sync | None = None) -> Cancelled:
        """End a schedule; return whether its occurrence was stopped in time, had begun, or there is none.

        A running occurrence goes on, and is the last. A schedule that a program declares begins again when it starts:
        call this when no program declares it any more.
        """
        return self.cancel(key=schedule_key(check_name(name)), sync=sync)

    def _plant(
        self,
        names: Sequence[str],
        plants_of: Callable[[Sequence[StoredSchedule | None]], Sequence[Plant]],
        sync: Sync | None,
    ) -> list[MessageId]:
        """Plant schedules in one frame, all or none; return the ids of their next occurrences, `kept` where they stay.

        `plants_of` returns them, given what is stored of these names now. Two administrators and a keeper may do this
        at once: the frame is written only if the messages that were read still have the keys; else all is done again.
        Raises the error of the first that is refused.
        """
        sync = self._sync if sync is None else check_sync(sync)
        keys = [schedule_key(name) for name in names]
        for _ in range(_TRIES):
            living, now_us = self._holders(keys), self._clock.now_us()
            plants = plants_of([None if m is None else schedule_of(m) for m in living])
            decided = [
                decide(plant, message, now_us=now_us, has_begun=self._has_begun, path=self.path)
                for plant, message in zip(plants, living, strict=True)
            ]
            asks = [one for one in decided if isinstance(one, Ask)]
            made = iter(self._put_all(asks, sync) if asks else ())
            ids = [next(made) if isinstance(one, Ask) else one for one in decided]
            found = [one for one in ids if isinstance(one, MessageId)]
            if len(found) == len(names):
                return found
            for each in ids:
                if isinstance(each, Locked):
                    raise each
            # The message that had a key is another now: it fired, or someone else planted.
        raise KeyHeld(
            f"the schedule {names[0]!r} changes faster than it can be replaced",
            key=keys[0],
            path=self.path,
            hint="try again",
        )

    def _has_begun(self, message: Message) -> bool:
        """Return whether the work on a message has begun; False if that is not known: it may be done twice then."""
        return BegunLook(self._dir).outcomes([message.id])[message.id] is Cancelled.BEGUN

    def _put_all(self, asks: Sequence[Ask], sync: Sync) -> list[MessageId | KeyHeld | Locked]:
        journal = self._writer()
        made, ticket = put_all(self._keys, journal, asks, all_or_none=True)
        if ticket is None:
            return made
        copies = journal.wait_durable(ticket, sync)
        self._hint.send(self._clock.now_us())
        return [receipt(one, copies) if isinstance(one, MessageId) else one for one in made]
