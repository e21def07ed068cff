"""`history`: how the last attempts ended, the newest first."""

from __future__ import annotations

import click

from filewheel import BadArgument, Ended, MessageId
from filewheel.timespec import parse_duration

from .. import times
from ..input.params import read_time
from ..show.output import Column, Output
from ..show.runs import ended_fields
from ..show.text import short_time, span
from ..times import US_PER_S
from ..verb import verb

_LIMIT_ON_TERMINAL = 20


@verb(
    "history",
    """
    $ filewheel history
    $ filewheel history --failed --topic 'mail*'
    $ filewheel history --schedule nightly --limit 5
    $ filewheel history --since 2h
    """,
)
@click.option("--topic", metavar="GLOB", help="Only this topic: a name, or a pattern with * and ?.")
@click.option("--schedule", metavar="NAME", help="Only this schedule, with those that died and were revived.")
@click.option("--failed", is_flag=True, help="Only what did not succeed, or was not done.")
@click.option("--key", metavar="KEY", help="Only messages that had this unique key.")
@click.option("--since", metavar="DUR|TIME", help="Only what ended since then: 2h ago, or 09:00, 2027-01-01T09:00.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="At most so many; 0 is all.  [default: 20 on a terminal]"
)
@click.argument("id_", required=False, metavar="[ID]")
def command(
    out: Output, topic: str | None, schedule: str | None, failed: bool, key: str | None, since: str | None,
    limit: int | None, id_: str | None,
) -> None:  # fmt: skip
    """Show how the last attempts ended, the newest first; of one message with its ID.

    The keeper keeps at least the last 10,000 (`run --history N`, `Scheduler(history=N)`), and writes them once a
    second, without a flush: a crash loses the last second. Backups do not have them. The outcomes: acked, retried,
    dead, killed, cancelled (while it ran), skipped (too late), missed, coalesced, stopped, unknown.
    """
    wanted = None if id_ is None else MessageId.parse(id_)
    if limit is None:
        limit = _LIMIT_ON_TERMINAL if out.stdout_is_terminal else 0
    with out.wheel() as wheel:
        found = wheel.history(
            topic=topic, schedule=schedule, failed=failed, id=wanted, key=key, limit=limit + 1 if limit else None,
            since=None if since is None else times.to_datetime(_since_us(since)),
        )  # fmt: skip
    shown = found[: limit or None]
    if out.wants_json:
        for ended in shown:
            out.record(ended_fields(ended))
    elif shown:
        now_us = times.now_us()
        of_schedules = any(ended.schedule for ended in shown)
        with_topics = not of_schedules or any(ended.topic for ended in shown)
        columns = [
            Column.date("ENDED"), Column("ID"), Column("OUTCOME", 20), Column("TOOK", right=True),
            *([Column("SCHEDULE", 24)] if of_schedules else []), *([Column("TOPIC", 16)] if with_topics else []),
            Column("ERROR", 200),
        ]  # fmt: skip
        out.table(columns, [_row(ended, now_us, of_schedules, with_topics) for ended in shown])
    if len(found) > len(shown):
        out.note(f"{len(shown):,} shown, there are more: --limit 0 shows all")
    elif not shown and not out.wants_json:
        chosen = topic or schedule or failed or key or since or wanted
        out.note("nothing that fits" if chosen else "no attempt has ended yet")


def _since_us(text: str) -> int:
    """Read `--since`: a duration before now, or a time that has passed."""
    now_us = times.now_us()
    try:
        return max(0, now_us - parse_duration(text))
    except BadArgument:
        at_us = read_time(text, now_us).due_us
    # 09:00 and "mon 09:00" are read as the next ones, and mean the last. A day has 23 hours or 25 when clocks change.
    if text.lower().split()[0] not in ("tomorrow", "next", "in"):
        for days in range(1, 8):
            if at_us > now_us:
                at_us = read_time(text, now_us - days * 86_400 * US_PER_S).due_us
        while at_us < (later_us := read_time(text, at_us).due_us) <= now_us:
            at_us = later_us
    if at_us > now_us:
        raise click.UsageError(f"--since {text} has not come yet")
    return at_us


def _row(ended: Ended, now_us: int, of_schedules: bool, with_topics: bool) -> tuple[str, ...]:
    took = "" if ended.took_us is None else span(ended.took_us)
    tried = f", try {ended.attempt + 1}" if ended.attempt else ""
    names = [*([ended.schedule or ""] if of_schedules else []), *([ended.topic] if with_topics else [])]
    return short_time(ended.ended_us, now_us), str(ended.id), f"{ended.outcome}{tried}", took, *names, ended.error
