"""Plants schedules: enters the next occurrence of each, or replaces the one that waits.

The wheel writes what is decided here (changes.py).
Invariant: an occurrence that is due is never replaced by another time: with any new definition it keeps its due, unless
it runs already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from filewheel.errors import BadArgument, KeyHeld
from filewheel.format.ids import MINT
from filewheel.format.record import pack_middle, pack_payload
from filewheel.keys.unique import Ask
from filewheel.message import (
    ARGS,
    DETAILS,
    DUE,
    HISTORY,
    KEY,
    OF_SCHEDULE,
    SCHEDULE,
    WAITS,
    Message,
    MessageId,
    receipt,
)
from filewheel.schedules.definition import ASTRAY_US, Definition, StoredSchedule, schedule_of

_OWN = (KEY, SCHEDULE, OF_SCHEDULE, HISTORY, DETAILS, DUE, WAITS)
"""Headers that are not the caller's."""


@dataclass(frozen=True)
class Plant:
    """A schedule that is to be planted: its definition, and the message that each occurrence is."""

    definition: Definition
    payload: bytes
    topic: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    on_conflict: str = "replace"
    left: int | None = None
    """The calls that are left, in place of those of the occurrence that waits."""

    def is_that_of(self, living: StoredSchedule) -> bool:
        """Return whether a living occurrence is one of this schedule."""
        message = living.occurrence
        return (
            self.definition.is_same(living)
            and (self.topic, self.payload) == (message.topic, message.payload)
            and dict(self.headers) == own_headers(message)
            and self.left in (None, living.left)
            and message.waits is None
        )


def own_headers(message: Message) -> dict[str, str]:
    """Return the headers that the caller gave an occurrence."""
    return {k: v for k, v in message.headers.items() if k not in _OWN}


def decide(
    plant: Plant, message: Message | None, *, now_us: int, has_begun: Callable[[Message], bool], path: str
) -> Ask | MessageId:
    """Return the message to write for a schedule whose key a message has, or the id of the occurrence that stays.

    Raises BadArgument when no time is left, KeyHeld when the name is another kind of schedule's, or is not to be taken.
    """
    definition = plant.definition
    living = None if message is None else schedule_of(message)
    if message is not None:
        check_kind(plant, message, living, path)
        if plant.on_conflict == "reject":
            raise KeyHeld(
                f"there is a schedule {definition.name!r} already",
                key=definition.key,
                id=message.id,
                path=path,
                hint='on_conflict="replace" or "keep" (`--on-conflict`), or another name',
            )
        if plant.on_conflict == "keep":
            return receipt(message.id, 1, kept=True)
    if living is not None and plant.is_that_of(living) and not is_astray(living, now_us):
        return receipt(living.occurrence.id, 1, kept=True)
    runs = living is not None and living.occurrence.due_us <= now_us and has_begun(living.occurrence)
    left = _left(plant, living, now_us, runs=runs)
    if left is not None and left <= 0:
        raise BadArgument(
            f"all {definition.count} occurrences of the schedule {definition.name!r} have passed, or run now",
            hint="a higher count, or a later start",
        )
    if living is not None and not runs and _keeps_due(definition, living, now_us):
        since_us = living.occurrence.waits_since_us
        time_us, due_us = living.time_us, living.occurrence.due_us if since_us is None else since_us
    else:
        time_us = definition.after(now_us)
        due_us = definition.due_us(time_us, MINT.id_at(time_us))
    stored = definition.header(left, None if due_us == time_us else time_us)
    headers = {**plant.headers, KEY: definition.key, SCHEDULE: stored}
    rest = pack_middle(now_us, plant.topic, headers) + pack_payload(plant.payload)
    policy, expects = ("reject", None) if message is None else ("replace", message.id)
    return Ask(definition.key, policy, due_us, rest, expects)


def check_kind(plant: Plant, message: Message, living: StoredSchedule | None, path: str) -> None:
    """Raise KeyHeld when the name belongs to a schedule of another kind: a program's, the shell's."""
    definition = plant.definition
    what, hint = "", ""
    if living is None:
        what = "a message that is no occurrence of a schedule"
        hint = f"filewheel inspect {message.id}"
    elif living.is_plain != (ARGS not in plant.headers and not definition.is_declared):
        what = "a schedule of plain messages" if living.is_plain else "a schedule of calls of a handler"
        hint = f"another name, or first `filewheel unschedule {definition.name}`"
    elif living.is_declared and not definition.is_declared:
        what = "a schedule that a program declares"
        hint = f"another name, or take it out of the program and `filewheel unschedule {definition.name}`"
    if what:
        raise KeyHeld(
            f"the name {definition.name!r} is that of {what}", key=definition.key, id=message.id, path=path, hint=hint
        )


def _keeps_due(definition: Definition, living: StoredSchedule, now_us: int) -> bool:
    """Return whether a new definition leaves an occurrence its due: it was due already, or has the same times."""
    # mutant: due-replaced
    return living.first_due_us <= now_us or (definition.has_times_of(living) and not is_astray(living, now_us))


def is_astray(living: StoredSchedule, now_us: int) -> bool:
    """Return whether an occurrence is due long after the next time: its time came from a wrong clock.

    A rescheduled or retried one has a root, and keeps its time.
    """
    if living.unreadable:
        return False
    try:
        return living.occurrence.root is None and living.time_us > living.after(now_us + ASTRAY_US)
    except BadArgument:  # it ends before
        return False


def _left(plant: Plant, living: StoredSchedule | None, now_us: int, *, runs: bool) -> int | None:
    """Return how many calls are left for the occurrence that is planted; the one that `runs` has been one."""
    definition = plant.definition
    if definition.count is None or plant.left is not None:
        return None if definition.count is None else plant.left
    if living is not None and (living.count, living.start_us) == (definition.count, definition.start_us):
        return None if living.left is None else living.left - runs
    if definition.start_us is None:
        return definition.count
    # Times before this call are not made up, and count: an earlier life of the schedule may have called them.
    passed, at_us = 0, definition.start_us - 1
    while passed < definition.count:
        try:
            at_us = definition.after(at_us)
        except BadArgument:
            break
        if at_us > now_us:
            break
        passed += 1
    return definition.count - passed
