"""A message and its id: pure values.

The id shows where the message is stored. It has 128 bits: the due time (58 bits of microseconds), the writer (40 bits,
random for each open) and the writer's sequence number (30 bits, from a random start, never reused). Sorting ids sorts
by due time, then writer, then sequence. As text an id is 26 characters of Crockford's base 32 (as a ULID, but with the
*due* time): 12 for the due, 8 for the writer, 6 for the sequence. So cancel, get and reschedule need no index.

Headers are a small map of text to text in each message. Names that start with `filewheel.` belong to filewheel; all
others are the user's, and are passed on unchanged.

Two headers keep the attempts that failed: one has times and errors, the other has for each the end of its traceback, or
of what the command wrote to stderr. Both are bounded together, the newest attempt first.

Invariants: an id names one message for ever; a message that moves gets a new id and keeps its first one as `root`. Each
name of a header is defined here once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.values import unpack_call

US_PER_S = 1_000_000
WRITER_BITS = 40
SEQ_BITS = 30
LOW_BITS = WRITER_BITS + SEQ_BITS
ID_BYTES = 16

DUE_END_US = 253_402_300_800 * US_PER_S
"""The first microsecond of the year 10000: a due must be before it."""

DEAD_US = DUE_END_US
"""A dead letter's due is DEAD_US plus the time of its burial: a time that never comes."""

DUE_LIMIT_US = 288_000_000_000_000_000
"""Every due is below this; it is below 2**58, so that the end of a second or a lap still fits into an id."""

ID_MIN = bytes(ID_BYTES)
ID_LIMIT = (DUE_LIMIT_US << 6).to_bytes(8, "big") + bytes(8)
"""Every message id is below this."""
ID_END = b"\xff" * ID_BYTES
"""Above every id: no due is that late."""

PREFIX = "filewheel."

REASON = "filewheel.reason"
"""Why a dead letter was buried."""

HISTORY = "filewheel.history"
"""The earlier attempts: a bounded JSON list of [time in µs, attempt, error text], the oldest first."""

DETAILS = "filewheel.details"
"""The end of the traceback or stderr of earlier attempts: a JSON list of [time in µs, attempt, text], oldest first."""

ARGS = "filewheel.args"
"""The encoding of a handler's arguments in the payload: [args, kwargs] as "msgpack", "msgpack+tags" or "json"."""

KEY = "filewheel.key"
"""The unique key that the message holds while it lives."""

SKIP_LATE = "filewheel.skip_late_s"
"""How many seconds late it may start; later it becomes a dead letter instead."""

COALESCE = "filewheel.coalesce"
"""A name: when several messages of one handler with this name are overdue, only the first fires."""

DEADLINE = "filewheel.deadline_us"
"""The time, in microseconds since the epoch, from which it must not start."""

DUE = "filewheel.due_us"
"""The first due, in microseconds, of a message that was deferred. SKIP_LATE counts from it."""

WAITS = "filewheel.waits"
"""Why the program that fires cannot begin a message: it is deferred again and again, and DUE has its due."""

SCHEDULE = "filewheel.schedule"
"""The definition of recurring work, as JSON: the next occurrence is computed from it."""

SCHEDULE_KEY = "filewheel.every:"
"""The key of a schedule's living occurrence is this and the schedule's name."""

OF_SCHEDULE = "filewheel.of_schedule"
"""Of a dead letter that was an occurrence, and of the message that it is revived to: the name of the schedule."""

RETRY = "filewheel.retry"
"""How its call is retried, as JSON: what it names holds in place of the handler's own Retry."""

TIMEOUT = "filewheel.timeout_s"
"""How many seconds its call may take, in place of the handler's own time-out."""

RESULT = "filewheel.result"
"""In the result of a call: how the payload is packed, or "error" or "unkept" for a text. Also the topic of results."""

TRACEPARENT = "traceparent"
"""W3C trace context, passed from the enqueue to the handler, and to the messages that the handler enqueues."""

