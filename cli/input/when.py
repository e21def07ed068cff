"""The times of a schedule from the command line: an interval, a cron expression, a single time, a start and an end.

Invariant: a time without a zone is in --tz; without --tz it is local, as everywhere on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, get_args

import click

from filewheel import BadArgument, Once
from filewheel.scheduling.cron import Missed, Zone, read_recurrence

from .. import times
from ..times import to_datetime
from .params import DURATION, LOCAL, read_time

F = TypeVar("F", bound=Callable[..., Any])

NONE = "none"
"""Takes a start, an end or a count away."""
_CRON_CHARS = set("0123456789*/,-LW#?")


@dataclass(frozen=True)
class Words:
    """The arguments of a schedule, by their meaning."""

    name: str
    when: str | None
    body: str | None


def split(words: Sequence[str], *, has_time: bool, edits: bool = False) -> Words:
    """Tell NAME, the times and BODY apart. `has_time` means that --at gives the time. Raises UsageError."""
    name, *rest = words
    when = None
    if rest and not has_time:
        if rest[0].lower() == "every" and len(rest) > 1:
            when, rest = f"every {rest[1]}", rest[2:]
        else:
            when, rest = rest[0], rest[1:]
    if when is None and not has_time and not edits:
        raise click.UsageError('when? Give a cron expression in quotes, "every 90s", or --at TIME')
    if len(rest) > (0 if edits else 1):
        if when is not None and set(when) <= _CRON_CHARS:
            raise click.UsageError(
                'put the cron expression in quotes, or the shell takes * for file names: "0 3 * * *"'
            )
        extra = rest[0] if edits else rest[1]
        raise click.UsageError(f"put the body in quotes: {extra!r} is one argument too many")
    return Words(name, when, rest[0] if rest else None)


def check_when(name: str, when: str, tz: str) -> str:
    """Return the text of an interval or a cron expression. Raises BadArgument; hints at a NAME that is missing."""
    try:
        read_recurrence(when, tz)
    except BadArgument as exc:
        try:
            read_recurrence(name)
        except BadArgument:
            raise exc from None
        raise BadArgument(
            f"{name!r} is where the NAME of the schedule comes; {exc.what}", hint=f'schedule NAME "{name}" ...'
        ) from None
    return when


def read_at(text: str, tz: str | None) -> datetime:
    """Read a time; one without a zone is in `tz`, or local. Raises BadArgument."""
    return to_datetime(once(text, tz).at_us)


def once(text: str, tz: str | None) -> Once:
    """Read the single time of --at."""
    return Once(read_time(text, times.now_us(), LOCAL if tz is None else Zone(tz).info).due_us)


def maybe_at(text: str | None, tz: str | None) -> datetime | None:
    """Read an optional time."""
    return None if text is None else read_at(text, tz)


def schedule_options(function: F) -> F:
    """Add the options that `schedule` and `schedule edit` have."""
    options = [
        click.option("--at", "at", metavar="TIME", help="Once: 09:00, 'tomorrow 9am', 2030-01-01T09:00Z."),
        click.option(
            "--tz", metavar="ZONE",
            help="The zone of a cron expression (default UTC), and of times that name none (default: local).",
        ),
        click.option(
            "--missed", type=click.Choice(get_args(Missed)),
            help="Times that passed while nothing ran: run once for all, each, or none that is late.  [default: once]",
        ),
        click.option(
            "--grace", type=DURATION, metavar="DUR", help="With --missed skip: how late is not late.  [default: 60s]"
        ),
        click.option("--jitter", type=DURATION, metavar="DUR", help="Each is due later by a random part of this."),
        click.option("--start", metavar="TIME", help="None is due before it; an interval counts from it."),
        click.option("--end", metavar="TIME", help="None is due after it."),
        click.option("--count", metavar="N", help="How many are fired."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def read_count(text: str) -> int:
    """Read a count. Raises BadArgument."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1 and len(text) < 10):
        raise BadArgument(f"--count {text!r} is not a number from 1")
    return int(text)
