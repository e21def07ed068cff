"""The call of a handler: its arguments as payload and headers, and the transaction that it may join.

The payload is [positional arguments, keyword arguments] in msgpack or JSON; a header names which (values.py).
Invariant: a call that is enqueued inside a transaction's block is written with the job's acknowledgement, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from filewheel import message as names
from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.format.limits import check_topic
from filewheel.message import ARGS, Message
from filewheel.schedules.definition import Definition
from filewheel.schedules.planting import Plant
from filewheel.scheduling.job import Transaction, present_job, present_transaction
from filewheel.scheduling.options import CallOptions
from filewheel.values import Encode, pack, unpack_call

Positional = Callable[[], Sequence[str]]
"""Returns the names of a function's positional parameters."""

ANY = "*"
"""The name of the handler for every name that no other handler has."""


def check_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise BadArgument unless these are positional and keyword arguments."""
    if isinstance(args, Mapping):
        raise BadArgument("args are positional arguments, not a dict", hint="give those by name as kwargs")
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes, bytearray, memoryview)):
        raise BadArgument(f"args are a list or a tuple, not {shown(args)}", hint=f"args=[{shown(args)}]")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise BadArgument(f"kwargs map names to values, not {shown(kwargs)}")


def pack_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], encode: Encode | None = None, positional: Positional = list
) -> tuple[bytes, str]:
    """Return the arguments of a call as bytes, and how they are packed (values.py). Tuples become lists.

    Raises BadArgument when an argument cannot be stored. It names the argument; `positional` returns the names of the
    positional ones, as far as they are known.
    """
    check_call(args, kwargs)
    try:
        return pack([list(args), dict(kwargs)], encode)
    except BadArgument as exc:
        whole = exc
    known = positional()
    for at, value in enumerate(args):
        pack(value, encode, what=f"the argument {known[at]!r}" if at < len(known) else f"argument {at + 1}")
    for name, value in kwargs.items():
        pack(value, encode, what=f"the argument {name!r}")
    raise whole


class StoredCall(NamedTuple):
    """The call that a message stores: the name of a handler, and its arguments."""

    handler: str
    args: list[Any]
    kwargs: dict[str, Any]


def call_of(message: Message) -> StoredCall:
    """Return the call that a message stores; without stored arguments, its payload is the only argument.

    Raises Damaged when the arguments cannot be read.
    """
    args, kwargs = unpack_call(message.payload, message.headers.get(ARGS))
    return StoredCall(message.topic, args, kwargs)


@dataclass(slots=True, frozen=True)
class NewCall:
    """A packed call that is not enqueued yet."""

    name: str
    payload: bytes
    headers: dict[str, str]
    unique: dict[str, Any]
    """The options of Wheel.enqueue for its key; empty without a key."""


def new_call(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CallOptions,
    encode: Encode | None = None,
    positional: Positional = list,
) -> NewCall:
    """Pack a call with its options. It continues the trace of the running job.

    Raises BadArgument.
    """
    if not name:
        raise BadArgument("a call names its handler")
    check_callable(name)
    headers = traced(options.stored())
    payload, headers[names.ARGS] = pack_call(args, kwargs, encode, positional)
    has_key = options.key is not None or options.on_conflict != "reject"
    unique = {"key": options.key, "on_conflict": options.on_conflict} if has_key else {}
    return NewCall(name, payload, headers, unique)


def traced(headers: dict[str, str]) -> dict[str, str]:
    """Let a call that is enqueued continue the trace of the running job; return its headers."""
    job = present_job()
    if job is not None and names.TRACEPARENT in job.headers:
        headers.setdefault(names.TRACEPARENT, job.headers[names.TRACEPARENT])
    return headers


def transaction_of(path: str) -> Transaction | None:
    """Return the caller's open transaction, if there is one for this wheel."""
    transaction = present_transaction()
    return transaction if transaction is not None and transaction.wheel == path else None


def call_plant(
    definition: Definition, handler: str, args: Sequence[Any], kwargs: Mapping[str, Any], encode: Encode | None
) -> Plant:
    """Return a schedule of calls, as a wheel plants it. Raises BadArgument."""
    check_topic(handler)
    if not handler:
        raise BadArgument("a schedule names the handler that it calls")
    check_callable(handler)
    payload, how = pack_call(args, kwargs, encode)
    return Plant(definition, payload, handler, {ARGS: how})


def check_callable(name: str) -> None:
    """Raise BadArgument for "*", which stands for any name and cannot be called."""
    if name == ANY:
        raise BadArgument(
            f"{ANY!r} is the handler for any other name, and cannot be called", hint='enqueue("a name", ...)'
        )
