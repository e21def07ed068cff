"""What a message may hold: the limits, and the errors that name them.

Invariant: what passes here can be packed, stored in one frame and shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from filewheel.errors import BadArgument, TooLarge

TOPIC_BYTES_MAX = 255
HEADERS_MAX = 64
HEADERS_BYTES_MAX = 16_384


def bytes_of(payload: object, limit: int) -> bytes:
    """Return a payload as bytes, or raise."""
    if isinstance(payload, str):
        raise BadArgument("a payload is bytes, not str", hint="payload.encode(), or json.dumps(...).encode()")
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise BadArgument(f"a payload is bytes, not {type(payload).__name__}")
    if len(payload) > limit:
        raise TooLarge(
            f"the payload has {len(payload)} bytes; the limit of this wheel is {limit}",
            hint="store it elsewhere and enqueue its name, or make a wheel with a larger payload_bytes_max",
        )
    return bytes(payload)


def check_topic(topic: object) -> None:
    """Raise unless this can be a topic."""
    if not isinstance(topic, str):
        raise BadArgument(f"a topic is a str, not {type(topic).__name__}")
    size = len(_encode(topic, "the topic"))
    if size > TOPIC_BYTES_MAX:
        raise TooLarge(f"the topic has {size} bytes; the limit is {TOPIC_BYTES_MAX}")


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raise unless these can be a message's headers."""
    if not isinstance(headers, Mapping):
        raise BadArgument(f"headers map str to str; this is a {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise TooLarge(f"{len(headers)} headers; the limit is {HEADERS_MAX}")
    size = 0
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise BadArgument(f"headers map str to str; {key!r} maps to {value!r}")
        size += len(_encode(key, "a header")) + len(_encode(value, "a header"))
    if size > HEADERS_BYTES_MAX:
        raise TooLarge(f"the headers have {size} bytes; the limit is {HEADERS_BYTES_MAX}")
    return headers


def _encode(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{what} {text[:40]!r} is not valid Unicode") from None


def check_count(name: str, values: Sequence[object], count: int) -> None:
    """Raise unless a sequence has one value for each payload."""
    if len(values) != count:
        raise BadArgument(f"{name} has {len(values)} values for {count} payloads")


def matches(topic: str, pattern: str) -> bool:
    """Tell whether a topic is this one, or fits this glob."""
    return topic == pattern or (any(c in pattern for c in "*?[") and fnmatchcase(topic, pattern))
