"""`purge`: what was cancelled or acknowledged leaves every file of the wheel."""

from __future__ import annotations

import click

from filewheel.message import US_PER_S

from ..failure import Failure
from ..input.lines import check_filters, read_ids
from ..input.params import DURATION
from ..show.output import Output
from ..show.text import count
from ..verb import verb


@verb(
    "purge",
    """
    $ filewheel purge
    $ filewheel cancel "$(filewheel enqueue --in 1h hi)" | filewheel purge -
    $ filewheel purge --topic mail.ann --timeout 30s
    """,
)
@click.option("--topic", metavar="GLOB", help="Only messages with this topic: a name, or a pattern with * and ?.")
@click.option("--key", metavar="KEY", help="Only messages that had this unique key.")
@click.option(
    "--quarantine", is_flag=True, help="Also all bytes in quarantine, which may be of messages that never fired."
)
@click.option(
    "--timeout", type=DURATION, default="10s", show_default=True, metavar="DUR",
    help="How long to wait for the keeper, and for programs that write.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask before bytes in quarantine are removed.")
@click.argument("ids", nargs=-1, metavar="[ID... | -]")
def command(
    out: Output,
    topic: str | None,
    key: str | None,
    quarantine: bool,
    timeout: int,
    yes: bool,
    ids: tuple[str, ...],
) -> None:
    """Take what was cancelled or acknowledged out of every file.

    Journals, laps, unique keys and the history of runs are here without it when this ends, also while a keeper runs.
    Pending messages stay: cancel them first. Without a choice all that has ended goes, with the history; with ids,
    --topic or --key the history of the others stays. `-` reads ids from stdin. A line on stdout names each place that
    it could not reach: a program that has a journal in use, a backup, a damaged file, bytes in quarantine, messages
    that wait. docs/deleting-data.md has every place.

    \b
    Exit codes:
      3  it could not reach every place
    """
    check_filters(topic=topic, key=key)
    wanted = read_ids(ids) if ids else None
    if bool(wanted) + (topic is not None) + (key is not None) > 1:
        raise click.UsageError("give ids, --topic or --key, and only one of them")
    if ids and not wanted:
        raise click.UsageError("no ids were given")
    if quarantine and not out.ask("Remove all bytes in quarantine too?", yes=yes):
        raise Failure("failed", "nothing was purged")
    with out.wheel() as wheel:
        done = wheel.purge(wanted, topic=topic, key=key, quarantine=quarantine, timeout_s=timeout / US_PER_S)
    if out.wants_json:
        unreached = [{"place": one.place, "what": one.what, "hint": one.hint} for one in done.unreached]
        out.record({"history": done.history, "quarantine": done.quarantine, "unreached": unreached})
    else:
        for one in done.unreached:
            out.write(f"{one.place}: {one.what}. Try: {one.hint}")
    items = f", {count(done.quarantine, 'item', 'items')} of the quarantine" if done.quarantine else ""
    out.note(f"purged; {count(done.history, 'end', 'ends')} of the history{items} removed")
    if not done:
        raise Failure(
            "partly", f"{count(len(done.unreached), 'place', 'places')} could not be reached",
            hint="follow what stdout names, and purge again",
        )  # fmt: skip
