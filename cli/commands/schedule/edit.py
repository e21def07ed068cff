"""`schedule edit`: change what is given of a schedule."""

from __future__ import annotations

from typing import Any

import click

from ...input.body import read_body
from ...input.params import HEADER
from ...input.terms import changed_terms
from ...input.when import NONE, check_when, once, read_at, read_count, schedule_options, split
from ...show.output import Output
from ...show.schedules import print_planted
from ...times import US_PER_S
from ...verb import verb


@verb(
    "edit",
    """
    $ filewheel schedule tick "every 90s" date
    $ filewheel schedule edit tick "every 5m" --jitter 10s
    $ filewheel schedule edit tick --body 'date -u' --end 2030-01-01T00:00Z
    $ filewheel schedule edit tick --end none --retries 5 --timeout 30s
    $ filewheel schedule edit tick --timeout none
    """,
)
@schedule_options
@click.option("--topic", help="Another topic.")
@click.option("--body", help="Another body; `-` reads stdin.")
@click.option("--header", "headers", type=HEADER, multiple=True, metavar="K=V", help="Other headers, in place of all.")
@click.option("--retries", metavar="N", help="In place of the --retries of `run`; `none` takes it away.")
@click.option("--timeout", metavar="DUR", help="In place of the --timeout of `run`; `none` takes it away.")
@click.argument("words", nargs=-1, required=True, metavar="NAME [CRON | every DUR]")
def edit(
    out: Output,
    words: tuple[str, ...],
    at: str | None,
    tz: str | None,
    missed: str | None,
    grace: int | None,
    jitter: int | None,
    start: str | None,
    end: str | None,
    count: str | None,
    topic: str | None,
    body: str | None,
    headers: tuple[tuple[str, str], ...],
    retries: str | None,
    timeout: str | None,
) -> None:
    """Change a schedule: only what is given, the rest stays.

    `none` takes a start, an end, a count, the retries or the time-out away; a count that is given counts from now.
    Another body keeps the next time, also one that is overdue. A try that runs keeps its time-out. Schedules that a
    program declares are changed in the program.
    """
    given = split(words, has_time=at is not None, edits=True)
    changes: dict[str, Any] = {}
    if at is not None:
        changes["when"] = once(at, tz)
    elif given.when is not None:
        changes["when"] = check_when(given.name, given.when, tz or "UTC")
    if tz is not None and at is None:
        changes["tz"] = tz
    for name, text in (("start", start), ("end", end)):
        if text is not None:
            changes[name] = None if text == NONE else read_at(text, tz)
    if count is not None:
        changes["count"] = None if count == NONE else read_count(count)
    changes |= {} if missed is None else {"missed": missed}
    changes |= {} if grace is None else {"grace_s": grace / US_PER_S}
    changes |= {} if jitter is None else {"jitter_s": jitter / US_PER_S}
    changes |= {} if topic is None else {"topic": topic}
    changes |= {} if body is None else {"payload": read_body(out, body, is_work=True)}
    changes |= {"headers": dict(headers)} if headers else {}
    if retries is not None or timeout is not None:
        changes["change_headers"] = changed_terms(retries, timeout)
    if not changes:
        raise click.UsageError("nothing to change: give a cron expression, an interval or an option")
    with out.wheel() as wheel:
        id_ = wheel.edit_schedule(given.name, **changes)
        print_planted(out, wheel, given.name, "unchanged" if id_.kept else "changed")
