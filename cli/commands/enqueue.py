"""`enqueue`: one message, or many from stdin, each with a due time.

Prints only the ids, so that `id=$(filewheel enqueue --in 5m hi)` works with and without a terminal.
"""

from __future__ import annotations

import os
import stat
from typing import get_args

import click

from filewheel import KeyHeld, MessageId, OnConflict, Sync, TooFewCopies, Wheel
from filewheel.message import ARGS
from filewheel.tools.dump import iso

from .. import times
from ..failure import Failure, is_unit
from ..input.batch import MessageDefaults, MessageReader, enqueue_all
from ..input.body import read_body
from ..input.lines import Spool, stdin
from ..input.params import DURATION, HEADER, JSON_ARGS, SYNC, BareSeconds, When, one_due, require_due
from ..input.terms import terms_of
from ..show.members import roster_of
from ..show.output import Output
from ..show.text import RUN, WORK, away, count, full_time, offset
from ..show.text import local as to_local
from ..times import to_datetime
from ..verb import due_options, verb


@verb(
    "enqueue",
    """
    $ filewheel enqueue --in 5m 'remind ann'
    $ filewheel enqueue --at 09:00 --topic mail --header to=ann 'good morning'
    $ id=$(filewheel enqueue --in 1h30m 'the oven') && filewheel cancel "$id"
    $ printf 'one\\ntwo\\n' | filewheel enqueue --in 90 --lines
    $ echo '{"in": "2d", "payload": "trial ends"}' | filewheel enqueue --batch
    $ filewheel enqueue --in 30s --key reindex --on-conflict replace 'reindex'
    $ filewheel enqueue --in 1h --topic email --args '["ann", 2]'
    $ filewheel enqueue --in 1h --topic email --args '{"to": "ann", "times": 2}'
    """,
)
@due_options
@click.option(
    "--topic",
    default="",
    help="The destination, as text. `inspect list` and `cancel --all` filter by it.",
)
@click.option(
    "--args", "arguments", type=JSON_ARGS, metavar="JSON",
    help="In place of BODY: arguments for the handler that --topic names. A list, or an object of keyword arguments.",
)  # fmt: skip
@click.option("--header", "headers", type=HEADER, multiple=True, metavar="K=V", help="A header; may be repeated.")
@click.option("--key", metavar="KEY", help="A unique key: at most one living message has it.")
@click.option(
    "--on-conflict", type=click.Choice(get_args(OnConflict)), default="reject", show_default=True,
    help="When another message has the key: fail (exit code 5), print that one's id, or cancel that one.",
)  # fmt: skip
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    metavar="N",
    help="Tries after the first; stored with it.  [what fires it decides]",
)
@click.option("--timeout", type=DURATION, metavar="DUR", help="How long a try may take, likewise.")
@click.option(
    "--sync", type=SYNC, metavar="always|never|DUR", help="How durable before this returns.  [default: the wheel's]"
)
@click.option("--lines", is_flag=True, help="Each line of stdin is a message, without its newline; an empty line too.")
@click.option(
    "--batch", is_flag=True,
    help="Each line of stdin is a JSON object: `payload`, `payload_b64` or `args`; one of `in` (\"5m\" or seconds), "
    "`at` (a time), `due_us`; `topic`; `headers`; `key`. The options above hold for lines without.",
)  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Report wrong lines and enqueue the others (exit code 3).")
@click.argument("body", required=False)
def command(
    out: Output,
    in_us: int | None,
    at: When | None,
    topic: str,
    arguments: bytes | None,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    on_conflict: OnConflict,
    retries: int | None,
    timeout: int | None,
    sync: Sync | None,
    lines: bool,
    batch: bool,
    skip_bad: bool,
    body: str | None,
) -> None:
    """Enqueue a message and print its id.

    It is due after --in or at --at: give one. BODY is the payload; `-` reads it from stdin as it is, to the last byte.
    Without BODY it is read from a pipe or a file, which must not be empty then. A message never fires early. A time
    that names no zone is local time. A time that has passed is fine, and so is a negative --in: a keeper fires it at
    once.

    Of --lines and --batch every line is checked first: if one is wrong it is named, and nothing is enqueued. A line
    whose key is held is named and passed over (exit code 3). With --on-conflict keep the id of the message that has
    the key is printed in its place; --json marks it `"kept": true`, and it is not counted as enqueued.

    Where the wheel has backups, `copies` in --json is how many wheels held the message when it was confirmed.

    A message with a --key has it from now until it was acknowledged, cancelled or became a dead letter.
    """
    now_us = times.now_us()
    terms = terms_of(retries, timeout)
    if lines or batch:
        _check_many(lines, batch, body, key, arguments)
        due_us = one_due(in_us, at, now_us) if batch else require_due(in_us, at, now_us)
        if at is not None and at.is_local:
            _echo_due(out, at.due_us, now_us)
        defaults = MessageDefaults(due_us, topic, dict(headers), terms)
        _enqueue_many(out, defaults, now_us, sync, on_conflict, batch=batch, skip_bad=skip_bad)
        return
    if skip_bad:
        raise click.UsageError("--skip-bad goes with --lines or --batch")
    due_us = require_due(in_us, at, now_us)
    if arguments is not None:
        payload = _check_args(arguments, body, topic)
        terms[ARGS] = "json"
    else:
        payload = _payload(out, body, in_us)
    with out.held_warnings(TooFewCopies), out.wheel() as wheel:
        id_ = wheel.enqueue(
            payload, at=to_datetime(due_us), topic=topic, headers=dict(headers) | terms,
            sync=sync, key=key, on_conflict=on_conflict,
        )  # fmt: skip
    _print_one(out, id_)
    _tell_one(out, id_, key, due_us, now_us, at, is_call=arguments is not None)


