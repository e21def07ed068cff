"""`inspect list`: the pending messages in firing order, or the dead letters, one per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import click

from filewheel import Filter, Message, Pauses, Running
from filewheel.message import RESULT

from .. import times
from ..failure import check_damage
from ..input.params import DURATION, TIME, When
from ..show.calls import call_text, message_fields, shown_payload
from ..show.output import Column, Output
from ..show.pauses import held_fields, pauses_of
from ..show.runs import running_of, state_fields, state_words
from ..show.text import away, short_time, show_bytes
from ..times import US_PER_S
from ..verb import verb

LIMIT_ON_TERMINAL = 20
_TABLE_ROWS = 1000
_NONE = Pauses()
_SHOWN_BYTES = 400


@verb(
    "list",
    """
    $ filewheel inspect list
    $ filewheel inspect list --within 1h --topic 'mail*'
    $ filewheel inspect list --ids | wc -l
    $ filewheel dead list
    $ filewheel inspect list --state running
    """,
)
@click.option("--topic", metavar="GLOB", help="Only this topic: a name, or a pattern with * and ?.")
@click.option("--after", type=TIME, metavar="TIME", help="Only what is due at or after this time.")
@click.option("--before", type=TIME, metavar="TIME", help="Only what is due before this time.")
@click.option("--within", type=DURATION, metavar="DUR", help="Only what is due between now and then, or overdue.")
@click.option(
    "--state", type=click.Choice(["waiting", "claimed", "running"]),
    help="Only what waits, is claimed by the keeper and has not begun, or runs.",
)  # fmt: skip
@click.option("--dead", is_flag=True, help="The dead letters, by the time of their death.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="At most so many; 0 is all.  [default: 20 on a terminal]"
)
@click.option("--ids", "only_ids", is_flag=True, help="Only the ids, one a line, for `cancel -` and `reschedule -`.")
def command(
    out: Output,
    topic: str | None,
    after: When | None,
    before: When | None,
    within: int | None,
    state: str | None,
    dead: bool,
    limit: int | None,
    only_ids: bool,
) -> None:
    """List what is pending, in firing order.

    STATE is how far off the due time is, "paused", "claimed" by the keeper until it begins, or since when it runs and
    on which try: `filewheel kill ID` ends that.

    Times are local on a terminal, UTC in JSON. If a file is damaged, the list has the readable messages, and the exit
    code is 12.
    """
    if dead and state is not None:
        raise click.UsageError("dead letters wait, and run only when they are revived: --state goes without --dead")
    if dead and (after or before or within is not None):
        raise click.UsageError("dead letters have no due time any more, so --after, --before and --within mean nothing")
    if before is not None and within is not None:
        raise click.UsageError("give --before or --within, not both")
    now_us = times.now_us()
    end_us = before.due_us if before else now_us + within if within is not None else None
    if state in ("claimed", "running"):  # they are due, so the list need not be read to its end
        end_us = min(now_us + US_PER_S, end_us or times.YEAR_10000_US)
    table = not (out.wants_json or only_ids)
    if limit is None:
        limit = LIMIT_ON_TERMINAL if out.stdout_is_terminal else 0
    start = None if after is None else times.to_datetime(after.due_us)
    end = None if end_us is None or end_us >= times.YEAR_10000_US else times.to_datetime(end_us)
    with out.wheel() as wheel, wheel.snapshot() as snapshot:
        running = Running() if dead or (only_ids and state is None) else running_of(out, wheel)
        messages = snapshot.messages(Filter.of(after=start, before=end, topic=topic, dead=dead))
        if topic is None:
            messages = (message for message in messages if RESULT not in message.headers)
        if state is not None:
            messages = (message for message in messages if running.pending_state(message.id) == state)
        some = islice(messages, limit or None)
        pauses = pauses_of(wheel)
        shown = (
            print_table(out, some, dead, now_us, running, pauses)
            if table
            else print_lines(out, some, only_ids, running, pauses)
        )
        if next(messages, None) is not None:
            out.note(f"{shown:,} shown, there are more: --limit 0 shows all")
        elif not shown and table:
            filtered = topic is not None or end_us is not None or after is not None or state is not None
            what = "no dead letters" if dead else "nothing is pending"
            out.note(f"{what} that fits" if filtered else what)
        places = len(snapshot.problems())
    check_damage(places)


def print_lines(
    out: Output,
    messages: Iterator[Message],
    only_ids: bool,
    running: Running | None = None,
    pauses: Pauses = _NONE,
) -> int:
    """Print messages as JSON lines, with their states if `running` is given, or only their ids; return how many."""
    shown = 0
    for message in messages:
        shown += 1
        if only_ids:
            out.write(str(message.id))
            continue
        state = {} if running is None or message.is_dead else state_fields(message, running)
        out.record(message_fields(message) | state | held_fields(message, pauses))
    return shown


def print_table(
    out: Output,
    messages: Iterator[Message],
    dead: bool,
    now_us: int,
    running: Running | None = None,
    pauses: Pauses = _NONE,
) -> int:
    """Print messages as a table, in parts, to limit memory; return how many."""
    running = running if running is not None else Running()
    shown = 0
    while some := list(islice(messages, _TABLE_ROWS)):
        named = [Column(title, most) for title, most, cell in _NAMES if any(map(cell, some))] or [Column("TOPIC", 16)]
        cells = [cell for title, _, cell in _NAMES if any(title == column.title for column in named)]
        rows = [_row(m, running, now_us, cells, pauses) for m in some]
        first = [Column.date("DIED")] if dead else [Column.date("DUE"), Column.away("STATE")]
        last = [*([Column("REASON", 30)] if dead else []), Column("BODY", 200)]
        out.table([Column("ID"), *first, *named, *last], rows)
        shown += len(rows)
    return shown


def _row(
    message: Message, running: Running, now_us: int, cells: Sequence[Callable[[Message], str]], pauses: Pauses
) -> tuple[str, ...]:
    call = call_text(message)
    body = show_bytes(shown_payload(message)[:_SHOWN_BYTES]) if call is None else call[:_SHOWN_BYTES]
    named = [cell(message) for cell in cells]
    if message.died_us is not None:
        return str(message.id), short_time(message.died_us, now_us), *named, message.reason or "", body
    due_us = message.due_us
    state = state_words(message, running, now_us)
    if state == "waiting":
        state = "paused" if pauses.of(message) else away(due_us - now_us)
    return str(message.id), short_time(due_us, now_us), state, *named, body


def _key_of(message: Message) -> str:
    """Return the key that a person gave; an occurrence of a schedule has one that its name stands for."""
    return "" if message.schedule_name is not None else message.key or ""


_NAMES: tuple[tuple[str, int, Callable[[Message], str]], ...] = (
    ("SCHEDULE", 24, lambda message: message.schedule_name or ""),
    ("TOPIC", 16, lambda message: message.topic),
    ("KEY", 24, _key_of),
)
"""The columns that a table has only where a message has the value; without any, TOPIC."""
