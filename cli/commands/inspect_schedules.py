"""`inspect schedules`: the list of `schedule list`."""

from __future__ import annotations

import click

from ..show.output import Output
from ..show.schedules import list_schedules
from ..verb import verb


@verb(
    "schedules",
    """
    $ filewheel inspect schedules
    $ filewheel inspect schedules 'report*' --json
    """,
)
@click.argument("name", required=False, metavar="[NAME|GLOB]")
def command(out: Output, name: str | None) -> None:
    """List recurring work: what it fires or calls, and when it comes next. The same as `schedule list`.

    Of each there is one message that waits for its next time, or runs. It is declared in a program (and ends when one
    without it fires), or was started at run time (and goes on until `unschedule`). Reads every pending message.
    """
    list_schedules(out, name)
