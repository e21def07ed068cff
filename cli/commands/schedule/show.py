"""`schedule list`: the schedules and their next times."""

from __future__ import annotations

import click

from ...show.output import Output
from ...show.schedules import list_schedules
from ...verb import verb


@verb(
    "list",
    """
    $ filewheel schedule list
    $ filewheel schedule list 'report*' --json
    """,
)
@click.argument("name", required=False, metavar="[NAME|GLOB]")
def show(out: Output, name: str | None) -> None:
    """List the schedules, those of programs too, by their next times.

    On a terminal of 110 columns or more it also shows how far away the next time is, and FROM: `program`, `run time`,
    or the file that the schedule was loaded from. Reads every pending message.
    """
    list_schedules(out, name)
