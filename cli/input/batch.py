"""Many messages from stdin: every line checked before the first message is enqueued.

`enqueue --lines` takes each line as a payload, `enqueue --batch` as a JSON object with its own due time. A spool holds
the checked lines; then they are enqueued in portions, each durable before its ids are printed.
Invariant: without `--skip-bad`, a bad line means that nothing was enqueued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

from filewheel import BadArgument, FilewheelError, KeyHeld, MessageId, OnConflict, Sync, Wheel
from filewheel.message import ARGS, KEY
from filewheel.timespec import check_due, delay_us
from filewheel.tools.dump import payload_of

from ..show.output import Output
from ..show.progress import ProgressLine
from ..times import to_datetime
from .lines import Spool, parse_object, read_lines
from .params import pack_json, read_delay, read_time

_PORTION_ROWS = 10_000
_PORTION_BYTES = 4 << 20
_OWN_KEYS = frozenset({"payload", "payload_b64", "in", "at", "due_us", "topic", "headers", "key", "args"})
# Plain messages that `run`, `dump` and `inspect list` print can be enqueued again; these keys are ignored.
_MESSAGE_KEYS = frozenset({
    "id", "due", "attempt", "enqueued_us", "root", "dead", "died", "late_ms", "size", "state", "paused_by",
    "attempts", "running_since", "running_since_us", "where", "thread", "pid",
})  # fmt: skip
_OF_MORE = frozenset({"schedule", "kwargs"})
"""Keys of schedules and calls, which these lines do not carry over."""


class MessageRow(NamedTuple):
    """One message to be enqueued."""

    due_us: int
    payload: bytes
    topic: str
    headers: dict[str, str]
    key: str | None = None
    line: int = 0
    """Its line in the input."""


@dataclass
class MessageDefaults:
    """The command line's values for lines without their own."""

    due_us: int | None
    topic: str
    headers: dict[str, str]
    terms: dict[str, str]
    """Headers that lines with headers of their own get too."""


@dataclass
class MessageReader:
    """Reads and checks lines, and counts those that need a note."""

    now_us: int
    wheel: Wheel
    defaults: MessageDefaults
    past: int = 0
    local: int = 0
    bad: list[str] = field(default_factory=list)

    def plain_row(self, line: bytes | None, number: int) -> MessageRow:
        """Make a message from a whole line."""
        if line is None:
            raise BadArgument(f"line {number}: over the limit of {self.wheel.payload_bytes_max} bytes a message")
        if self.defaults.due_us is None:
            raise BadArgument("no due time")
        return MessageRow(
            self.defaults.due_us, line, self.defaults.topic, {**self.defaults.headers, **self.defaults.terms}
        )

    def json_row(self, line: bytes | None, number: int) -> MessageRow:
        """Make a message from a JSON object. Raises BadArgument, which names the line."""
        fields = parse_object(line, number)
        try:
            return self._row(fields)
        except BadArgument as exc:
            raise BadArgument(f"line {number}: {exc.what}", hint=exc.hint) from None
        except OverflowError:
            raise BadArgument(f"line {number}: due after the year 9999") from None

    def _row(self, fields: dict[str, Any]) -> MessageRow:
        for key in fields:
            if key in _OF_MORE:
                raise BadArgument(f"{key!r}: a schedule or a call", hint="`filewheel dump` and `load` carry it over")
            if key not in _OWN_KEYS and key not in _MESSAGE_KEYS:
                raise BadArgument(f"unknown key {key!r}", hint="`filewheel enqueue --help` lists the keys")
        due_us = self._due(fields)
        payload = self._payload(fields)
        topic = fields.get("topic", self.defaults.topic)
        headers = fields.get("headers", self.defaults.headers)
        if not isinstance(headers, Mapping):
            raise BadArgument(f"'headers' is an object, not {headers!r}")
        headers = {**self.defaults.terms, **headers} | ({ARGS: "json"} if "args" in fields else {})
        # A printed message has its key in a header.
        named = headers.pop(KEY, None)
        key = fields.get("key", named)
        if named is not None and key != named:
            raise BadArgument(f"'key' is {key!r}, and the header {KEY} says {named!r}")
        self.wheel.check_message(payload, topic=topic, headers=headers, key=key)
        return MessageRow(due_us, payload, topic, headers, key)

    def _payload(self, fields: dict[str, Any]) -> bytes:
        if "args" not in fields:
            return payload_of(fields)
        if "payload" in fields or "payload_b64" in fields:
            raise BadArgument("give a payload or args, not both")
        if not fields.get("topic", self.defaults.topic):
            raise BadArgument("args are those of a handler: name it as the topic")
        return pack_json(fields["args"])

    def _due(self, fields: dict[str, Any]) -> int:
        given = [key for key in ("in", "at", "due_us") if key in fields]
        if len(given) > 1:
            raise BadArgument(f"give one of {', '.join(given)}")
        if not given:
            if self.defaults.due_us is None:
                raise BadArgument("no due time", hint="a key in, at or due_us, or --in or --at for all lines")
            return self.defaults.due_us
        value = fields[given[0]]
        if given == ["in"]:
            if not isinstance(value, (str, int, float)) or isinstance(value, bool):
                raise BadArgument(f"'in' is a text such as \"5m\", or seconds, not {value!r}")
            return check_due(self.now_us + (read_delay(value) if isinstance(value, str) else delay_us(value)))
        if given == ["at"]:
            if not isinstance(value, str):
                raise BadArgument(f"'at' is a text such as \"09:00\", not {value!r}", hint='epoch seconds are "@..."')
            when = read_time(value, self.now_us)
            self.local += when.is_local
            return when.due_us
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadArgument(f"'due_us' is microseconds since the epoch, not {value!r}")
        return check_due(value)

    def read(self, stream: BinaryIO, spool: Spool, progress: ProgressLine, *, json: bool, out: Output | None) -> None:
        """Check every line and spool the good ones. `out` reports bad ones; without it, the first raises."""
        # JSON may write one byte of a payload as six characters.
        largest = self.wheel.payload_bytes_max
        limit = largest * 6 + (1 << 20) if json else largest
        make = self.json_row if json else self.plain_row
        size = 0
        for number, line in read_lines(stream, limit):
            size += len(line or b"") + 1
            progress.at(size)
            if json and line is not None and not line.strip():
                continue
            try:
                row = make(line, number)
            except BadArgument as exc:
                if out is None:
                    raise BadArgument(
                        f"{exc.what}; nothing was enqueued", hint=exc.hint or "--skip-bad enqueues the others"
                    ) from None
                self.bad.append(exc.what)
                out.warn(f"{exc.what}; skipped")
                continue
            self.past += row.due_us <= self.now_us
            spool.add(row._replace(line=number))


