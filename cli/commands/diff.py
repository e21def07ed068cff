"""`diff`: list the differences between two wheels."""

from __future__ import annotations

from itertools import islice

import click

from filewheel import Wheel
from filewheel.tools.diff import Difference, differences
from filewheel.tools.dump import iso

from ..failure import Failure, check_damage
from ..show.output import Column, Output
from ..show.text import count, full_time
from ..verb import verb

_SHOWN = 100


@verb(
    "diff",
    """
    $ filewheel -C copy init && filewheel dump | filewheel -C copy load -
    $ filewheel diff wheel copy
    """,
)
@click.option("--limit", type=click.IntRange(min=0), default=_SHOWN, show_default=True, help="Show so many; 0 is all.")
@click.argument("first", metavar="FIRST", type=click.Path())
@click.argument("second", metavar="SECOND", type=click.Path())
def command(out: Output, limit: int, first: str, second: str) -> None:
    """Compare the messages of two wheels.

    It compares a digest of each second first, so equal wheels are read once each. Both may be in use: a difference is
    checked twice before it is reported. Exits with 0 when they are equal, with 3 when they differ, and with 12 when
    all readable messages are equal and one wheel is damaged.
    """
    with Wheel(first, force=out.force) as ours, Wheel(second, force=out.force) as theirs:
        stats = ours.stats()
        places = {first: stats.damaged, second: theirs.stats().damaged}
        with out.progress("comparing", stats.pending + stats.dead) as progress:
            found = differences(ours, theirs, progress.at)
            shown = list(islice(found, limit or None))
            more = sum(1 for _ in found)
    _print(out, shown)
    for path, number in places.items():
        if number:
            out.warn(f"{path}: {count(number, 'place is', 'places are')} damaged, and left out")
    if shown or more:
        total = count(len(shown) + more, "message differs", "messages differ")
        raise Failure("partly", total + (f", {more:,} not shown" if more else ""))
    check_damage(sum(places.values()))
    out.note(f"both hold the same: {count(stats.pending, 'message')}, {count(stats.dead, 'dead letter')}")


def _print(out: Output, found: list[Difference]) -> None:
    if out.wants_json:
        for one in found:
            out.record({"id": str(one.id), "due": iso(one.id.due_us), "due_us": one.id.due_us, "kind": one.kind})
    elif found:
        columns = [Column("ID"), Column("DUE"), Column("WHAT", style="yellow")]
        out.table(columns, [(str(d.id), _due(d), d.kind) for d in found])
    out.flush()


def _due(one: Difference) -> str:
    return "dead letter" if one.id.is_dead else full_time(one.id.due_us)
