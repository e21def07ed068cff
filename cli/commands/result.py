"""`result`: what a call has returned, by the id of its enqueue."""

from __future__ import annotations

import click

from filewheel import MessageId, Scheduler
from filewheel.live.message_fields import json_of

from ..input.params import DURATION
from ..show.output import Output
from ..show.text import safe
from ..times import US_PER_S
from ..verb import verb


@verb(
    "result",
    """
    $ filewheel result 01K52WPZBJM0PRDCR001000002 --wait 30s
    """,
)
@click.option("--wait", type=DURATION, default="0", metavar="DUR", help="Wait so long for the call to end.")
@click.argument("id_", metavar="ID")
def command(out: Output, wait: int, id_: str) -> None:
    """Show what a call has returned.

    ID is that of the enqueue, also when the call was retried or moved. Its handler keeps results for a time:
    @on(result_for="1h"). Prints the value; with --json (and piped) {"id": ..., "value": ...}.

    \b
    Exit codes:
      1  the call has failed, or what it returned could not be kept
      4  there is no such call, or its result has expired
     16  it waits, runs, or is retried
    """
    wanted = MessageId.parse(id_)
    scheduler = Scheduler(out.dir, create=False)
    try:
        value = scheduler.result(wanted, timeout_s=wait / US_PER_S)
    finally:
        scheduler.stop()
    if out.wants_json:
        out.record({"id": str(wanted), "value": json_of(value)})
    else:
        out.write(safe(repr(value)))