def portions(spool: Spool) -> Iterator[list[MessageRow]]:
    """Yield the spooled rows in portions, each for one commit."""
    rows: list[MessageRow] = []
    size = 0
    for fields in spool.rows():
        row = MessageRow(*fields)
        rows.append(row)
        size += len(row.payload) + 64
        if len(rows) >= _PORTION_ROWS or size >= _PORTION_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def enqueue_all(
    wheel: Wheel, spool: Spool, sync: Sync | None, on_conflict: OnConflict
) -> Iterator[tuple[list[MessageRow], list[MessageId | KeyHeld]]]:
    """Enqueue the spooled rows in portions; yield each when it is as durable as `sync` requires.

    A row whose key is held has the error in place of its id.
    """
    done = 0
    for rows in portions(spool):
        try:
            made = _enqueue_portion(wheel, rows, sync, on_conflict)
        except FilewheelError as exc:
            if done:
                exc.what = f"{exc.what} (after {done:,} of {spool.count:,} messages, whose ids were printed)"
            raise
        done += len(rows)
        yield rows, made


def _enqueue_portion(
    wheel: Wheel, rows: Sequence[MessageRow], sync: Sync | None, on_conflict: OnConflict
) -> list[MessageId | KeyHeld]:
    """Enqueue rows as one commit, except those whose key is held; the first of several with one key gets it."""
    made: dict[int, MessageId | KeyHeld] = {}
    left = list(range(len(rows)))
    while left:
        now = left
        if on_conflict == "reject":
            first = {row.key: n for n, row in reversed([(n, rows[n]) for n in left])}
            now = [n for n in left if rows[n].key is None or first[rows[n].key] == n]
        try:
            ids = _enqueue_many(wheel, [rows[n] for n in now], sync, on_conflict)
        except KeyHeld as exc:
            for n in now:
                key = rows[n].key
                if key is not None and key in exc.held:
                    held = exc.held[key]
                    made[n] = KeyHeld(f"the key {key!r} is held by the message {MessageId(held)}", key=key, id=held)
        else:
            made |= zip(now, ids, strict=True)
        left = [n for n in left if n not in made]
    return [made[n] for n in range(len(rows))]


def _enqueue_many(
    wheel: Wheel, rows: Sequence[MessageRow], sync: Sync | None, on_conflict: OnConflict
) -> Sequence[MessageId]:
    keys = [row.key for row in rows]
    has_keys = any(key is not None for key in keys)
    return wheel.enqueue_many(
        [row.payload for row in rows],
        at=[to_datetime(row.due_us) for row in rows],
        topic=[row.topic for row in rows],
        headers=[row.headers for row in rows],
        sync=sync,
        keys=keys if has_keys else None,
        on_conflict=on_conflict if has_keys else "reject",
    )
