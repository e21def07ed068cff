"""`unschedule`: end schedules."""

from __future__ import annotations

import click

from filewheel import Cancelled

from ..failure import Failure
from ..show.output import Output
from ..verb import verb


@verb(
    "unschedule",
    """
    $ filewheel schedule tick "every 90s" date && filewheel unschedule tick
    """,
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def command(out: Output, names: tuple[str, ...]) -> None:
    """End schedules: their next occurrences are cancelled.

    An occurrence that runs goes on to its end, and is the last. A schedule that a program declares begins again when
    that program starts. Exit code 4 when there is none of these names, 3 when some are missing.
    """
    missing: list[str] = []
    with out.wheel() as wheel:
        for name in names:
            declared = any(stored.is_declared for stored in wheel.schedules(name))
            how = wheel.unschedule(name)
            if not how:
                missing.append(name)
                continue
            if out.wants_json:
                out.record({"name": name, "ended": True, "outcome": how.value})
            else:
                out.write(f"ended {name}")
            if how is not Cancelled.STOPPED:
                out.note(f"{name}: an occurrence runs, or may run; it is the last")
            if declared:
                out.warn(f"{name}: the program that declares it starts it again at its next start")
    if missing:
        kind = "not-found" if len(missing) == len(names) else "partly"
        raise Failure(
            kind, f"there is no schedule {', '.join(map(repr, missing))}", hint="`filewheel schedule list` shows them"
        )
