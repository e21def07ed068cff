"""The arguments of calls and their results as bytes: plain data in msgpack, with tags for what msgpack does not have.

A tag is a map with one key: {"$uuid": text}, {"$decimal": text}, {"$date": text}, {"$time": text} and
{"$duration_us": integer}. A map of the user with one key that begins with "$" gets one "$" more, so that no data can
look like a tag. An Enum is stored as its value, a dataclass as a map of its fields, a set as a list in the order of its
packed values: annotations bring them back (scheduling/arguments.py).
Format: docs/format.md, 7.
Invariant: to decode makes values of the types above and of msgpack only: it imports nothing and looks up no class.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgpack

from filewheel.checks import check_done, moment_us, shown, span_us
from filewheel.errors import BadArgument, Damaged

Encode = Callable[[Any], Any]
"""Turns a value of another type into one that can be stored."""

MSGPACK = "msgpack"
TAGGED = "msgpack+tags"
JSON = "json"
DEPTH_MAX = 100
"""How deep the values of a call may be nested, where one of them needs a tag or an `encode`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAR = b"\xc7\x0c\xff"
"""The head of a timestamp that is after 2514, or before 1970: it may be outside of the calendar."""
_PLAIN = (type(None), bool, int, float, str, bytes, bytearray, memoryview)
_KEYS = (type(None), bool, int, float, str, bytes)
_HINT = (
    "pass None, bool, int, float, str, bytes, list, tuple, set, dict, aware datetime, date, time, timedelta, UUID, "
    "Decimal, Enum or dataclass; or give the scheduler an encode="
)


def pack(value: Any, encode: Encode | None = None, *, what: str = "an argument") -> tuple[bytes, str]:
    """Return a value as bytes, and how they are packed: "msgpack", or "msgpack+tags" if it needs tags.

    Tuples and sets become lists, aware datetimes UTC. `encode` is asked for values of other types. Raises BadArgument.
    """
    tagger = _Tagger(encode)
    try:
        _check_keys(value)
        with suppress(Exception):  # also one of a zone of the program
            return _readable(msgpack.packb(value, datetime=True)), MSGPACK
        # Outside of the handling of that error, which would be shown in each traceback of those below.
        packed = _readable(msgpack.packb(tagger.plain(value, 0), datetime=True))
    except BadArgument as exc:  # of `encode`
        exc.what = f"{what} cannot be stored: {exc.what}"
        raise
    except Exception as exc:
        raise BadArgument(f"{what} cannot be stored: {exc}", hint=_HINT) from None
    return packed, TAGGED if tagger.has_tags else MSGPACK


def _readable(packed: bytes) -> bytes:
    """Return packed values. Raises OverflowError for a time that no datetime in UTC can be: it could not be read."""
    if _FAR in packed:
        msgpack.unpackb(packed, timestamp=3, strict_map_key=False)
    return packed


def unpack(payload: bytes, how: str) -> Any:
    """Return the value that `pack` packed, or that is packed as "json".

    Raises Damaged when it cannot be read.
    """
    try:
        if how == MSGPACK:
            return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)
        if how == TAGGED:
            return msgpack.unpackb(payload, timestamp=3, strict_map_key=False, object_hook=_untagged)
        if how == JSON:
            return json.loads(payload)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
        raise Damaged(f"the arguments cannot be read: {exc}") from exc
    raise Damaged(f"arguments are packed in a way that is not known: {how!r}")