def _tell_one(
    out: Output, id_: MessageId, key: str | None, due_us: int, now_us: int, at: When | None, *, is_call: bool
) -> None:
    """Print a note about one message, unless its id is enough."""
    if id_.kept:
        out.note(f"kept: this message has the key {key!r}; nothing was enqueued")
    elif due_us < now_us:
        out.note(f"due {full_time(due_us)}, {away(due_us - now_us)}: it{_fires_now(out, is_call=is_call)}")
    elif at is not None and at.is_local:
        _echo_due(out, due_us, now_us)


def _check_many(lines: bool, batch: bool, body: str | None, key: str | None, arguments: bytes | None) -> None:
    if arguments is not None:
        raise click.UsageError("--args is for one message; lines of --batch have a key `args`")
    if key is not None:
        raise click.UsageError("--key is for one message; lines of --batch have a key `key`")
    if lines and batch:
        raise click.UsageError("give --lines or --batch, not both")
    if body not in (None, "-"):
        raise click.UsageError(f"{'--lines' if lines else '--batch'} reads the messages from stdin: leave BODY out")


def _check_args(arguments: bytes, body: str | None, topic: str) -> bytes:
    if body is not None:
        raise click.UsageError("give BODY or --args, not both")
    if not topic:
        raise click.UsageError("--args are those of a handler: name it with --topic")
    return arguments


def _payload(out: Output, body: str | None, in_us: int | None) -> bytes:
    if isinstance(in_us, BareSeconds) and is_unit(body):
        raise click.UsageError(
            f"a duration is one word, as in --in 5m; for the payload {body!r} give --in a unit, as in --in 5s"
        )
    return read_body(out, body)


def _fires_now(out: Output, *, many: bool = False, is_call: bool = False) -> str:
    """Describe when overdue messages fire: at once only if a keeper runs."""
    with Wheel(out.dir, force=out.force) as wheel:
        keeper_up = wheel.has_keeper()
    if keeper_up:
        return " fire at once" if many else " fires at once"
    return f" {'wait' if many else 'waits'} for a keeper, and none runs: {WORK if is_call else RUN}"


def _echo_due(out: Output, due_us: int, now_us: int) -> None:
    """Print how a time without a zone was interpreted."""
    out.note(f"due {full_time(due_us)}, {away(due_us - now_us)}")


def _is_in_set(out: Output) -> bool:
    """Return whether the wheel has or had backups."""
    return roster_of(out) is not None


def _print_one(out: Output, id_: MessageId) -> None:
    in_set = _is_in_set(out)
    _print_ids(out, [id_], in_set)
    if in_set and not id_.kept:
        out.note(f"{count(id_.copies, 'wheel')} of the set {'has' if id_.copies == 1 else 'have'} it")


def _print_ids(out: Output, ids: list[MessageId], in_set: bool) -> None:
    for id_ in ids:
        if out.json:
            more = {"kept": True} if id_.kept else {"copies": id_.copies} if in_set else {}
            out.record({"id": str(id_), "due": iso(id_.due_us), "due_us": id_.due_us, **more})
        else:
            out.write(str(id_))
    out.flush()


def _enqueue_many(
    out: Output,
    defaults: MessageDefaults,
    now_us: int,
    sync: Sync | None,
    on_conflict: OnConflict,
    *,
    batch: bool,
    skip_bad: bool,
) -> None:
    with Spool() as spool, out.wheel() as wheel:
        wheel.check_message(b"", topic=defaults.topic, headers=defaults.headers)
        intake = MessageReader(now_us, wheel, defaults)
        with out.progress("reading", _stdin_size()) as progress:
            intake.read(stdin(), spool, progress, json=batch, out=out if skip_bad else None)
        if intake.local:
            zone = offset(to_local(now_us))
            out.note(f"{count(intake.local, 'time')} without a zone taken as local time, which is {zone} now")
        held = kept = 0
        in_set = _is_in_set(out)
        with out.progress("enqueuing", spool.count) as progress:
            for rows, made in enqueue_all(wheel, spool, sync, on_conflict):
                _print_ids(out, [id_ for id_ in made if isinstance(id_, MessageId)], in_set)
                progress.add(len(rows))
                for row, one in zip(rows, made, strict=True):
                    if isinstance(one, KeyHeld):
                        held += 1
                        out.warn(f"line {row.line}: {one.what}; passed over")
                    else:
                        kept += one.kept
        if intake.past:
            out.note(f"{count(intake.past, 'message')} due already: {'it' if intake.past == 1 else 'they'}"
                     + _fires_now(out, many=intake.past != 1))  # fmt: skip
        out.note(f"enqueued {count(spool.count - held - kept, 'message')}" + (f", kept {kept:,}" if kept else ""))
    if intake.bad or held:
        total, left = len(intake.bad) + spool.count, len(intake.bad) + held
        raise Failure("partly", f"{count(left, 'line')} of {total:,} skipped; the others are enqueued")


def _stdin_size() -> int | None:
    """Return the size of stdin, if known."""
    try:
        info = os.fstat(stdin().fileno())
    except (OSError, ValueError):
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None
