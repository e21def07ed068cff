"""Recurring work: a name, a recurrence and a handler; and the step from one occurrence to the next.

A schedule has exactly one living occurrence: an ordinary message that holds the key of the schedule's name and stores
its definition. The next occurrence is written in the frame that settles this one, so a crash leaves one or the other.
Any number of programs may define the same schedule: the key admits one.
Invariant: an occurrence stores its definition, so any keeper can compute the next one, and a changed definition
replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel.checks import check_number, shown
from filewheel.env import Clock
from filewheel.errors import BadArgument
from filewheel.format.limits import check_topic
from filewheel.message import ARGS, DETAILS, HISTORY, KEY, SCHEDULE, US_PER_S, Message
from filewheel.scheduling.call import MSGPACK, check_callable, pack_call
from filewheel.scheduling.cron.recurrence import Missed, Recurrence, from_text, is_skipped, next_due
from filewheel.scheduling.job import MINT
from filewheel.timespec import delay_us

KEY_PREFIX = "filewheel.every:"
GRACE_US = 60_000_000
ASTRAY_US = 3600 * US_PER_S
"""A clock that goes back by less than this was corrected: called occurrences are not called again."""
NAME_BYTES_MAX = 200


@dataclass(frozen=True)
class Schedule:
    """A schedule as it is declared."""

    name: str
    handler: str
    recurrence: Recurrence
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    missed: Missed = "once"
    grace_us: int = GRACE_US
    """With missed="skip": the latest that an occurrence is still called."""
    is_declared: bool = True
    """Declared in the program: it ends when the program that fires no longer declares it."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_topic(self.handler)
        if not self.handler:
            raise BadArgument("a schedule names the handler that it calls")
        check_callable(self.handler)
        is_skipped(0, 0, self.missed, 0)  # raises for an unknown policy
        self.payload()  # raises for arguments that cannot be stored

    @property
    def key(self) -> str:
        """The key that its living occurrence holds."""
        return key_of(self.name)

    def header(self) -> str:
        """Return the definition as an occurrence stores it."""
        return json.dumps(
            {
                "name": self.name,
                "when": self.recurrence.to_text(),
                "missed": self.missed,
                "grace_us": self.grace_us,
                "declared": self.is_declared,
            },
            separators=(",", ":"),
        )

    def payload(self) -> bytes:
        """Return the arguments, packed."""
        return pack_call(self.args, self.kwargs)

    def headers(self) -> dict[str, str]:
        """Return an occurrence's headers, without its key."""
        return {ARGS: MSGPACK, SCHEDULE: self.header()}

    def is_that_of(self, message: Message) -> bool:
        """Return whether a living occurrence has this definition."""
        return (
            message.headers.get(SCHEDULE) == self.header()
            and message.topic == self.handler
            and message.payload == self.payload()
        )

    def is_astray(self, message: Message, now_us: int) -> bool:
        """Return whether an occurrence is due long after the next time: its time came from a wrong clock.

        A rescheduled or retried one has a root, and keeps its time.
        """
        return message.root is None and message.due_us > self.recurrence.after(now_us + ASTRAY_US)


def check_name(name: str) -> str:
    """Return the name of a schedule, or raise BadArgument."""
    if not isinstance(name, str) or not 1 <= len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX:
        raise BadArgument(f"the name of a schedule is a str of 1 to {NAME_BYTES_MAX} bytes, not {shown(name)}")
    return name


def grace_us_of(grace_s: float) -> int:
    """Return how late an occurrence may be, in microseconds. Raises BadArgument."""
    return delay_us(check_number("grace_s", grace_s, least=0))


def key_of(name: str) -> str:
    """Return the key of a schedule's living occurrence."""
    return KEY_PREFIX + name


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """The schedule that an occurrence stores."""

    name: str
    recurrence: Recurrence
    missed: Missed
    grace_us: int
    is_declared: bool


def schedule_of(message: Message) -> StoredSchedule | None:
    """Read the schedule that an occurrence stores; None when it is missing or unreadable."""
    try:
        fields = json.loads(message.headers[SCHEDULE])
        found = StoredSchedule(
            fields["name"],
            from_text(fields["when"]),
            fields["missed"],
            int(fields["grace_us"]),
            bool(fields["declared"]),
        )
        is_skipped(0, 0, found.missed, 0)
        return found if isinstance(found.name, str) else None
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


class Occurrences:
    """Computes the next occurrences, and finds those that must not be called. Thread-safe."""

    def __init__(self, declared: Mapping[str, Schedule], clock: Clock) -> None:
        self._declared = declared
        self._clock = clock

    def next_of(self, message: Message, started_us: int) -> Message | None:
        """Return the occurrence after one that was started at a time; None when nothing follows."""
        definition = schedule_of(message)
        if definition is None or self._has_stopped(definition):
            return None
        now_us = self._clock.now_us()
        try:
            was_due_us = (message.root or message.id).due_us  # a retry is due later than its occurrence
            # A time in the future is from before the clock was put back: it does not count.
            ahead_us = now_us + ASTRAY_US
            was_due_us, started_us = (now_us if us > ahead_us else us for us in (was_due_us, started_us))
            due_us = next_due(definition.recurrence, was_due_us, started_us, definition.missed)
        except BadArgument:
            return None  # after the year 9999
        kept = {k: v for k, v in message.headers.items() if k not in (HISTORY, DETAILS)}
        kept[KEY] = key_of(definition.name)
        return Message(MINT.id_at(due_us), message.payload, message.topic, kept, 0, now_us)

    def fate_of(self, message: Message, now_us: int) -> str | None:
        """Return why an occurrence is not to be called ("missed", "stopped"), or None."""
        definition = schedule_of(message)
        if definition is None:
            return None
        if self._has_stopped(definition):
            return "stopped"
        is_first_try = message.attempt == 0
        late = is_skipped(message.due_us, now_us, definition.missed, definition.grace_us)
        return "missed" if is_first_try and late else None

    def _has_stopped(self, definition: StoredSchedule) -> bool:
        return definition.is_declared and definition.name not in self._declared
