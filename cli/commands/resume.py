"""`resume`: end a pause."""

from __future__ import annotations

import click

from filewheel import Pause, Pauses, Wheel

from .. import times
from ..failure import Failure
from ..show.output import Output
from ..show.pauses import names, pause_fields, pause_text, resume_command
from ..show.text import safe
from ..verb import verb


@verb(
    "resume",
    """
    $ filewheel pause --topic 'mail*' && filewheel resume --topic 'mail*'
    $ filewheel pause && filewheel resume
    $ filewheel resume --all
    """,
)
@click.option("--topic", metavar="GLOB", help="This topic or pattern, as it was paused.")
@click.option("--schedule", metavar="NAME", help="This schedule.")
@click.option("--all", "everything", is_flag=True, help="Everything that is paused.")
def command(out: Output, topic: str | None, schedule: str | None, everything: bool) -> None:
    """End the pause of the wheel, of a topic, or of a schedule.

    Paused messages that are due fire at once, in order, or follow their lateness policy. A pause ends by the name that
    it was made with: that of `mail*` holds the topic `mail` until `resume --topic 'mail*'`.

    \b
    Exit codes:
      3  resumed, and still held by another pause
      4  not paused by this name
     12  paused.json is damaged
     14  this wheel is a backup: resume the primary
    """
    if (topic is not None) + (schedule is not None) + everything > 1:
        raise click.UsageError("give --topic, --schedule or --all, and only one of them")
    with out.wheel() as wheel:
        ended = wheel.resume(topic=topic, schedule=schedule, everything=everything)
        left = wheel.paused()
        wanted = Pause("topic", topic) if topic is not None else Pause("wheel")
        wanted = Pause("schedule", schedule) if schedule is not None else wanted
        still = _still(wheel, wanted, left)
    for pause in ended:
        if out.wants_json:
            out.record(pause_fields(pause) | {"still_paused_by": [str(p) for p in still]})
        else:
            out.write(f"{out.style('resumed'.ljust(13), bold=True)}{safe(pause_text(pause, times.now_us()))}")
    out.flush()
    if not ended and not everything:
        raise _not_paused(wanted, left, still)
    if still:
        raise Failure(
            "partly", f"{wanted} was resumed, and is still paused by: {names(still)}", hint=resume_command(still[0])
        )
    if left.entries:
        out.note(f"still paused: {names(left)}")
    elif not ended:
        out.note("nothing is paused")


def _still(wheel: Wheel, wanted: Pause, left: Pauses) -> list[Pause]:
    """Return the pauses that hold all of what was to be resumed."""
    if wanted.what == "wheel":
        return []
    if wanted.what == "topic":
        return list(left.holding(wanted.name))
    occurrence = wheel.get(key=f"filewheel.every:{wanted.name}")
    found = left.holding(occurrence.topic, wanted.name) if occurrence is not None else left
    return [p for p in found if occurrence is not None or p.what == "wheel"]


def _not_paused(wanted: Pause, left: Pauses, still: list[Pause]) -> Failure:
    if still:
        return Failure(
            "not-found", f"{wanted} is not paused by this name, but by: {names(still)}", hint=resume_command(still[0])
        )
    if left.entries:
        return Failure("not-found", f"{wanted} is not paused", hint=f"paused: {names(left)}; `filewheel resume --all`")
    return Failure("not-found", f"{wanted} is not paused; nothing is")
