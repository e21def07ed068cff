"""The two kinds of record: **put** (a message) and **drop** (an ended id, with the reason).

The pending messages are all puts minus all drops, as sets; repeated or reordered records change nothing.
A record is packed once: journal, slot and lap hold the same bytes. Both kinds start with four fixed bytes and the id,
so records sort by (due, writer, sequence) as plain bytes, in C:

    put   [1, id, root | nil, enqueued_us, attempt, topic, headers, payload]
    drop  [2, id, reason]

Format: docs/format.md, 7.
Invariant: bytes 4..20 of a record are its id, byte 1 its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgpack

from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.message import DEAD_US, ID_LIMIT, KEY, Message, MessageId, id_floor
from filewheel.native import loops
from filewheel.native.compiled import PutTable, part
from filewheel.native.compiled import moved as moved
from filewheel.native.loops import DROP_PREFIX as DROP_PREFIX
from filewheel.native.loops import ID as ID
from filewheel.native.loops import PUT_PREFIX as PUT_PREFIX
from filewheel.native.loops import pack_payload as pack_payload

PUT = 1
DROP = 2
_NIL, _UINT64, _FIXINT_MAX, _FIXSTR, _FIXSTR_MAX = 0xC0, b"\xcf", 0x7F, 0xA0, 0xBF
"""The first msgpack bytes of the fields that `topic_of` skips."""
_COUNT_END = (1 << 64) - 1
"""One more can still be packed."""
_DEAD_FLOOR = id_floor(DEAD_US)
_KEY_BYTES = KEY.encode()
_HEADERS = 6

ACKED = 1
CANCELLED = 2
RESCHEDULED = 3
RETRIED = 4
BURIED = 5
SET_ASIDE = 6
REASONS = {1: "acked", 2: "cancelled", 3: "rescheduled", 4: "retried", 5: "buried", 6: "set aside"}

# One packer serves all threads: the C one holds the interpreter's lock. The Python one does not.
_IS_C = msgpack.Packer.__module__ != "msgpack.fallback"
_pack = msgpack.Packer(autoreset=True, use_bin_type=True).pack if _IS_C else msgpack.packb
_NOTHING = _pack({})


def pack_tail(topic: str, headers: Mapping[str, str] | None, attempt: int = 0) -> bytes:
    """Pack the fields between `enqueued_us` and payload."""
    return b"%b%b%b" % (_pack(attempt), _pack(topic), _pack(dict(headers)) if headers else _NOTHING)


def pack_middle(
    enqueued_us: int,
    topic: str,
    headers: Mapping[str, str] | None,
    *,
    root: bytes | None = None,
    attempt: int = 0,
) -> bytes:
    """Pack the fields between a put's id and its payload: equal for every message of a batch."""
    return b"%b\xcf%b%b" % (
        b"\xc0" if root is None else b"\xc4\x10" + root,
        enqueued_us.to_bytes(8, "big"),
        pack_tail(topic, headers, attempt),
    )


def pack_message(message: Message) -> bytes:
    """Pack a whole message as a put."""
    middle = pack_middle(
        message.enqueued_us,
        message.topic,
        message.headers,
        root=message.root,
        attempt=message.attempt,
    )
    return PUT_PREFIX + message.id + middle + pack_payload(message.payload)


def pack_drop(id_: bytes, reason: int) -> bytes:
    """Pack a drop."""
    return b"%b%b%c" % (DROP_PREFIX, id_, reason)


def split(body: bytes) -> list[bytes]:
    """Cut a frame's body into records. Raises Damaged when it is not a run of msgpack values."""
    try:
        return loops.split(body)
    except ValueError as exc:
        raise Damaged(str(exc)) from exc


def records_of(frame: Frame) -> tuple[list[bytes], list[bytes]]:
    """Return a frame's puts and its drops.

    Raises Damaged when they are invalid, do not fit the header, or have an impossible due: readers skip frames by
    their headers and compute with dues.
    """
    try:
        puts, drops = part(frame.body, frame.first, frame.last)
    except ValueError as exc:
        raise Damaged(str(exc)) from exc
    if frame.last >= ID_LIMIT and (puts or drops):
        raise Damaged("an id has a due that no message can have")
    return puts, drops


