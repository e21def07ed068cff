"""A recurrence: a fixed interval, a cron expression or a single time; its text, and the due of the next occurrence.

Invariant: the next due time is later than the previous one, even after a change of the clock; it is computed directly,
not step by step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias, get_args

from filewheel.checks import shown
from filewheel.errors import BadArgument, FilewheelError
from filewheel.message import DUE_END_US, US_PER_S, to_datetime
from filewheel.schedules.cron import Cron
from filewheel.timespec import check_due, delay_us, parse_duration

INTERVAL_US_MIN = 1000
"""A millisecond. Each occurrence is a message that is written, fired and acknowledged; no disk is faster."""

_SHOWN = 64
_KNOWN_MAX = 1 << 14
"""So many expressions are read once: that of a call that began is known at its end, whatever the machine lacks then."""


class Every:
    """A fixed interval: a fire at its start, and then one per interval, for ever.

    The times follow from the start alone, so the phase does not drift, and processes that define the same interval mean
    the same instants. The start is the epoch by default: `Every(60)` fires at every full minute.
    An interval is real time and has no zone: `Every(86400)` moves by an hour of local time when clocks change.
    """

    __slots__ = ("interval_us", "start_us")

    def __init__(self, interval_s: float | timedelta, start_us: int = 0) -> None:
        """Set an interval in seconds or as a timedelta. Raises BadArgument below a millisecond."""
        interval_us = delay_us(interval_s)
        if not INTERVAL_US_MIN <= interval_us < DUE_END_US:
            raise BadArgument(
                f"an interval is 0.001 s or more, and less than {DUE_END_US / US_PER_S:.0f} s; "
                f"this one is {Decimal(interval_us) / US_PER_S:g} s",
                hint="'every 15m', or Every(900) in Python",
            )
        if not isinstance(start_us, int) or isinstance(start_us, bool):
            raise BadArgument(f"start_us is microseconds since the epoch, not {shown(start_us)}")
        self.interval_us = interval_us
        self.start_us = check_due(start_us)

    def after(self, us: int) -> int:
        """Return the first fire strictly after an instant, both in microseconds since the epoch.

        Raises BadArgument when it would come after the year 9999.
        """
        count = max(0, (us - self.start_us) // self.interval_us + 1)
        return check_due(self.start_us + count * self.interval_us)

    def times(self, us: int) -> Iterator[int]:
        """Yield the fires after an instant, without end. Raises as `after` does."""
        while True:
            us = self.after(us)
            yield us

    def to_text(self) -> str:
        """Return the definition as JSON, for `from_text`."""
        return json.dumps({"every_us": self.interval_us, "start_us": self.start_us}, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        mine = (self.interval_us, self.start_us)
        return isinstance(other, Every) and mine == (other.interval_us, other.start_us)

    def __hash__(self) -> int:
        return hash((self.interval_us, self.start_us))

    def __repr__(self) -> str:
        start = f", start_us={self.start_us}" if self.start_us else ""
        return f"Every({self.interval_us / 1_000_000:.15g}{start})"


class Once:
    """A single time, in microseconds since the epoch."""

    __slots__ = ("at_us",)

    def __init__(self, at_us: int) -> None:
        """Set the time. Raises BadArgument outside of 1970 to 9999."""
        if not isinstance(at_us, int) or isinstance(at_us, bool):
            raise BadArgument(f"at_us is microseconds since the epoch, not {shown(at_us)}")
        self.at_us = check_due(at_us)

    def after(self, us: int) -> int:
        """Return the time, if it is strictly after an instant. Raises BadArgument when it is not."""
        if us >= self.at_us:
            raise BadArgument(f"{to_datetime(self.at_us).isoformat()} has passed", hint="a time in the future")
        return self.at_us

    def times(self, us: int) -> Iterator[int]:
        """Yield the time, if it is after an instant."""
        if us < self.at_us:
            yield self.at_us

    def to_text(self) -> str:
        """Return the definition as JSON, for `from_text`."""
        return json.dumps({"at_us": self.at_us}, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Once) and self.at_us == other.at_us

    def __hash__(self) -> int:
        return hash(self.at_us)

    def __repr__(self) -> str:
        return f"Once({self.at_us})"


@dataclass(frozen=True)
class Unreadable:
    """Times that cannot be read here and now: a zone that this machine lacks, or the text of a newer version."""

    text: str
    why: str

    def after(self, us: int) -> int:
        """Raise FilewheelError: there are times, and they are not known."""
        raise FilewheelError(f"its times cannot be read here: {self.why}")

    def to_text(self) -> str:
        """Return the text as it was stored."""
        return self.text


Recurrence: TypeAlias = Cron | Every | Once

Missed = Literal["once", "all", "skip"]
"""The policy for occurrences whose time passed while no scheduler ran."""


@lru_cache(_KNOWN_MAX)
def cron_of(text: str, tz: str) -> Cron:
    """Return a cron expression; the same one for the same text and zone. Raises as Cron."""
    return Cron(text, tz)


def from_text(text: str) -> Recurrence:
    """Read the text of `to_text`. Raises BadArgument for other text, DiskError when a zone cannot be read."""
    try:
        fields = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        fields = None
    keys = sorted(fields) if isinstance(fields, dict) else []
    if keys == ["cron", "tz"]:
        return cron_of(fields["cron"], fields["tz"])
    if keys == ["every_us", "start_us"] and all(type(value) is int for value in fields.values()):
        return Every(timedelta(microseconds=max(0, min(fields["every_us"], DUE_END_US))), fields["start_us"])
    if keys == ["at_us"]:
        return Once(fields["at_us"])
    raise BadArgument(f"{str(text)[:_SHOWN]!r} defines no recurrence", hint="the result of to_text()")


def read_recurrence(text: str, tz: str = "UTC") -> Recurrence:
    """Read the text of a user: "90s", "every 15m", a cron expression, or a name like "@daily".

    An interval ignores the zone. Raises BadArgument with the mistake.
    """
    words = text.strip()
    if words[:6].lower() == "every ":
        return Every(timedelta(microseconds=_duration_us(words[6:].strip())))
    if len(words.split()) == 1 and not words.startswith("@"):
        return Every(timedelta(microseconds=_duration_us(words)))
    return cron_of(words, tz) if isinstance(tz, str) else Cron(words, tz)


def _duration_us(text: str) -> int:
    try:
        return min(parse_duration(text), DUE_END_US)
    except BadArgument:
        raise BadArgument(
            f"{text[:_SHOWN]!r} is neither an interval nor a cron expression",
            hint="'90s', 'every 15m', or five fields: '0 9 * * mon-fri'",
        ) from None


# -- the next occurrence ---------------------------------------------------------------------------------------------


class Times(Protocol):
    """Anything with a next time."""

    def after(self, us: int, /) -> int:
        """Return the first time strictly after an instant. Raises BadArgument when there is none."""


def next_due(recurrence: Times, due_us: int, now_us: int, missed: Missed = "once") -> int:
    """Return when the occurrence after this one is due. Cost: some microseconds, for any distance.

    `due_us` is when this one was due, `now_us` when it started (or was found too late to start). An occurrence that
    comes due while this one runs follows at once.

    - "once": the first after now. This late one was the one call for all missed ones.
    - "all": the first after this one's own due time, so that each is called, even late.
    - "skip": the first after now. This one was not called if `is_skipped` returned True.

    Raises BadArgument for another policy, and when there is no next one.
    """
    _check_missed(missed)
    # After the clock was put back, a called occurrence must not be repeated.
    return recurrence.after(due_us if missed == "all" else max(due_us, now_us))


def is_skipped(due_us: int, now_us: int, missed: Missed, grace_us: int) -> bool:
    """Return whether an occurrence is not called: under "skip", if it is later than the grace time."""
    _check_missed(missed)
    return missed == "skip" and now_us - due_us > grace_us


def _check_missed(missed: object) -> None:
    if missed not in get_args(Missed):
        raise BadArgument(f"missed is 'once', 'all' or 'skip', not {shown(missed)}")
