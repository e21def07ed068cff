"""`reschedule`: move messages to another time. A message that moves gets a new id; dead letters come back to life."""

from __future__ import annotations

import click

from filewheel import MessageId, NotFound
from filewheel.tools.dump import iso

from .. import times
from ..input.lines import chunks, read_ids
from ..input.params import When, require_due
from ..lost import key_lost, lost_of
from ..show.output import Output
from ..show.text import away, full_time
from ..times import to_datetime
from ..verb import due_options, verb
from .cancel import only_not_pending, tell_unknown

_CHUNK = 100


@verb(
    "reschedule",
    """
    $ filewheel reschedule "$(filewheel enqueue --in 5m 'remind ann')" --in 1h
    $ filewheel dead list --ids | filewheel dead revive -
    $ filewheel enqueue --in 5m --key oven hi
    $ filewheel reschedule --key oven --in 1h
    """,
)
@due_options
@click.option("--key", metavar="KEY", help="The message that has this unique key.")
@click.argument("ids", nargs=-1, metavar="[ID... | -]")
def command(out: Output, in_us: int | None, at: When | None, key: str | None, ids: tuple[str, ...]) -> None:
    """Move messages to another time.

    Prints the new id of each, a line each, in the order in which they were given; with --json the old one, too. `-`
    reads ids from stdin. A dead letter starts again with attempt 0. Exit code 3
    when some of the ids were not pending, 4 when none was, 12 when a missing or damaged file may hold one of them.
    """
    now_us = times.now_us()
    due_us = require_due(in_us, at, now_us)
    if bool(ids) == (key is not None):
        raise click.UsageError("which? Give ids, `-` to read them from stdin, or --key")
    if key is not None:
        with out.wheel() as wheel:
            before = wheel.get(key=key)
            try:
                new = wheel.reschedule(key=key, at=to_datetime(due_us))
            except NotFound as exc:
                raise key_lost(wheel, key) or exc from None
        _show(out, [(new if before is None else before.id, new)], due_us)
        return
    wanted = read_ids(ids)
    if not wanted:
        out.note("no ids on stdin: nothing was moved")
    unknown: list[MessageId] = []
    moved: list[tuple[MessageId, MessageId]] = []
    with out.wheel() as wheel, out.progress("moving", len(wanted)) as progress:
        # A hundred messages share a flush; their ids are printed after it.
        for some in chunks(wanted, _CHUNK):
            pairs = []
            for old in some:
                try:
                    sync = None if len(some) == 1 else "never"
                    pairs.append((old, wheel.reschedule(old, at=to_datetime(due_us), sync=sync)))
                except NotFound:
                    unknown.append(old)
            if len(some) > 1:
                wheel.flush()
            progress.add(len(some))
            moved += pairs
            _show(out, pairs, due_us)
        lost = lost_of(wheel, unknown, len(wanted)) or only_not_pending(wheel, unknown, len(wanted))
    if moved and (due_us < now_us or (at is not None and at.is_local)):
        out.note(f"due {full_time(due_us)}, {away(due_us - now_us)}")
    tell_unknown(out, unknown, len(wanted), lost)


def _show(out: Output, moved: list[tuple[MessageId, MessageId]], due_us: int) -> None:
    for old, new in moved:
        if out.json:
            due = {"due": iso(due_us), "due_us": due_us}
            out.record({"id": str(new), "old": str(old), "new": str(new), **due})
        else:
            out.write(str(new))
    out.flush()
