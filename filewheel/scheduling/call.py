"""A call as it is stored: positional and keyword arguments in a message's payload.

The arguments travel as msgpack (aware datetimes included, as msgpack's timestamps) or, from a shell, as JSON; a header
says which. Without that header the payload is handed to the handler as it is.
Invariant: what `unpack_call` returns is plain data; no class is ever looked up by a name from a payload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from filewheel.errors import BadArgument, Damaged
from filewheel.headers import ARGS
from filewheel.message import Message

MSGPACK = "msgpack"
JSON = "json"

_PLAIN = "None, bool, int, float, str, bytes, list, tuple, dict and aware datetime"


def check_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise BadArgument unless these are positional and keyword arguments."""
    if isinstance(args, Mapping):
        raise BadArgument("args are positional arguments, not a dict", hint="give those by name as kwargs")
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes, bytearray, memoryview)):
        raise BadArgument(f"args are a list or a tuple, not {args!r}", hint=f"args=[{args!r}]")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise BadArgument(f"kwargs map names to values, not {kwargs!r}")


def pack_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pack the arguments of a call. Tuples come out as lists.

    Raises BadArgument when an argument is no plain data.
    """
    check_call(args, kwargs)
    try:
        packed: bytes = msgpack.packb([list(args), dict(kwargs)], datetime=True)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise BadArgument(
            f"an argument cannot be stored: {exc}",
            hint=f"pass {_PLAIN}: a name or a number to look things up by, not the thing itself",
        ) from exc
    return packed


def pack_json(arguments: object) -> bytes:
    """Pack the arguments of a call as a shell gives them: a list is positional, an object keyword arguments.

    Raises BadArgument when they are something else.
    """
    if not isinstance(arguments, (list, dict)):
        shown = json.dumps(arguments)[:40]
        raise BadArgument(f"args are a JSON list, or an object of keyword arguments, not {shown}", hint='["ann", 2]')
    call = [arguments, {}] if isinstance(arguments, list) else [[], arguments]
    try:
        return json.dumps(call, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as exc:  # NaN, which is no JSON, or half of a surrogate pair
        raise BadArgument(f"args cannot be stored: {exc}") from None


class StoredCall(NamedTuple):
    """What a message asks for: the name of a handler, and what it is called with."""

    handler: str
    args: list[Any]
    kwargs: dict[str, Any]


def call_of(message: Message) -> StoredCall:
    """Return the call that a message stores; of a message without arguments, that with its payload alone.

    Raises Damaged when the arguments cannot be read.
    """
    args, kwargs = unpack_call(message.payload, message.headers.get(ARGS))
    return StoredCall(message.topic, args, kwargs)


def unpack_call(payload: bytes, how: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a stored call; `how` is what its header says.

    Raises Damaged when they cannot be read.
    """
    if how is None:
        return [payload], {}
    try:
        if how == MSGPACK:
            call = msgpack.unpackb(payload, timestamp=3, strict_map_key=False)
        elif how == JSON:
            call = json.loads(payload)
        else:
            raise Damaged(f"arguments are packed in a way that is not known: {how!r}")
        args, kwargs = call
        if (
            isinstance(args, list)
            and isinstance(kwargs, dict)
            and (not kwargs or all(isinstance(k, str) for k in kwargs))
        ):
            return args, kwargs
    except (ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise Damaged(f"the arguments cannot be read: {exc}") from exc
    raise Damaged("the payload is not [positional arguments, keyword arguments]")
