"""Many calls of one handler that are enqueued together: the calls of `Handler.map`.

Each call is packed and checked before the first is written. The wheel writes them as one commit, with their keys.
Invariant: what is wrong in one of the calls enqueues none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from filewheel import message as names
from filewheel.checks import check_items, shown
from filewheel.errors import BadArgument, KeyHeld
from filewheel.format.ids import MINT, Ids
from filewheel.format.limits import check_message, check_new_key
from filewheel.journal.columns import dues_of
from filewheel.keys.unique import check_policy, key_held
from filewheel.message import Message
from filewheel.scheduling.call import NewCall, Positional, check_callable, pack_call, traced
from filewheel.scheduling.job import Transaction, present_job
from filewheel.scheduling.options import At, CallOptions, Delay, OnConflict
from filewheel.values import Encode

Row = tuple[Sequence[Any], Mapping[str, Any]]
"""The positional and the keyword arguments of one call."""
Kwargs = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def rows_of(calls: Iterable[Any], kwargs: Kwargs | None) -> list[Row]:
    """Return the arguments of each call: a tuple has its positional ones, anything else is the only one.

    `kwargs` are one mapping for all calls, or a sequence with one for each. Raises BadArgument.
    """
    if isinstance(calls, Mapping):
        raise BadArgument("calls are a list with the arguments of each call, not a dict", hint="map([...], kwargs=...)")
    given = [one if isinstance(one, tuple) else (one,) for one in check_items("calls", calls)]
    if kwargs is None or isinstance(kwargs, Mapping):
        return [(args, kwargs or {}) for args in given]
    if not isinstance(kwargs, Sequence) or isinstance(kwargs, (str, bytes, bytearray)):
        raise BadArgument(f"kwargs are a dict for all calls, or a list with one for each, not {shown(kwargs)}")
    _check_length("kwargs", kwargs, len(given))
    return list(zip(given, kwargs, strict=True))


@dataclass(frozen=True, slots=True)
class Columns:
    """When the calls of a map are due, and their keys: each one value for all calls, or one for each."""

    delay: Delay | Sequence[Delay] | None = None
    at: At | Sequence[At] | None = None
    keys: Sequence[str | None] | None = None
    on_conflict: OnConflict = "reject"


@dataclass(frozen=True, slots=True)
class NewCalls:
    """Packed calls of one handler that are not enqueued yet."""

    name: str
    payloads: Sequence[bytes]
    headers: Sequence[dict[str, str]]
    columns: Columns

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of Wheel.enqueue_many for them, without `sync`."""
        first = self.headers[0] if self.headers else None
        same = all(headers == first for headers in self.headers)
        made = {"topic": self.name, "headers": first if same else self.headers, "delay": self.columns.delay}
        return made | {"at": self.columns.at, "keys": self.columns.keys, "on_conflict": self.columns.on_conflict}

    @property
    def rejects(self) -> list[str]:
        """The keys that no other message may hold when the calls join a transaction."""
        keys = [key for key in self.columns.keys or () if key is not None]
        return keys if self.columns.on_conflict == "reject" else []

    def messages(self, now_us: int, held: Mapping[str, Message | None], payload_bytes_max: int) -> list[Message]:
        """Return the messages to add to a transaction; `held` has the messages that hold the keys `rejects`.

        Raises BadArgument, TooLarge, and KeyHeld unless the current job holds the key.
        """
        job = present_job()
        for key, holder in held.items():
            if holder is not None and (job is None or holder.id != job.id):
                raise key_held(key, holder.id, "" if job is None else job.wheel)
        count = len(self.payloads)
        dues = dues_of(now_us, self.columns.delay, self.columns.at, count)
        keys: Sequence[str | None] = [None] * count if self.columns.keys is None else self.columns.keys
        made: list[Message] = []
        for payload, headers, due_us, own in zip(self.payloads, self.headers, dues, keys, strict=True):
            named = headers if own is None else {**headers, names.KEY: own}
            made.append(Message(MINT.id_at(due_us), payload, self.name, named, 0, now_us))
            check_message(made[-1], payload_bytes_max)
        return made

    def join(
        self, transaction: Transaction, now_us: int, held: Mapping[str, Message | None], payload_bytes_max: int
    ) -> Ids:
        """Add them to a transaction; return their ids. Raises as `messages`."""
        messages = self.messages(now_us, held, payload_bytes_max)
        transaction.add(messages, replaces=self.columns.on_conflict == "replace")
        return Ids(b"".join(message.id for message in messages))


def alone(call: NewCall, delay: Delay | None, at: At | None) -> NewCalls:
    """Return one call as a map of one. Raises BadArgument."""
    columns = Columns(None if delay is None else [delay], None if at is None else [at])
    if call.unique:
        check_policy(policy := call.unique["on_conflict"])
        columns = replace(columns, keys=[check_new_key(call.unique["key"], None)], on_conflict=policy)
    return NewCalls(call.name, [call.payload], [call.headers], columns)


def new_calls(
    name: str,
    rows: Sequence[Row],
    options: CallOptions,
    columns: Columns,
    encode: Encode | None = None,
    positional: Positional = list,
) -> NewCalls:
    """Pack calls with their options. They continue the trace of the running job. Raises BadArgument, KeyHeld."""
    check_callable(name)
    if options.key is not None:
        raise BadArgument("many calls cannot have one key", hint='map([...], keys=["...", ...])')
    for name_ in ("delay", "at", "keys"):
        if isinstance(values := getattr(columns, name_), Sequence):
            _check_length(name_, values, len(rows))
    _check_keys(columns)
    stored = traced(options.stored())
    payloads: list[bytes] = []
    headers: list[dict[str, str]] = []
    for at, (args, kwargs) in enumerate(rows):
        with in_call(at):
            payload, how = pack_call(args, kwargs, encode, positional)
        payloads.append(payload)
        headers.append({**stored, names.ARGS: how})
    return NewCalls(name, payloads, headers, columns)


@contextmanager
def in_call(at: int) -> Iterator[None]:
    """Name the call of a map in the errors of its arguments."""
    try:
        yield
    except BadArgument as exc:
        exc.what = f"call {at} of this map (the first is 0): {exc.what}"
        raise


def _check_length(name: str, values: Sequence[object], count: int) -> None:
    if isinstance(values, (str, bytes, bytearray)):
        raise BadArgument(f"{name} is a list with one value for each call, not {shown(values)}")
    if len(values) != count:
        raise BadArgument(f"{name} has {len(values)} values for {count} calls; nothing was enqueued")


def _check_keys(columns: Columns) -> None:
    check_policy(columns.on_conflict)
    if columns.keys is None:
        if columns.on_conflict != "reject":
            raise BadArgument("on_conflict goes with keys", hint='keys=["...", ...]')
        return
    if not isinstance(columns.keys, Sequence):
        raise BadArgument(f"keys are a list with a key or None for each call, not {shown(columns.keys)}")
    seen: dict[str, int] = {}
    for at, key in enumerate(columns.keys):
        if key is None:
            continue
        with in_call(at):
            before = seen.setdefault(check_new_key(key, None), at)
        if before != at and columns.on_conflict == "reject":
            raise KeyHeld(
                f"calls {before} and {at} of this map (the first is 0) have one key, {key!r}; nothing was enqueued",
                key=key,
                hint='give each a key of its own, or say on_conflict="keep" or "replace"',
            )
