"""`when`: show the next times of an interval or a cron expression, to check it before use.

Needs no wheel. It uses the scheduler's own code.
Invariant: a time moved by a clock change is marked, and the offset shows which of two equal local times is meant.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice

import click

from filewheel import Cron
from filewheel.scheduling.cron import Recurrence, Zone, read_recurrence
from filewheel.tools.dump import iso

from .. import times
from ..input.params import read_time
from ..show.output import Column, Output
from ..show.text import offset, span
from ..times import US_PER_S
from ..verb import verb

_COUNT_MAX = 100_000
_MOVED = "moved by a gap"


@verb(
    "when",
    """
    $ filewheel when "0 9 * * mon-fri" --tz Europe/Berlin
    $ filewheel when "30 2 * * *" --tz America/New_York --from 2027-03-13 -n 3
    $ filewheel when "0 18 LW * *" -n 12
    $ filewheel when "every 15m"
    $ filewheel when 90s --json
    """,
    wheel=False,
)
@click.argument("schedule", metavar="SCHEDULE", nargs=-1, required=True)
@click.option(
    "--tz",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="The time zone that it is meant in: Europe/Berlin.",
)
@click.option(
    "-n", "--count", "count", type=click.IntRange(1, _COUNT_MAX), default=10, show_default=True, metavar="N",
    help="How many.",
)  # fmt: skip
@click.option("--from", "start", metavar="TIME", help="The times after this one, in that zone.  [default: now]")
def command(out: Output, schedule: tuple[str, ...], tz: str, count: int, start: str | None) -> None:
    """Show the next times of recurring work.

    SCHEDULE is an interval (90, 90s, "every 15m") or a cron expression in quotes: minute hour day-of-month month
    day-of-week, seconds before them if there are six; or @hourly, @daily, @weekly, @monthly, @yearly. An interval
    counts from 1970-01-01T00:00Z.

    A time that the clocks skip comes at the end of the gap, and is marked; one that comes twice is taken the first
    time. With a * in minute or hour, real time is followed instead. Needs no wheel.
    """
    if len(schedule) > 1:
        raise click.UsageError('put the schedule in quotes, or the shell takes * for file names: "0 9 * * mon-fri"')
    recurrence = read_recurrence(schedule[0], tz)
    zone = Zone(tz)
    now_us = times.now_us()
    start_us = now_us if start is None else read_time(start, now_us, zone.info).due_us
    found = islice(recurrence.times(start_us), count)
    if out.wants_json:
        for us in found:
            out.record(_fields(recurrence, zone, us, start_us))
        return
    rows = [_row(recurrence, zone, us, start_us) for us in found]
    out.table([Column(tz), Column("UTC"), Column("IN", right=True), Column("")], rows)


def _is_moved(recurrence: Recurrence, us: int) -> bool:
    return isinstance(recurrence, Cron) and recurrence.is_moved(us)


def _fields(recurrence: Recurrence, zone: Zone, us: int, start_us: int) -> dict[str, object]:
    return {
        "due": iso(us),
        "due_us": us,
        "local": zone.show(us).isoformat(),
        "in_s": (us - start_us) / US_PER_S,
        "moved": _is_moved(recurrence, us),
    }


def _row(recurrence: Recurrence, zone: Zone, us: int, start_us: int) -> tuple[str, ...]:
    local = zone.show(us)
    utc = Zone("UTC").show(us)
    moved = _MOVED if _is_moved(recurrence, us) else ""
    return f"{_clock(local)} {offset(local)}", f"{utc:%Y-%m-%d} {_time(utc)}", span(us - start_us), moved


def _clock(moment: datetime) -> str:
    return f"{moment:%a %Y-%m-%d} {_time(moment)}"


def _time(moment: datetime) -> str:
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%H:%M:%S}{fraction}"
