"""`load`: add the messages of a dump, with their ids, or as new messages.

Every line is checked and spooled before the first message is added, so a bad line, or none, means that nothing was
added. A message that is already pending stays unchanged. A message that was cancelled or has fired in this wheel is not
added by its old id while the wheel has a record of it; such messages are reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any, BinaryIO

import click

from filewheel import BadArgument, KeyHeld, Message, MessageId, Wheel
from filewheel.message import schedule_of_key
from filewheel.tools.dump import NewIds, load

from .. import times
from ..failure import Failure
from ..input.lines import Spool, read_lines, stdin
from ..show.output import Output
from ..show.progress import ProgressLine
from ..show.text import count
from ..verb import verb

_CHECKED_MAX = 100_000
_NAMED = 10
_GZIP = b"\x1f\x8b"


@verb(
    "load",
    """
    $ filewheel load backup.jsonl
    $ filewheel load --new-ids backup.jsonl
    """,
)
@click.option("--new-ids", is_flag=True, help="Enqueue them as new messages, even if they are here already.")
@click.argument("source", metavar="[FILE|-]", required=False, type=click.Path())
def command(out: Output, new_ids: bool, source: str | None) -> None:
    """Add the messages of a dump.

    Reads JSON lines from FILE, or from stdin. All lines are checked first: if one is wrong, or the dump was cut off,
    that is named, and nothing is added. Messages that are pending already are left as they are. A message that was
    cancelled or has fired in this wheel stays so while the wheel has a record of it (exit code 3): do not load an old
    dump into the wheel it came from, where it would fire again. --new-ids adds every line as a new message, also of
    messages that are here.

    \b
    Exit codes:
      3  some messages did not come back
      5  another message here holds a key
    """
    if source is None and out.stdin_is_terminal:
        raise click.UsageError("from where? Give a FILE, or `-` to read lines from here to Ctrl-D")
    with out.wheel() as wheel, Spool() as spool, _open(source or "-") as stream:
        limit, ids = wheel.payload_bytes_max, NewIds(times.now_us()) if new_ids else None
        with out.progress("reading") as progress:
            try:
                for message in load(_lines(stream, limit * 6 + (1 << 20), progress), limit, ids):
                    spool.add(_row(message))
            except BadArgument as exc:
                path = None if source in (None, "-") else source
                hint = exc.hint or "correct that line, or leave it out, and load the rest"
                raise BadArgument(f"{exc.what}; nothing was added", path=path, hint=hint) from None
        check = _Check(wheel, spool) if not new_ids and spool.count <= _CHECKED_MAX else None
        with out.progress("loading", spool.count) as progress:

            def messages() -> Iterator[Message]:
                for row in spool.rows():
                    progress.add(1)
                    yield _message(row)

            try:
                wheel.add(messages())
            except KeyHeld as exc:
                name = schedule_of_key(exc.key)
                end = f"cancel --key {quote(exc.key)}" if name is None else f"unschedule {quote(name)}"
                exc.hint = f"end it here (`filewheel {end}`), or leave its line out, and load again"
                raise
        if check is not None:
            check.finish(out)
        elif new_ids:
            out.note(f"added {count(spool.count, 'message')} as new")
        else:
            out.note(f"read {count(spool.count, 'message')}: those that were not here are added")


@contextlib.contextmanager
def _open(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield stdin()
    else:
        with open(source, "rb") as stream:
            yield stream


def _lines(stream: BinaryIO, limit: int, progress: ProgressLine) -> Iterator[bytes]:
    size = 0
    for number, line in read_lines(stream, limit):
        if number == 1 and line is not None and line.startswith(_GZIP):
            raise BadArgument("line 1: not JSON, but compressed", hint="`zcat FILE | filewheel load -`")
        if line is None:
            raise BadArgument(f"line {number}: longer than any message can be")
        size += len(line) + 1
        progress.at(size)
        yield line


def _row(m: Message) -> tuple[object, ...]:
    return bytes(m.id), m.payload, m.topic, m.headers, m.attempt, m.enqueued_us, m.root and bytes(m.root)


def _message(row: Sequence[Any]) -> Message:
    id_, payload, topic, headers, attempt, enqueued_us, root = row
    return Message(MessageId(id_), payload, topic, headers, attempt, enqueued_us, root and MessageId(root))


class _Check:
    """Compares the pending messages before and after, to find those that were not added."""

    def __init__(self, wheel: Wheel, spool: Spool) -> None:
        self._wheel = wheel
        self._ids = [MessageId(row[0]) for row in spool.rows()]
        self._here = len(self._pending())

    def _pending(self) -> set[bytes]:
        with self._wheel.snapshot() as snapshot:
            return set(snapshot.find(self._ids))

    def finish(self, out: Output) -> None:
        """Report how many messages were added, and which are not pending now."""
        pending, now_us = self._pending(), times.now_us()
        # A running keeper may have fired due messages already.
        fired = self._wheel.stats().keeper_up
        gone = [i for i in dict.fromkeys(self._ids) if i not in pending and not (fired and i.due_us <= now_us)]
        taken = len(set(self._ids)) - self._here - len(gone)
        had_been = f"; {self._here:,} had been here already" if self._here else ""
        out.note(f"loaded {count(taken, 'message')}{had_been}")
        for id_ in gone[:_NAMED]:
            out.warn(f"{id_} did not come back: it was cancelled or has fired in this wheel")
        if len(gone) > _NAMED:
            out.warn(f"... nor did {len(gone) - _NAMED:,} more")
        if gone:
            raise Failure(
                "partly", f"{len(gone):,} of {len(self._ids):,} messages did not come back",
                hint="a dump of their lines alone, loaded with --new-ids, adds them as new messages",
            )  # fmt: skip
