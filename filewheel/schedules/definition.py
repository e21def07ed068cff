"""What a schedule is: a name, its times, and the policy for those that were missed; and how an occurrence stores it.

A recurrence has endless times. A definition keeps those from its start to its end, a count of them, and delays each by
a jitter. An occurrence stores the definition in a header, and where it is in it: how many calls are left, and its time
without the jitter.
Invariant: an occurrence stores all that is needed to compute the next one; an option that is not used leaves no trace
in the header.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from filewheel.checks import check_number, check_whole, shown
from filewheel.errors import BadArgument, FilewheelError, said
from filewheel.message import (
    ARGS,
    DUE_END_US,
    KEY,
    OF_SCHEDULE,
    SCHEDULE,
    SCHEDULE_KEY,
    US_PER_S,
    Message,
    MessageId,
    schedule_name_of,
    to_datetime,
)
from filewheel.schedules.cron import Cron
from filewheel.schedules.recurrence import (
    Every,
    Missed,
    Once,
    Recurrence,
    Unreadable,
    from_text,
    is_skipped,
    read_recurrence,
)
from filewheel.timespec import at_us, check_due, delay_us

When = str | float | timedelta | Cron | Every
OneOrMore = When | datetime | Once
"""The times of a schedule that need not recur."""
Time = datetime | float
GRACE_US = 60_000_000
ASTRAY_US = 3600 * US_PER_S
"""A clock that goes back by less than this was corrected: called occurrences are not called again."""
NAME_BYTES_MAX = 200
COUNT_MAX = 1_000_000
_GAPS = 50
_OPTIONS = ("start_us", "end_us", "jitter_us", "count", "source")
"""Fields that the header has only if they are set."""


@dataclass(frozen=True)
class Definition:
    """A schedule, without what its occurrences carry."""

    name: str
    recurrence: Recurrence | Unreadable
    missed: Missed = "once"
    grace_us: int = GRACE_US
    """With missed="skip": the latest that an occurrence is still called."""
    is_declared: bool = True
    """Declared in a program: only a program that declares it calls its occurrences, and they wait for one."""
    start_us: int | None = None
    """No occurrence is due before it."""
    end_us: int | None = None
    """No occurrence is due after it."""
    jitter_us: int = 0
    """Each occurrence is due later than its time by a random part of this."""
    count: int | None = None
    """How many occurrences are called."""
    source: str = ""
    """The file that it was loaded from."""

    def __post_init__(self) -> None:
        """Raise BadArgument unless these values make a schedule."""
        check_name(self.name)
        is_skipped(0, 0, self.missed, 0)  # raises for an unknown policy
        check_whole("grace_us", self.grace_us, least=0)
        check_whole("jitter_us", self.jitter_us, least=0)
        for at in (self.start_us, self.end_us):
            if at is not None:
                check_due(check_whole("a time", at, least=0))
        if self.count is not None and check_whole("count", self.count) > COUNT_MAX:
            raise BadArgument(f"count is at most {COUNT_MAX:,}, not {self.count:,}", hint="end= bounds it by time")
        if not isinstance(self.source, str):
            raise BadArgument(f"source is the name of a file, not {shown(self.source)}")

    @property
    def key(self) -> str:
        """The key that its living occurrence holds."""
        return schedule_key(self.name)

    def after(self, us: int) -> int:
        """Return its first time strictly after an instant, without jitter. Raises BadArgument when there is none."""
        found = self.recurrence.after(us if self.start_us is None else max(us, self.start_us - 1))
        if self.end_us is not None and found > self.end_us:
            raise BadArgument(
                f"the schedule {self.name!r} has no time before its end, {to_datetime(self.end_us).isoformat()}",
                hint="a later end",
            )
        return found

    def check_jitter(self, first_us: int) -> None:
        """Raise BadArgument unless the jitter is shorter than each of the first gaps: later ones would be left out."""
        before_us = first_us
        for _ in range(_GAPS):
            try:
                after_us = self.after(before_us)
            except BadArgument:  # it ends
                return
            if self.jitter_us >= after_us - before_us:
                gap_s = (after_us - before_us) / US_PER_S
                raise BadArgument(
                    f"the jitter is shorter than the time between two occurrences, {gap_s:g} s",
                    hint="jitter_s below it",
                )
            before_us = after_us

    def due_us(self, time_us: int, seed: bytes) -> int:
        """Return when the occurrence of a time is due: later by a part of the jitter that the seed decides."""
        if not self.jitter_us:
            return time_us
        drawn = hashlib.blake2b(seed + time_us.to_bytes(8, "big"), digest_size=8).digest()
        due_us = time_us + int.from_bytes(drawn, "big") % (self.jitter_us + 1)
        return min(due_us, DUE_END_US - 1 if self.end_us is None else self.end_us)

    def has_times_of(self, other: Definition) -> bool:
        """Return whether the two have the same times."""
        return all(getattr(self, n) == getattr(other, n) for n in ("recurrence", "start_us", "end_us", "jitter_us"))

    def is_same(self, other: Definition) -> bool:
        """Return whether the two are the same, regardless of what their occurrences carry."""
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(Definition))

    def header(self, left: int | None = None, time_us: int | None = None) -> str:
        """Return it as an occurrence stores it, with the number of calls left and the time without jitter."""
        stored: dict[str, object] = {
            "name": self.name,
            "when": self.recurrence.to_text(),
            "missed": self.missed,
            "grace_us": self.grace_us,
            "declared": self.is_declared,
        }
        stored |= {name: value for name in _OPTIONS if (value := getattr(self, name))}
        stored |= {} if left is None else {"left": left}
        stored |= {} if time_us is None else {"time_us": time_us}
        return json.dumps(stored, separators=(",", ":"))


@dataclass(frozen=True)
class StoredSchedule(Definition):
    """The schedule that an occurrence stores."""

    left: int | None = None
    """How many calls are left, this one included; None without a count."""
    time_us: int = 0
    """The time of the recurrence that this occurrence stands for: its due, without jitter."""
    occurrence: Message = field(default_factory=lambda: Message(MessageId(bytes(16)), b""), compare=False)
    """The message that stores it: the next occurrence, or the one that runs."""

    @property
    def unreadable(self) -> str:
        """Why its times cannot be read here and now; the empty string when they can."""
        return self.recurrence.why if isinstance(self.recurrence, Unreadable) else ""

    @property
    def first_due_us(self) -> int:
        """When the occurrence was due for the first time: no retry, deferral or reschedule makes it later."""
        message = self.occurrence
        dues = (message.waits_since_us, None if message.root is None else message.root.due_us, message.due_us)
        return min(us for us in dues if us is not None)

    @property
    def next(self) -> datetime:
        """When the occurrence is due, as an aware datetime in UTC."""
        return self.occurrence.due

    @property
    def topic(self) -> str:
        """The topic of its occurrences; of calls, the name of the handler."""
        return self.occurrence.topic

    @property
    def is_plain(self) -> bool:
        """Whether its occurrences are plain messages, which any consumer that writes the next one may fire."""
        return ARGS not in self.occurrence.headers and not self.is_declared


def schedule_of(message: Message) -> StoredSchedule | None:
    """Read the schedule that an occurrence stores; None when the message is no occurrence.

    One that cannot be read here and now says why, in `unreadable`.
    """
    if SCHEDULE not in message.headers:
        return None
    stored: dict[str, Any] = {}
    time_us = (message.root or message.id).due_us
    try:
        stored = json.loads(message.headers[SCHEDULE])
        options = {name: stored[name] for name in _OPTIONS if name in stored}
        left = stored.get("left", options.get("count"))
        if left is not None:
            check_whole("left", left)
        return StoredSchedule(
            stored["name"],
            from_text(stored["when"]),
            stored["missed"],
            int(stored["grace_us"]),
            bool(stored["declared"]),
            **options,
            left=left,
            time_us=check_whole("time_us", stored.get("time_us", time_us), least=0),
            occurrence=message,
        )
    except (KeyError, ValueError, TypeError, RecursionError, FilewheelError) as exc:
        why = said(exc) if isinstance(exc, FilewheelError) else "its definition is not one of this version"
    found = stored if isinstance(stored, dict) else {}
    source = found.get("source")
    return StoredSchedule(
        next((name for name in (found.get("name"), schedule_name_of(message.headers)) if is_name(name)), "?"),
        Unreadable(str(found.get("when", "")), why),
        is_declared=bool(found.get("declared")),
        source=source if isinstance(source, str) else "",
        time_us=time_us,
        occurrence=message,
    )


def moved_on(message: Message, left: int | None, time_us: int | None) -> str:
    """Return the header of an occurrence's successor, with all that another version has stored in it."""
    stored = json.loads(message.headers[SCHEDULE])
    changed = {k: v for k, v in (("left", left), ("time_us", time_us)) if v is not None}
    if not changed and "time_us" not in stored:
        return message.headers[SCHEDULE]
    stored = {k: v for k, v in stored.items() if k not in ("left", "time_us")} | changed
    return json.dumps(stored, separators=(",", ":"))


