"""`rejoin`: make a former primary a backup of the promoted wheel."""

from __future__ import annotations

import contextlib
import os
from shlex import quote

import click

from filewheel import FilewheelError, find_primary, rejoin
from filewheel.tools.refusals import check_rejoin

from ..failure import Failure
from ..show.members import CopyProgress, set_roster_of
from ..show.output import Output
from ..show.text import count, safe
from ..signals import interruptible
from ..verb import verb


@verb(
    "rejoin",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel
    $ filewheel -C /mnt/disk2/jobs.wheel promote --yes
    $ filewheel rejoin --yes
    """,
    own=("force",),
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also for a wheel that is a backup already.")
def command(out: Output, yes: bool, force: bool) -> None:
    """Make the wheel that -C names, a former primary, a backup of the present primary.

    Messages that only it holds are added to the new primary first, so nothing is lost. Then it is brought in step:
    messages that have fired or were cancelled since are removed from it.
    """
    set_roster_of(out)
    check_rejoin(out.dir, force=force)
    where = _primary(out)
    if not out.ask(f"Make {out.dir} a backup{where}?", yes=yes):
        raise Failure("failed", "nothing was changed")
    with interruptible(), out.progress("rejoining") as progress:
        result = rejoin(out.dir, force=force, progress=CopyProgress(progress))
    if out.wants_json:
        fields = {"primary": result.primary, "kept": result.kept, "dropped": result.dropped, "notes": result.notes}
        out.record(fields)
    else:
        out.write(f"{safe(out.dir)} is a backup of {safe(result.primary)} now")
        if result.kept:
            were = "was" if result.kept == 1 else "were"
            out.write(f"{count(result.kept, 'message')} that only this wheel had {were} added to the primary")
        if result.dropped:
            were = "was" if result.dropped == 1 else "were"
            out.write(f"{count(result.dropped, 'message')} that had ended here {were} removed from the primary")
    out.flush()
    for text in result.notes:
        out.note(text)
    out.note(f"The service `filewheel -C {quote(result.primary)} replicate` brings it in step, and has to run")


def _primary(out: Output) -> str:
    """Return the text for the present primary; the roster of this wheel may not name it yet."""
    with contextlib.suppress(FilewheelError, OSError):
        here = os.path.abspath(out.dir)
        primary, _ = find_primary(here)
        return f" of {primary}" if primary != here else ""
    return ""
