"""`rejoin`: make a wheel that was the primary before a backup of the one that was promoted."""

from __future__ import annotations

import click

from filewheel.replication.rejoin import rejoin

from ..failure import Failure
from ..show.members import Copying, roster_of
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
    """Make the wheel that -C names, once the primary, a backup of the primary that there is now.

    Messages that only it holds are added to the new primary first, so nothing is lost. Then it is brought in step:
    messages that fired or were cancelled meanwhile are removed from it.
    """
    roster = roster_of(out)
    where = f" of {roster.primary}" if roster else ""
    if not out.ask(f"Make {out.dir} a backup{where}?", yes=yes):
        raise Failure("failed", "nothing was changed")
    with interruptible(), out.progress("rejoining") as progress:
        result = rejoin(out.dir, force=force, progress=Copying(progress))
    if out.wants_json:
        fields = {"primary": result.primary, "kept": result.kept, "dropped": result.dropped, "notes": result.notes}
        out.record(fields)
    else:
        out.write(f"{safe(out.dir)} is a backup of {safe(result.primary)} now")
        kept = (
            f"{count(result.kept, 'message')} that only it had {'is' if result.kept == 1 else 'are'} in the primary now"
        )
        out.write(f"{kept}, {result.dropped:,} that it need not have are gone")
    out.flush()
    for text in result.notes:
        out.note(text)
    out.note(f"`filewheel -C {result.primary} replicate` keeps it in step; it has to run")