def unpack_call(payload: bytes, how: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a stored call; `how` is the header that names their packing.

    Raises Damaged when they cannot be read.
    """
    if how is None:
        return [payload], {}
    call = unpack(payload, how)
    if isinstance(call, list) and len(call) == 2:
        args, kwargs = call
        if (
            isinstance(args, list)
            and isinstance(kwargs, dict)
            and (not kwargs or all(isinstance(k, str) for k in kwargs))
        ):
            return args, kwargs
    raise Damaged("the payload is not [positional arguments, keyword arguments]")


def _check_keys(value: Any) -> None:
    """Raise TypeError for a dict with a key that msgpack would write, and that could not be read again."""
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, (list, tuple, dict)):
                _check_keys(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, _KEYS):
                raise TypeError(f"the key {shown(key)} of a dict is a {type(key).__name__}")
            if isinstance(item, (list, tuple, dict)):
                _check_keys(item)


class _Tagger:
    """Turns values into what msgpack has."""

    def __init__(self, encode: Encode | None) -> None:
        self._encode = encode
        self.has_tags = False

    def plain(self, value: Any, depth: int) -> Any:
        """Return a value with tags. Raises TypeError, ValueError, BadArgument."""
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
        if isinstance(value, Enum):
            return self.plain(value.value, depth + 1)
        if isinstance(value, datetime):  # also of a subclass, which msgpack does not take
            try:
                return _EPOCH + timedelta(microseconds=moment_us(value))
            except BadArgument as exc:
                raise ValueError(exc.what) from exc
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, list | tuple):
            return [self.plain(item, depth + 1) for item in value]
        if isinstance(value, set | frozenset):  # sorted: the same in every process, whatever its hashes
            return sorted((self.plain(item, depth + 1) for item in value), key=_packed)
        if isinstance(value, dict):
            return self._map(value, depth)
        tagged = _tag_of(value)
        if tagged is not None:
            self.has_tags = True
            return tagged
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return self._map(fields, depth)
        return self._encoded(value, depth)

    def _map(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        for key in value:
            if not isinstance(key, _KEYS):
                raise TypeError(f"the key {shown(key)} of a dict is a {type(key).__name__}")
        made = {key.value if isinstance(key, Enum) else key: self.plain(item, depth + 1) for key, item in value.items()}
        if len(made) == 1 and isinstance(key := next(iter(made)), str) and key.startswith("$"):
            self.has_tags = True
            return {f"${key}": made[key]}
        return made

    def _encoded(self, value: Any, depth: int) -> Any:
        if self._encode is None:
            raise TypeError(f"can not serialize {type(value).__name__!r} object")
        try:
            made = self._encode(value)
            check_done("it", made)
        except Exception as exc:
            raise BadArgument(f"encode= cannot store {shown(value)}: {type(exc).__name__}: {exc}") from exc
        if made is value:
            raise TypeError(f"encode= returned the {type(value).__name__} itself")
        return self.plain(made, depth + 1)


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, datetime=True)
    return packed


def _tag_of(value: Any) -> dict[str, Any] | None:
    """Return the tag of a value of one of the five types; None for any other. Raises ValueError."""
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, Decimal):
        return {"$decimal": Decimal.__str__(value)}
    if isinstance(value, date):
        return {"$date": date.isoformat(value)}
    if isinstance(value, time):
        if value.tzinfo is not None and value.utcoffset() is None:
            raise ValueError("the zone of a time needs a date: pass a datetime")
        return {"$time": time.isoformat(value)}
    if isinstance(value, timedelta):
        return {"$duration_us": span_us(value)}
    return None


_READ: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "$uuid": (str, UUID),
    "$decimal": (str, Decimal),
    "$date": (str, date.fromisoformat),
    "$time": (str, time.fromisoformat),
    "$duration_us": (int, lambda us: timedelta(microseconds=us)),
}


def _untagged(found: dict[Any, Any]) -> Any:
    """Return the value of a tag, or the user's map. Raises ValueError."""
    if len(found) != 1:
        return found
    ((key, value),) = found.items()
    if not isinstance(key, str) or not key.startswith("$"):
        return found
    if key.startswith("$$"):
        return {key[1:]: value}
    kind, read = _READ.get(key, (None, None))
    if kind is None or read is None or not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"the tag {key!r} with {shown(value)} is not known")
    return read(value)
