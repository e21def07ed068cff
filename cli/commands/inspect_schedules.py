"""`inspect schedules`: the schedules and their next times."""

from __future__ import annotations

from fnmatch import fnmatchcase

import click

from filewheel import Message, StoredSchedule, schedule_of
from filewheel.message import SCHEDULE
from filewheel.tools.dump import iso

from .. import times
from ..failure import check_damage
from ..show.calls import schedule_fields, when_of
from ..show.output import Column, Output
from ..show.text import away, short_time
from ..verb import verb

_WHOLE = 100
"""A narrower terminal omits MISSED and FROM; JSON has them."""


@verb(
    "schedules",
    """
    $ filewheel inspect schedules
    $ filewheel inspect schedules 'report*' --json
    """,
)
@click.argument("name", required=False, metavar="[NAME|GLOB]")
def command(out: Output, name: str | None) -> None:
    """List recurring work: what it calls, and when it comes next.

    Of each there is one message that waits for its next time, or runs. It is declared in a program (and ends when one
    without it fires), or was started at run time (and goes on until `unschedule`, or `cancel --key
    filewheel.every:NAME`). Reads every pending message.
    """
    found: list[tuple[StoredSchedule, Message]] = []
    with out.wheel() as wheel, wheel.snapshot() as snapshot, out.progress("looking", None) as progress:
        for number, message in enumerate(snapshot.messages()):
            progress.at(number)
            definition = schedule_of(message) if SCHEDULE in message.headers else None
            if definition is not None and _fits(definition.name, name):
                found.append((definition, message))
        places = len(snapshot.problems())
    if out.wants_json:
        for definition, message in found:
            out.record(_fields(definition, message))
    elif found:
        _print_table(out, found)
    else:
        out.note("no recurring work" if name is None else "no recurring work of that name")
    check_damage(places)


def _fits(name: str, pattern: str | None) -> bool:
    return pattern is None or name == pattern or fnmatchcase(name, pattern)


def _fields(definition: StoredSchedule, message: Message) -> dict[str, object]:
    return {
        **schedule_fields(definition),
        "handler": message.topic,
        "next": iso(message.due_us),
        "next_us": message.due_us,
        "attempt": message.attempt,
        "id": str(message.id),
    }


def _print_table(out: Output, found: list[tuple[StoredSchedule, Message]]) -> None:
    now_us = times.now_us()
    columns = [
        Column("NAME", 30), Column("WHEN", 30), Column("ZONE", 30), Column("NEXT"), Column(""), Column("HANDLER", 30),
        Column("MISSED"), Column("FROM"),
    ]  # fmt: skip
    shown = len(columns) - 2 if out.stdout_is_terminal and out.columns < _WHOLE else len(columns)
    rows = []
    for definition, message in found:
        when, zone = when_of(definition.recurrence)
        due_us = message.due_us
        origin = "program" if definition.is_declared else "run time"
        rows.append(
            (definition.name, when, zone or "", short_time(due_us, now_us), away(due_us - now_us), message.topic,
             definition.missed, origin)
        )  # fmt: skip
    out.table(columns[:shown], [row[:shown] for row in rows])
