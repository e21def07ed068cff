"""The limits of a message (docs/format.md, 14), and the errors that name them.

Invariant: a message that passes here can be packed, stored in one frame and shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from filewheel.checks import shown, utf8
from filewheel.errors import BadArgument, TooLarge
from filewheel.message import (
    DEAD_US,
    DUE_LIMIT_US,
    ID_BYTES,
    OWN_BYTES_MAX,
    PREFIX,
    RESULT,
    SCHEDULE,
    Message,
    MessageId,
    due_of,
)

TOPIC_BYTES_MAX = 255
KEY_BYTES_MAX = 255
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 16_384
"""Of the user's headers, and OWN_BYTES_MAX of filewheel's: neither takes room from the other."""


def bytes_of(payload: object, limit: int) -> bytes:
    """Return a payload as bytes, or raise."""
    if isinstance(payload, str):
        raise BadArgument("a payload is bytes, not str", hint="payload.encode(), or json.dumps(...).encode()")
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise BadArgument(f"a payload is bytes, not {type(payload).__name__}")
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    if size > limit:
        raise TooLarge(
            f"the payload has {size} bytes; the limit of this wheel is {limit}",
            hint="store it elsewhere and enqueue its name, or make a wheel with a larger payload_bytes_max",
        )
    return bytes(payload)


_HINT = "put what is long into the payload"


def check_topic(topic: object) -> None:
    """Raise unless this is a valid topic."""
    if not isinstance(topic, str):
        raise BadArgument(f"a topic is a str, not {type(topic).__name__}")
    size = len(utf8(topic, "the topic"))
    if size > TOPIC_BYTES_MAX:
        raise TooLarge(f"the topic has {size} bytes; the limit is {TOPIC_BYTES_MAX}", hint=_HINT)


def check_key(key: object) -> str:
    """Return a unique key, or raise."""
    if not isinstance(key, str):
        raise BadArgument(f"a key is a str, not {type(key).__name__}")
    size = len(utf8(key, "the key"))
    if not size:
        raise BadArgument("the key is empty", hint="leave it out for a message without one")
    if size > KEY_BYTES_MAX:
        raise TooLarge(f"the key has {size} bytes; the limit is {KEY_BYTES_MAX}", hint="use a digest of it")
    return key


def check_new_key(key: object, headers: Mapping[str, str] | None) -> str:
    """Return the unique key of a new message, or raise: those of occurrences and results are filewheel's own."""
    key = check_key(key)
    if key.startswith(PREFIX) and {SCHEDULE, RESULT}.isdisjoint(headers or ()):
        raise BadArgument(
            f"the key {key!r} is that of a schedule or a result",
            hint=f"another key: those that begin with {PREFIX} are filewheel's own",
        )
    return key


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raise unless these are valid headers."""
    if not isinstance(headers, Mapping):
        raise BadArgument(f"headers map str to str; this is a {type(headers).__name__}")
    count = size = own_size = 0
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadArgument(f"headers map str to str; {key!r} maps to {value!r}")
        more = len(utf8(key, "a header")) + len(utf8(value, "a header"))
        if key.startswith(PREFIX):
            own_size += more
        else:
            count += 1
            size += more
    if count > HEADERS_MAX:
        raise TooLarge(f"{count} headers; the limit is {HEADERS_MAX}", hint=_HINT)
    if size > HEADERS_BYTES_MAX:
        raise TooLarge(f"the headers have {size} bytes; the limit is {HEADERS_BYTES_MAX}", hint=_HINT)
    if own_size > OWN_BYTES_MAX:
        raise TooLarge(f"the headers {PREFIX}* have {own_size} bytes; the limit is {OWN_BYTES_MAX}", hint=_HINT)
    return headers


def check_message(message: Message, payload_limit: int) -> None:
    """Raise unless this is a valid message."""
    if not isinstance(message, Message):
        raise BadArgument(f"a message is a Message, not {shown(message)}")
    for name, id_ in (("id", message.id), ("root", message.root)):
        if id_ is None and name == "root":
            continue
        if not isinstance(id_, bytes) or len(id_) != ID_BYTES:
            raise BadArgument(f"the {name} of a message is a MessageId, not {shown(id_)}")
        if due_of(id_) >= DUE_LIMIT_US:
            raise BadArgument(f"the {name} {MessageId(id_)} has a due that no message can have")
    if message.root is not None and due_of(message.root) >= DEAD_US:
        raise BadArgument("a root is an id that was due once, not a dead letter's")
    if due_of(message.id) >= DEAD_US and message.root is None:
        raise BadArgument("a dead letter has a root: the id that it had when it was due")
    for name, number in (("attempt", message.attempt), ("enqueued_us", message.enqueued_us)):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
            raise BadArgument(f"{name} is a count, not {shown(number)}")
    check_topic(message.topic)
    check_headers(message.headers)
    bytes_of(message.payload, payload_limit)


def check_count(name: str, values: Sequence[object], count: int) -> None:
    """Raise unless a sequence has one value for each payload."""
    if not isinstance(values, Sequence):
        raise BadArgument(f"{name} is one value for all, or a list with one for each payload, not {shown(values)}")
    if len(values) != count:
        raise BadArgument(f"{name} has {len(values)} values for {count} payloads")


def matches(topic: str, pattern: str) -> bool:
    """Return whether a topic equals this pattern, or fits it as a glob."""
    return topic == pattern or (any(c in pattern for c in "*?[") and fnmatchcase(topic, pattern))
