"""`load`: bring back what `dump` wrote, with its ids, or as new messages.

Every line is checked and put aside before the first message is added, so a bad line means that nothing was. Adding a
message that is pending already changes nothing; one that was cancelled or has fired in this wheel, and is still on
record there, does not come back by its old id, and that is told.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator
from typing import BinaryIO

import click

from filewheel import BadArgument, Message, MessageId, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.format.limits import bytes_of, check_headers, check_topic
from filewheel.format.record import pack_message, unpack_put
from filewheel.message import DEAD_US, DUE_END_US
from filewheel.timespec import check_due
from filewheel.tools.dump import from_json

from ..failure import Failure
from ..input.lines import Spool, parse_object, read_lines
from ..show.output import Output
from ..show.text import count
from ..verb import verb

_CHECKED_MAX = 100_000
_NAMED = 10


@verb(
    "load",
    """
    $ filewheel load backup.jsonl
    $ filewheel dump | filewheel load --new-ids
    """,
)
@click.option("--new-ids", is_flag=True, help="Enqueue them as new messages, even if they are here already.")
@click.argument("source", metavar="[FILE|-]", required=False, type=click.Path())
def command(out: Output, new_ids: bool, source: str | None) -> None:
    """Add the messages of a dump.

    Reads JSON lines from FILE, or from stdin. All lines are checked first: if one is wrong it is named, and nothing is
    added. Messages that are pending already are left as they are. A message that was cancelled or has fired in this
    wheel stays so while the wheel has a record of it (exit code 3): do not load an old dump into the wheel it came
    from, where it would fire again. --new-ids adds all of it anew.
    """
    if source is None and out.stdin_is_terminal:
        raise click.UsageError("from where? Give a FILE, or `-` to read lines from here to Ctrl-D")
    limit = out.directory().settings.payload_bytes_max
    with Spool() as spool, _open(source or "-") as stream, out.wheel() as wheel:
        maker = _Renewer(SYSTEM_CLOCK.now_us()) if new_ids else None
        with out.progress("reading") as progress:
            size = 0
            for number, line in read_lines(stream, limit * 6 + (1 << 20)):
                size += len(line or b"") + 1
                progress.at(size)
                if line is None or line.strip():
                    spool.add(pack_message(_read(line, number, limit, maker)))
        check = _Check(wheel, spool) if not new_ids and spool.count <= _CHECKED_MAX else None
        with out.progress("loading", spool.count) as progress:

            def messages() -> Iterator[Message]:
                for packed in spool.rows():
                    progress.add(1)
                    yield unpack_put(packed)

            wheel.add(messages())
        if check is not None:
            check.finish(out)
        else:
            out.note(f"read {count(spool.count, 'message')}: those that were not here are added")


@contextlib.contextmanager
def _open(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield sys.stdin.buffer
    else:
        with open(source, "rb") as stream:
            yield stream


def _read(line: bytes | None, number: int, limit: int, maker: _Renewer | None) -> Message:
    fields = parse_object(line, number)
    try:
        message = from_json(fields)
        check_topic(message.topic)
        check_headers(message.headers)
        bytes_of(message.payload, limit)
        for id_ in (message.id, message.root):
            if id_ is not None and id_.due_us >= (DEAD_US if id_ is message.root else 2 * DEAD_US):
                raise BadArgument(f"the id {id_} has an impossible time")
        if message.is_dead and message.root is None:
            raise BadArgument("a dead letter without 'root', the id that it had when it lived")
        due_us = fields.get("due_us", message.due_us)
        if not isinstance(due_us, int) or isinstance(due_us, bool):
            raise BadArgument(f"'due_us' is microseconds since the epoch, not {due_us!r}")
        if maker is not None:
            return maker.renew(message, check_due(due_us))
        if due_us != message.due_us:
            raise BadArgument("'due_us' is not the time in 'id'", hint="--new-ids takes the time from due_us")
    except BadArgument as exc:
        raise BadArgument(f"line {number}: {exc.what}; nothing was added", hint=exc.hint) from None
    return message


class _Renewer:
    """Gives messages new ids, in order, as a writer of its own would."""

    def __init__(self, now_us: int) -> None:
        self._writer = int.from_bytes(secrets.token_bytes(5), "big")
        self._seq = 0
        self._now_us = now_us

    def renew(self, message: Message, due_us: int) -> Message:
        """Return the message as a new one; a dead letter stays one."""
        fresh = self._id(due_us)
        if message.is_dead:
            return Message(
                self._id(DEAD_US + min(self._now_us, DUE_END_US - 1)), message.payload, message.topic,
                message.headers, message.attempt, self._now_us, root=fresh,
            )  # fmt: skip
        return Message(fresh, message.payload, message.topic, message.headers, 0, self._now_us)

    def _id(self, due_us: int) -> MessageId:
        self._seq += 1
        return MessageId.make(due_us, self._writer, self._seq)


class _Check:
    """Looks what was pending before and what is afterwards: the difference did not come back."""

    def __init__(self, wheel: Wheel, spool: Spool) -> None:
        self._wheel = wheel
        self._ids = [unpack_put(packed).id for packed in spool.rows()]
        self._here = len(self._pending())

    def _pending(self) -> set[bytes]:
        with self._wheel.snapshot() as snapshot:
            return set(snapshot.find(self._ids))

    def finish(self, out: Output) -> None:
        """Tell how many messages came, and which are not pending now."""
        pending, now_us = self._pending(), SYSTEM_CLOCK.now_us()
        # A keeper that runs may have fired by now what was due.
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
                hint="--new-ids adds them as new messages",
            )  # fmt: skip