def readable_records(frame: Frame) -> tuple[list[bytes], list[bytes]]:
    """Return a frame's puts and its drops; none if they are invalid."""
    try:
        return records_of(frame)
    except Damaged:
        return [], []


def add_puts(puts: PutTable, frame: Frame) -> list[bytes]:
    """Add a frame's puts to the table; return its drops. Raises as `records_of`, with nothing added."""
    if frame.last >= ID_LIMIT:
        records_of(frame)
    try:
        return puts.add(frame.body, frame.first, frame.last)
    except ValueError as exc:
        raise Damaged(str(exc)) from exc


def root_of(put: bytes) -> bytes:
    """Return a put's root: its own id when it never moved."""
    return put[22:38] if put[20] != _NIL else put[ID]


def topic_of(put: bytes) -> bytes:
    """Return a put's topic as UTF-8; empty if the record is not a message. Cost: 0.5 µs."""
    at = 30 if put[20] == _NIL else 47  # after `enqueued_us`
    if put[at - 9 : at - 8] == _UINT64 and put[at] <= _FIXINT_MAX and _FIXSTR <= put[at + 1] <= _FIXSTR_MAX:
        return put[at + 2 : at + 2 + (put[at + 1] - _FIXSTR)]
    try:
        return unpack_put(put).topic.encode()
    except Damaged:
        return b""


def unpack_put(record: bytes) -> Message:
    """Turn a put's bytes into a Message. Cost: about 0.6 µs.

    Raises Damaged when the fields are not those of a put.
    """
    wrong = "a field has the wrong type"
    try:
        kind, id_, root, enqueued_us, attempt, topic, headers, payload = msgpack.unpackb(record)
        if (
            kind == PUT
            and type(payload) is bytes
            and type(topic) is str
            and type(headers) is dict
            and type(enqueued_us) is type(attempt) is int
            and (root is None or (type(root) is bytes and len(root) == 16))
            and (not headers or all(type(v) is str for kv in headers.items() for v in kv))
        ):
            wrong = "a value that no message has"
            # A dead letter was due once: its root is not dead.
            was_due = (id_ if root is None else root) < _DEAD_FLOOR
            if was_due and id_ < ID_LIMIT and enqueued_us >= 0 and 0 <= attempt < _COUNT_END:
                return Message(
                    MessageId(id_),
                    payload,
                    topic,
                    headers,
                    attempt,
                    enqueued_us,
                    None if root is None else MessageId(root),
                )
    except Exception as exc:
        raise Damaged(f"a record that is not a message: {exc!r}") from exc
    raise Damaged(f"a record that is not a message: {wrong}")


def unpack_drop(record: bytes) -> tuple[MessageId, str]:
    """Return a drop's id and the name of its reason."""
    return MessageId(record[ID]), REASONS.get(record[20], f"reason {record[20]}")


def may_have_keys(frame: Frame) -> bool:
    """Return whether a frame may have puts with a unique key. Cost: a search in its bytes."""
    return frame.puts > 0 and _KEY_BYTES in frame.body


def keyed_ids(frame: Frame, hash_of: Callable[[str], bytes]) -> list[tuple[bytes, bytes]]:
    """Return what `keyed_of` does of the puts of a frame; nothing if its records are invalid."""
    if not frame.puts or _KEY_BYTES not in frame.body:
        return []
    return keyed_of(readable_records(frame)[0], hash_of)


def keyed_of(puts: Iterable[bytes], hash_of: Callable[[str], bytes]) -> list[tuple[bytes, bytes]]:
    """Return the hash of the key, and the id, of each put that takes a unique key: of no dead letter.

    Cost: a search in each put; 2 µs for each that has a key.
    """
    pairs = [(key_of(put), put[ID]) for put in puts if _KEY_BYTES in put and put[ID] < _DEAD_FLOOR]
    return [(hash_of(key), id_) for key, id_ in pairs if key is not None]


def key_of(put: bytes) -> str | None:
    """Return the key of a packed put, or None. Cost without a key: a search in its bytes."""
    if _KEY_BYTES not in put:
        return None
    try:
        key = msgpack.unpackb(put)[_HEADERS].get(KEY)
    except Exception:  # msgpack raises more than its own errors
        return None
    return key if type(key) is str else None