OWN_BYTES_MAX = 16_384
"""The most bytes, names and values together, of the headers that are filewheel's."""
DETAILS_BYTES_MAX = 4096
"""The most bytes of one attempt's details."""
_DETAILS_BYTES = 3 * DETAILS_BYTES_MAX
"""The most bytes of the header with all of them."""
_DETAILS_LEAST = 256
"""Details that would have to be cut below this are left out."""
_ROOM_BYTES = 2048
"""Left free among filewheel's headers for the reason of a dead letter, and for a second due."""
_ERROR_CHARS = 200
_SHOWN_CHARS = 100
"""How much of a call, or of a reason, the repr of a message shows."""
_READ_BYTES = 1 << 16
"""A repr reads no longer call."""
_ATTEMPTS_KEPT = 10
_CUT = "[...]\n"

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = {c: i for i, c in enumerate(_ALPHABET)}
_VALUE |= {c.lower(): i for c, i in _VALUE.items()}
_VALUE |= {"O": 0, "o": 0, "I": 1, "i": 1, "L": 1, "l": 1}  # letters that people misread
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_TEXT_LENGTH = 26


def base32(number: int, length: int) -> str:
    """Write a number as `length` characters (an even count) of Crockford's base 32."""
    pairs = []
    for _ in range(length // 2):
        pairs.append(_PAIRS[number & 1023])
        number >>= 10
    return "".join(reversed(pairs))


class MessageId(bytes):
    """The 16 bytes of an id; `str()` gives its 26 characters."""

    __slots__ = ()

    copies = 1
    """How many wheels held the message when the call that returned this id returned; 1 for any other id."""
    kept = False
    """Whether an enqueue with `on_conflict="keep"` returned this id because its message already had the key."""

    @classmethod
    def parse(cls, text: str | bytes) -> MessageId:
        """Read an id from its text (in upper or lower case) or its 16 bytes.

        Raises BadArgument for anything else.
        """
        if isinstance(text, bytes):
            if len(text) == ID_BYTES:
                return cls(text)
            raise BadArgument(f"an id has {ID_BYTES} bytes, not {len(text)}")
        if not isinstance(text, str):
            raise BadArgument(f"an id is a MessageId, or its text, not {shown(text)}")
        number = 0
        if len(text) == _TEXT_LENGTH and _VALUE.get(text[0], 8) < 8:
            for char in text:
                value = _VALUE.get(char)
                if value is None:
                    break
                number = number << 5 | value
            else:
                return cls(number.to_bytes(ID_BYTES, "big"))
        raise BadArgument(
            f"{text[:40]!r} is not a message id (26 letters and digits)",
            hint="`filewheel inspect list` shows the ids",
        )

    @classmethod
    def make(cls, due_us: int, writer: int, seq: int) -> MessageId:
        """Make an id from its three parts."""
        return cls((due_us << LOW_BITS | writer << SEQ_BITS | seq).to_bytes(ID_BYTES, "big"))

    @property
    def due_us(self) -> int:
        """When the message is due, in microseconds since the epoch."""
        return int.from_bytes(self[:8], "big") >> 6

    @property
    def writer(self) -> str:
        """The writer's 8 characters: the name of its journal."""
        return str(self)[12:20]

    @property
    def seq(self) -> int:
        """The message's number in the sequence of its writer."""
        return int.from_bytes(self[-4:], "big") & ((1 << SEQ_BITS) - 1)

    @property
    def is_dead(self) -> bool:
        """Whether this is a dead letter's id."""
        return self.due_us >= DEAD_US

    def __str__(self) -> str:
        return base32(int.from_bytes(self, "big"), _TEXT_LENGTH)

    def __repr__(self) -> str:
        return f"MessageId({str(self)!r})"


class Receipt(MessageId):
    """An id with its own `copies` and `kept`."""


def receipt(id_: MessageId, copies: int, *, kept: bool = False) -> MessageId:
    """Return the id with these `copies` and `kept`; an id that was kept stays so."""
    kept = kept or id_.kept
    if (copies, kept) == (id_.copies, id_.kept):
        return id_
    made = Receipt(id_)
    made.copies, made.kept = copies, kept
    return made


def id_floor(due_us: int) -> bytes:
    """Return the smallest id that is due at this microsecond."""
    return (due_us << 6).to_bytes(8, "big") + bytes(8)


def id_after(id_: bytes) -> bytes:
    """Return the id that follows."""
    return (int.from_bytes(id_, "big") + 1).to_bytes(ID_BYTES, "big")


def due_of(id_: bytes) -> int:
    """Return the due time, in microseconds, of an id's bytes."""
    return int.from_bytes(id_[:8], "big") >> 6


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(us: int) -> datetime:
    """Turn microseconds since the epoch into an aware datetime, exactly."""
    return _EPOCH + timedelta(microseconds=us)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that failed."""

    at_us: int
    """When it failed, in microseconds since the epoch."""
    attempt: int
    error: str
    details: str = ""
    """The end of the traceback, or of what the command wrote to stderr: 4 KiB at most. Empty when none was kept."""


@dataclass(slots=True, repr=False)
class Message:
    """One message, pending or firing. Treat it as a value; making one costs about 0.3 µs."""

    id: MessageId
    payload: bytes
    topic: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    attempt: int = 0
    """How often it was put back by a retry, or buried."""
    enqueued_us: int = 0
    root: MessageId | None = None
    """Its first id, when it has moved (retry, reschedule, dead letter)."""

    def __repr__(self) -> str:
        return f"<Message {self._described()}>"

    def _described(self) -> str:
        """Write what it is, when it is due and how it is tried, in one short line. It never raises."""
        what, state = f"{self.topic!r} {len(self.payload)} bytes", f"due_us {self.id.due_us}"
        with suppress(Exception):  # arguments that are damaged or nested too deeply: its size
            how = self.headers.get(ARGS)
            if how is not None and len(self.payload) <= _READ_BYTES:
                what = _short(call_text(self.topic, *unpack_call(self.payload, how)))
        with suppress(OverflowError):  # an id after the year 9999: its number
            state = f"due {self.due.isoformat(' ', 'milliseconds').removesuffix('+00:00')}Z"
        if self.is_dead:
            state = f"dead: {_short(repr(self.reason or 'no reason')[1:-1])}"
        tried = f" try {self.attempt + 1}" if self.attempt and not self.is_dead else ""
        return f"{self.id} {what} {state}{tried}"

    @property
    def due_us(self) -> int:
        """When it is due; for a dead letter, when it was first due."""
        due_us = int.from_bytes(self.id[:8], "big") >> 6
        return due_us if due_us < DEAD_US or self.root is None else self.root.due_us

    @property
    def due(self) -> datetime:
        """When it is due, as an aware datetime in UTC."""
        return to_datetime(self.due_us)

    @property
    def waits(self) -> str | None:
        """Why the program that fires could not begin it when it was due: it comes back every few minutes. Else None."""
        return self.headers.get(WAITS)

    @property
    def waits_since_us(self) -> int | None:
        """When it was due, in microseconds, if the program that fired then could not begin it; else None."""
        since = self.headers.get(DUE, "")
        return int(since) if WAITS in self.headers and since.isdecimal() else None

    @property
    def key(self) -> str | None:
        """Its unique key, or None. For a dead letter, the key that it had."""
        return self.headers.get(KEY)

    @property
    def schedule_name(self) -> str | None:
        """The name of the schedule that it is an occurrence of, or was one of until it died; None of other messages."""
        return schedule_name_of(self.headers)

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.id.is_dead

    @property
    def reason(self) -> str | None:
        """Why it became a dead letter; None if it is not dead or has no reason."""
        return self.headers.get(REASON) if self.is_dead else None

    @property
    def args(self) -> list[Any] | None:
        """The positional arguments of a call; None for a message that is no call. Decoded at each use.

        A dataclass is a dict and an Enum its value: only a handler's annotations bring them back. Raises Damaged when
        the arguments cannot be read.
        """
        how = self.headers.get(ARGS)
        return None if how is None else unpack_call(self.payload, how)[0]

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """The keyword arguments of a call; None for a message that is no call. See `args`."""
        how = self.headers.get(ARGS)
        return None if how is None else unpack_call(self.payload, how)[1]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts that failed, at most the last ten, the oldest first; empty when none can be read."""
        return attempts_of(self.headers)

    @property
    def died_us(self) -> int | None:
        """When it became a dead letter, in microseconds since the epoch; None if it is not dead."""
        return self.id.due_us - DEAD_US if self.is_dead else None


def schedule_name_of(headers: Mapping[str, str]) -> str | None:
    """Return the name of the schedule that a message with these headers belongs to, or belonged to before it died."""
    return schedule_of_key(headers.get(KEY)) or headers.get(OF_SCHEDULE)


def schedule_of_key(key: str | None) -> str | None:
    """Return the name of the schedule whose living occurrence has this key; None of other keys."""
    return key.removeprefix(SCHEDULE_KEY) if key is not None and key.startswith(SCHEDULE_KEY) else None


def call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Write a call as Python does: email('ann', times=2)."""
    return f"{name}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def is_call(headers: Mapping[str, str]) -> bool:
    """Return whether a message is a call of a handler, so that only a scheduler may fire it."""
    return ARGS in headers


# -- the attempts that failed ---------------------------------------------------------------------------------


def attempts_of(headers: Mapping[str, str]) -> tuple[Attempt, ...]:
    """Read the attempts that failed from a message's headers; none when they are missing or unreadable."""
    try:
        items: Any = json.loads(headers.get(HISTORY, "[]"))
        details = _details_of(headers) if items else {}
        found = ((int(at), int(attempt), str(error)) for at, attempt, error in items)
        return tuple(Attempt(*one, details.get(one[:2], "")) for one in found)
    except (ValueError, TypeError, RecursionError):
        return ()


def _details_of(headers: Mapping[str, str]) -> dict[tuple[int, int], str]:
    try:
        items: Any = json.loads(headers.get(DETAILS, "[]"))
        return {(int(at), int(attempt)): str(text) for at, attempt, text in items}
    except (ValueError, TypeError, RecursionError):
        return {}


def with_attempt(headers: Mapping[str, str], attempt: Attempt) -> dict[str, str]:
    """Return the headers with one more attempt. Without room the oldest details are removed, then the oldest attempts.

    The user's headers take no room from it, and it takes none from them. Cost: about 0.1 ms.
    """
    kept = [*attempts_of(headers), attempt][-_ATTEMPTS_KEPT:]
    others = {k: v for k, v in headers.items() if k not in (HISTORY, DETAILS)}
    room = OWN_BYTES_MAX - _ROOM_BYTES - own_bytes(others) - len(HISTORY) - len(DETAILS)
    # What is left of the room holds the newest details whole.
    while kept:
        text = json.dumps([[a.at_us, a.attempt, a.error[:_ERROR_CHARS]] for a in kept], separators=(",", ":"))
        if len(text) <= room - 2 * DETAILS_BYTES_MAX:
            details = _packed_details(kept, min(room - len(text), _DETAILS_BYTES))
            return {**others, HISTORY: text, **({DETAILS: details} if details else {})}
        kept.pop(0)
    return others


def own_bytes(headers: Mapping[str, str]) -> int:
    """Return the bytes of those headers that are filewheel's, names and values together."""
    return sum(len(k.encode()) + len(v.encode()) for k, v in headers.items() if k.startswith(PREFIX))


def _packed_details(attempts: Sequence[Attempt], room: int) -> str:
    """Pack as many details as fit, the newest first; of the first that does not fit, its end."""
    items: list[str] = []
    for a in reversed(attempts):
        text = end_of(a.details)
        while text and room >= _DETAILS_LEAST:
            item = json.dumps([a.at_us, a.attempt, text], separators=(",", ":"), ensure_ascii=False)
            size = len(item.encode()) + len(",[]")
            if size <= room:
                items.insert(0, item)
                room -= size
                break
            length = len(text.encode())
            text = end_of(text, min(length * room // size, length - len(_CUT)))
    return f"[{','.join(items)}]" if items else ""


def end_of(text: str | bytes, most: int = DETAILS_BYTES_MAX) -> str:
    """Return the end of a text in at most so many bytes of UTF-8, from the start of a line if that is near.

    Bytes that are not UTF-8 become \\xff, and so do lone surrogates.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    text = text.strip("\n")
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    end = data[max(0, len(data) - most + len(_CUT)) :].decode("utf-8", "ignore")
    line = end.find("\n")
    return _CUT + (end[line + 1 :] if 0 <= line < len(end) // 4 else end)