# -- arguments --------------------------------------------------------------------------------------------------------


def is_name(name: object) -> TypeGuard[str]:
    """Return whether a schedule may have this name."""
    try:
        return isinstance(name, str) and 1 <= len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def check_name(name: str) -> str:
    """Return the name of a schedule, or raise BadArgument."""
    if not is_name(name):
        raise BadArgument(f"the name of a schedule is a str of 1 to {NAME_BYTES_MAX} bytes, not {shown(name)}")
    return name


def schedule_key(name: str) -> str:
    """Return the key of a schedule's living occurrence."""
    return SCHEDULE_KEY + name


def recurrence_of(when: OneOrMore, tz: str) -> Recurrence:
    """Return a recurrence, or read it from text, seconds, or a single time. Raises BadArgument."""
    if isinstance(when, (Cron, Every, Once)):
        return when
    if isinstance(when, datetime):
        return Once(check_due(at_us(when, "when")))
    if isinstance(when, str):
        return read_recurrence(when, tz)
    return Every(when)


@dataclass(frozen=True)
class ScheduleTerms:
    """The options of a schedule, as a caller gives them."""

    tz: str = "UTC"
    missed: Missed = "once"
    grace_s: float = GRACE_US / US_PER_S
    jitter_s: float = 0
    start: Time | None = None
    end: Time | None = None
    count: int | None = None

    def defined(self, name: str, when: OneOrMore, *, is_declared: bool, source: str = "") -> Definition:
        """Return the checked definition. Raises BadArgument."""
        recurrence = recurrence_of(when, self.tz)
        grace_us = delay_us(check_number("grace_s", self.grace_s, least=0))
        jitter_us = delay_us(check_number("jitter_s", self.jitter_s, least=0))
        start_us = None if self.start is None else check_due(at_us(self.start, "start")) or None
        end_us = None if self.end is None else check_due(at_us(self.end, "end"))
        if isinstance(recurrence, Once) and is_declared:
            raise BadArgument(
                "a single time does not recur, and each start of the program would declare it again",
                hint="scheduler.schedule(...), or enqueue a call with at=",
            )
        if isinstance(recurrence, Once) and (start_us, end_us, self.count) != (None, None, None):
            raise BadArgument("a single time has no start, end or count", hint="leave them out")
        if isinstance(recurrence, Every) and jitter_us >= recurrence.interval_us:
            raise BadArgument(
                f"the jitter is shorter than the interval, {recurrence!r}", hint="jitter_s below the interval"
            )
        if is_declared and self.count is not None and start_us is None:
            raise BadArgument(
                "count needs a start here: without one, each start of the program would begin to count again",
                hint="start=datetime(...), or scheduler.schedule(...), which counts from its call",
            )
        if isinstance(recurrence, Every) and not recurrence.start_us and start_us is not None:
            recurrence = Every(timedelta(microseconds=recurrence.interval_us), start_us)
        made = Definition(
            name, recurrence, self.missed, grace_us, is_declared, start_us, end_us, jitter_us, self.count, source
        )
        first_us = made.after(-1 if start_us is None else start_us - 1)  # raises when it has no time at all
        if isinstance(recurrence, Cron) and jitter_us:
            made.check_jitter(first_us)
        return made


def without_schedule(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers of an occurrence as its dead letter has them.

    A dead letter holds no key, and is no occurrence: a revived one is called once and has no successor. It keeps the
    name of its schedule, for people.
    """
    kept = {k: v for k, v in headers.items() if k not in (KEY, SCHEDULE)}
    name = schedule_name_of(headers)
    return kept if name is None else {**kept, OF_SCHEDULE: name}


class Unset(enum.Enum):
    """The type of UNSET."""

    UNSET = "unset"


UNSET = Unset.UNSET
"""An option of an edit that stays as it is; None takes one away."""
