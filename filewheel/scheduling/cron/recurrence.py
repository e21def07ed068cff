"""What recurs: a fixed interval or a cron expression, how it is written down, and what comes after one that is done.

Invariant: a next due lies after the due it follows, whatever the clock did meanwhile, and is computed, never counted
up to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US
from filewheel.scheduling.cron.cron import Cron
from filewheel.timespec import check_due, delay_us, parse_duration

INTERVAL_US_MIN = 1000
"""A millisecond. Each occurrence is a message that is written, fired and acknowledged: below this no disk keeps up, and
a wheel that tried would do nothing else."""

_SHOWN = 64


class Every:
    """A fixed interval: a fire at its start, and then one each interval, for ever.

    The grid is fixed by its start and not by when anything ran, so that its phase does not drift, and processes that
    define the same interval mean the same instants. The start is the epoch unless given: `Every(60)` is each full
    minute. Real time: an interval knows no zone, and `Every(86400)` moves by an hour on the wall when clocks change.
    """

    __slots__ = ("interval_us", "start_us")

    def __init__(self, interval_s: float | timedelta, start_us: int = 0) -> None:
        """Take an interval in seconds or as a timedelta. Raises BadArgument for one under a millisecond."""
        interval_us = delay_us(interval_s)
        if not INTERVAL_US_MIN <= interval_us < DUE_END_US:
            raise BadArgument(f"an interval is 0.001 s or more, not {interval_s!r}", hint="Every(60) is each minute")
        if not isinstance(start_us, int) or isinstance(start_us, bool):
            raise BadArgument(f"start_us is microseconds since the epoch, not {start_us!r}")
        self.interval_us = interval_us
        self.start_us = check_due(start_us)

    def after(self, us: int) -> int:
        """Return the first fire strictly after an instant, both in microseconds since the epoch.

        Raises BadArgument when it would come after the year 9999.
        """
        count = max(0, (us - self.start_us) // self.interval_us + 1)
        return check_due(self.start_us + count * self.interval_us)

    def times(self, us: int) -> Iterator[int]:
        """Yield the fires after an instant, one after the other, without end. Raises as `after` does."""
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


Recurrence: TypeAlias = Cron | Every

Missed = Literal["once", "all", "skip"]
"""What becomes of occurrences whose time passed while nothing ran."""


def from_text(text: str) -> Recurrence:
    """Read what `to_text` wrote. Raises BadArgument for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        fields = None
    keys = sorted(fields) if isinstance(fields, dict) else []
    if keys == ["cron", "tz"]:
        return Cron(fields["cron"], fields["tz"])
    if keys == ["every_us", "start_us"] and all(type(value) is int for value in fields.values()):
        return Every(timedelta(microseconds=max(0, min(fields["every_us"], DUE_END_US))), fields["start_us"])
    raise BadArgument(f"{str(text)[:_SHOWN]!r} does not define anything that recurs", hint="what to_text() returned")


def read_recurrence(text: str, tz: str = "UTC") -> Recurrence:
    """Read what people write: "90s", "every 15m", a cron expression, or a name like "@daily".

    A zone means nothing for an interval. Raises BadArgument that says what is wrong.
    """
    words = text.strip()
    if words[:6].lower() == "every ":
        return Every(timedelta(microseconds=_duration_us(words[6:].strip())))
    if len(words.split()) == 1 and not words.startswith("@"):
        return Every(timedelta(microseconds=_duration_us(words)))
    return Cron(words, tz)


def _duration_us(text: str) -> int:
    try:
        return min(parse_duration(text), DUE_END_US)
    except BadArgument:
        raise BadArgument(
            f"{text[:_SHOWN]!r} is neither an interval nor a cron expression",
            hint="'90s', 'every 15m', or five fields: '0 9 * * mon-fri'",
        ) from None


# -- what comes after one that is done --------------------------------------------------------------------------------


def next_due(recurrence: Recurrence, due_us: int, now_us: int, missed: Missed = "once") -> int:
    """Return when the occurrence after this one is due. Some microseconds of work, whatever lies between.

    `due_us` is when this one was due, `now_us` when it was started (or was found too late to be): what comes due while
    it runs is not covered by it, and follows at once.

    - "once": the first after now. What was missed has come once, with this one, late.
    - "all": the first after this one's own due, so that each comes in its turn, however late.
    - "skip": the first after now. This one itself was not run if `is_skipped` said so.

    Raises BadArgument for another policy, and when nothing comes any more.
    """
    _check_missed(missed)
    # A clock that was put back must not bring an occurrence that was done already.
    return recurrence.after(due_us if missed == "all" else max(due_us, now_us))


def is_skipped(due_us: int, now_us: int, missed: Missed, grace_us: int) -> bool:
    """Tell whether an occurrence is not to be run: under "skip", when it is late by more than the grace."""
    _check_missed(missed)
    return missed == "skip" and now_us - due_us > grace_us


def _check_missed(missed: object) -> None:
    if missed not in get_args(Missed):
        raise BadArgument(f"missed is 'once', 'all' or 'skip', not {missed!r}")
