"""`pause`: keep messages from firing, and what fires from starting more, until `resume`."""

from __future__ import annotations

import time

import click

from filewheel import Wheel

from .. import times
from ..failure import Failure
from ..input.params import DURATION
from ..show.output import Output
from ..show.pauses import pause_fields, pause_text, resume_command
from ..show.text import safe
from ..times import US_PER_S
from ..verb import verb

_LOOK_S = 0.05


@verb(
    "pause",
    """
    $ filewheel pause --topic 'mail*' --why 'the mail server is down'
    $ filewheel pause --schedule nightly
    $ filewheel pause --drain --timeout 1m --why 'upgrade'
    $ filewheel resume --all
    """,
)
@click.option("--topic", metavar="GLOB", help="Only this topic: a name, or a pattern with * and ?.")
@click.option("--schedule", metavar="NAME", help="Only this schedule.")
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who wonder why nothing fires.")
@click.option("--drain", is_flag=True, help="Let what fires finish and exit; wait until it has.")
@click.option("--timeout", type=DURATION, metavar="DUR", help="With --drain: how long to wait at most.")
def command(out: Output, topic: str | None, schedule: str | None, why: str, drain: bool, timeout: int | None) -> None:
    """Pause the wheel, a topic or a schedule, until `filewheel resume`.

    Once this has returned, nothing of it begins, in any process, and a power cut does not undo it. What runs goes on.
    Paused messages keep their due: they fire after the resume, or follow their lateness policy. They can be cancelled,
    and more can be enqueued. `inspect` and `stats` list the pauses.

    With --drain, the process that fires finishes what runs and exits with 0, and its standbys exit too. A `run` that is
    started later becomes the keeper and fires nothing until the resume.

    \b
    Exit codes:
      2  too many pauses, or the reason is too long
     11  with --timeout: a process still fires; the wheel stays paused
     12  paused.json is damaged
     14  this wheel is a backup: pause the primary
    """
    if topic is not None and schedule is not None:
        raise click.UsageError("give --topic or --schedule, not both")
    if drain and (topic is not None or schedule is not None):
        raise click.UsageError("--drain is for the whole wheel")
    if timeout is not None and not drain:
        raise click.UsageError("--timeout goes with --drain")
    with out.wheel() as wheel:
        made = wheel.pause(topic=topic, schedule=schedule, why=why, drain=drain)
        if schedule is not None and wheel.get(key=f"filewheel.every:{schedule}") is None:
            out.warn(f"no schedule {schedule!r} waits now; the pause holds one that is started later")
        drained = {"drained": _wait(wheel, timeout)} if drain else {}
        if out.wants_json:
            out.record(pause_fields(made) | drained)
        else:
            out.write(f"{out.style('paused'.ljust(13), bold=True)}{safe(pause_text(made, times.now_us()))}")
        out.flush()
        if drained and not drained["drained"]:
            raise Failure(
                "locked", "the time is up, and a process still fires what it had begun; the wheel stays paused",
                hint="`filewheel stats` names it; it exits when that has ended",
            )  # fmt: skip
    out.note(f"{resume_command(made)} ends it")


def _wait(wheel: Wheel, timeout_us: int | None) -> bool:
    """Wait until no process fires that fired before the drain; return whether that is so."""
    end = None if timeout_us is None else time.monotonic() + timeout_us / US_PER_S
    while not wheel.is_drained():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)
    return True
