"""Messages as JSON lines: one object per line; the keys are a public API (docs/cli.md).

A UTF-8 payload is text under `payload`, any other is base64 under `payload_b64`; headers are an object of strings.
`dump` yields messages in firing order, dead letters last. `load` reads them and keeps the ids, so dump, load and dump
again give the same bytes. The last line counts the others (`last_line`): a dump that was cut off, by a full disk or a
command that failed, is not taken for a whole one.
Invariant: from_json(to_json(m)) == m.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from filewheel.checks import check_function, shown
from filewheel.errors import BadArgument
from filewheel.format.limits import check_message
from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.lookup.snapshot import Filter
from filewheel.message import DEAD_US, DUE_END_US, ID_END, WRITER_BITS, Message, MessageId, to_datetime
from filewheel.reader import Reader
from filewheel.timespec import check_due

log = logging.getLogger(__name__)

_COUNT = "dumped"


def to_json(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object."""
    try:
        payload = {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_b64": base64.b64encode(message.payload).decode()}
    fields: dict[str, Any] = {
        "id": str(message.id),
        "due": iso(message.due_us),
        "due_us": message.due_us,
        "topic": message.topic,
        **payload,
        "headers": message.headers,
        "attempt": message.attempt,
        "enqueued_us": message.enqueued_us,
    }
    if message.root is not None:
        fields["root"] = str(message.root)
    if message.is_dead:
        fields["dead"] = True
    return fields


def iso(us: int) -> str:
    """Write microseconds since the epoch as ISO 8601 in UTC, always with six digits."""
    return to_datetime(us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def from_json(fields: object, payload_bytes_max: int = PAYLOAD_BYTES_LIMIT) -> Message:
    """Read a message from an object of `to_json`. Raises BadArgument, which names the wrong key."""
    if not isinstance(fields, dict):
        raise BadArgument("not a JSON object")
    id_ = MessageId.parse(_field(fields, "id", str))
    root = fields.get("root")
    message = Message(
        id=id_,
        payload=payload_of(fields),
        topic=_field(fields, "topic", str, ""),
        headers=_headers(fields),
        attempt=_count(fields, "attempt"),
        enqueued_us=_count(fields, "enqueued_us"),
        root=None if root is None else MessageId.parse(_field(fields, "root", str)),
    )
    check_message(message, payload_bytes_max)
    return message


def payload_of(fields: dict[str, Any]) -> bytes:
    """Read the payload of a JSON message from `payload` or `payload_b64`."""
    if "payload" in fields and "payload_b64" in fields:
        raise BadArgument("give payload or payload_b64, not both")
    if "payload_b64" in fields:
        try:
            return base64.b64decode(_field(fields, "payload_b64", str), validate=True)
        except (binascii.Error, ValueError):
            raise BadArgument("payload_b64 is not base64") from None
    try:
        return str(_field(fields, "payload", str)).encode()
    except UnicodeEncodeError:
        raise BadArgument("payload is not valid Unicode", hint="send bytes as payload_b64") from None


def _field(fields: dict[str, Any], key: str, kind: type, default: object = None) -> Any:
    value = fields.get(key, default)
    if not isinstance(value, kind):
        if key not in fields:
            raise BadArgument(f"the key {key!r} is missing")
        raise BadArgument(f"{key!r} is a {kind.__name__}, not {shown(value)}")
    return value


def _headers(fields: dict[str, Any]) -> dict[str, str]:
    headers = _field(fields, "headers", dict, {})
    for key, value in headers.items():
        if not isinstance(value, str):
            raise BadArgument(f"the header {key!r} is a str, not {shown(value)}")
    return dict(headers)


def _count(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise BadArgument(f"{key!r} is a count, not {shown(value)}")
    return value


def parse_line(line: str | bytes, number: int) -> dict[str, Any]:
    """Read one line as a JSON object; errors name the line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise BadArgument(f"line {number}: not JSON: {exc}") from None
    if not isinstance(fields, dict):
        raise BadArgument(f"line {number}: not a JSON object")
    return fields


def dump(wheel: Reader, on_unreadable: Callable[[str, str], object] | None = None) -> Iterator[Message]:
    """Yield every pending message and every dead letter, in the order of their ids. Memory: one window.

    At the end, `on_unreadable` gets the name of each file that could not be read in full, and the reason.
    """
    if on_unreadable is not None:
        check_function("on_unreadable", on_unreadable)
    # One snapshot: with two, a dead letter revived in between could be missed.
    with wheel.snapshot() as snapshot:
        yield from snapshot.messages(Filter(hi=ID_END))
        if snapshot.is_overtaken:
            log.warning(
                "%s: it changed faster than it was read: a message that moved meanwhile may be missing, or twice. "
                "Try: dump it again, beside less traffic or onto a faster disk",
                wheel.path,
            )
        if on_unreadable is not None:
            for damage in snapshot.problems():
                on_unreadable(damage.name, f"{damage.reason} at offset {damage.offset}")


def load(
    lines: Iterable[str | bytes], payload_bytes_max: int = PAYLOAD_BYTES_LIMIT, ids: NewIds | None = None
) -> Iterator[Message]:
    """Read dumped lines as messages; blank lines are skipped. With `ids`, each gets a new id.

    Raises BadArgument, which names the line, also when `due_us` is not the time in a retained id, and when the last
    line is missing, or counts another number of messages.
    """
    count, is_whole = 0, False
    for number, line in enumerate(lines, 1):
        if line.strip():
            fields = parse_line(line, number)
            if is_whole := is_last_line(fields):
                if fields[_COUNT] != count:
                    raise _cut_off(f"line {number} says {shown(fields[_COUNT])}", count)
                count = 0  # another dump may follow
                continue
            count += 1
            try:
                yield _loaded(fields, payload_bytes_max, ids)
            except BadArgument as exc:
                raise type(exc)(f"line {number}: {exc.what}", hint=exc.hint) from None
    if not is_whole:
        raise _cut_off("its last line is missing", count)


def _cut_off(what: str, count: int) -> BadArgument:
    hint = f"make the dump again; or, if there is no other, let its last line be {last_line(count)}"
    return BadArgument(f"the dump was cut off: it has {count} messages, and {what}", hint=hint)


def last_line(count: int) -> str:
    """Return the last line of a dump of so many messages."""
    return json.dumps({_COUNT: count})


def is_last_line(fields: dict[str, Any]) -> bool:
    """Return whether a line of a dump is its last one, which is no message."""
    return fields.keys() == {_COUNT}


def _loaded(fields: dict[str, Any], payload_bytes_max: int, ids: NewIds | None) -> Message:
    message = from_json(fields, payload_bytes_max)
    due_us = fields.get("due_us", message.due_us)
    if not isinstance(due_us, int) or isinstance(due_us, bool):
        raise BadArgument(f"'due_us' is microseconds since the epoch, not {shown(due_us)}")
    if ids is not None:
        return ids.renew(message, check_due(due_us))
    if due_us != message.due_us:
        raise BadArgument("'due_us' is not the time in 'id'", hint="--new-ids takes the time from due_us")
    return message


class NewIds:
    """Gives messages new ids, in order, as a separate writer."""

    def __init__(self, now_us: int) -> None:
        """`now_us` is the time at which the messages count as enqueued, and dead letters as dead."""
        self._writer = int.from_bytes(secrets.token_bytes(WRITER_BITS // 8), "big")
        self._seq = 0
        self._now_us = now_us

    def renew(self, message: Message, due_us: int) -> Message:
        """Return the message with a new id and this due; a dead letter stays one."""
        fresh = self._id(due_us)
        if not message.is_dead:
            return Message(fresh, message.payload, message.topic, message.headers, 0, self._now_us)
        died = self._id(DEAD_US + min(self._now_us, DUE_END_US - 1))
        return Message(died, message.payload, message.topic, message.headers, message.attempt, self._now_us, fresh)

    def _id(self, due_us: int) -> MessageId:
        self._seq += 1
        return MessageId.make(due_us, self._writer, self._seq)
