"""A call on its way into the wheel: what it is stored as, and the transaction that it joins if one is open.

Owns what enqueueing means for the schedulers of threads and of event loops alike; how the message is written is theirs.
Invariant: what is enqueued inside of a transaction's block is written with the job's acknowledgement, or never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from filewheel import headers as names
from filewheel.errors import BadArgument
from filewheel.format.limits import check_key, check_message
from filewheel.keys.unique import check_policy, key_held
from filewheel.message import Message
from filewheel.scheduling.call import MSGPACK, pack_call
from filewheel.scheduling.handler import At, Delay, Options, check_callable
from filewheel.scheduling.job import MINT, Transaction, present_job, present_transaction
from filewheel.scheduling.options import headers_of
from filewheel.timespec import due_from


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A call that was packed."""

    name: str
    payload: bytes
    headers: dict[str, str]
    unique: dict[str, Any]
    """The options of Wheel.enqueue that say its key; none when it has no key."""

    @property
    def rejects(self) -> str | None:
        """The key that nobody else may hold when it joins a transaction."""
        return check_key(self.unique["key"]) if self.unique.get("on_conflict") == "reject" else None

    @property
    def replaces(self) -> bool:
        """Whether it takes its key from whoever holds it."""
        return self.unique.get("on_conflict") == "replace"

    def message(
        self, now_us: int, held: Message | None, payload_bytes_max: int, *, delay: Delay | None, at: At | None
    ) -> Message:
        """Return the message to add to a transaction; `held` is the one that has the key that it rejects.

        Raises BadArgument, TooLarge, and KeyHeld unless it is the current job that holds the key.
        """
        headers, job = self.headers, present_job()
        if self.unique:
            check_policy(self.unique["on_conflict"])
            headers = {**headers, names.KEY: check_key(self.unique["key"])}
        if held is not None and (job is None or held.id != job.id):
            raise key_held(headers[names.KEY], held.id, "" if job is None else job.wheel)
        due_us = due_from(now_us, delay=delay, at=at)
        message = Message(MINT.id_at(due_us), self.payload, self.name, headers, 0, now_us)
        check_message(message, payload_bytes_max)
        return message


def outgoing(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> Outgoing:
    """Pack a call with its options. It goes on with the trace of the job that is running.

    Raises BadArgument.
    """
    if not name:
        raise BadArgument("a call names its handler")
    check_callable(name)
    headers = headers_of(
        headers=options.headers, deadline=options.deadline,
        skip_late_s=options.skip_late_s, coalesce=options.coalesce,
    )  # fmt: skip
    headers[names.ARGS] = MSGPACK
    job = present_job()
    if job is not None and names.TRACEPARENT in job.headers:
        headers.setdefault(names.TRACEPARENT, job.headers[names.TRACEPARENT])
    has_key = options.key is not None or options.on_conflict != "reject"
    unique = {"key": options.key, "on_conflict": options.on_conflict} if has_key else {}
    return Outgoing(name, pack_call(args, kwargs), headers, unique)


def transaction_of(path: str) -> Transaction | None:
    """Return the transaction that is open around the caller, if one is, and is one of this wheel."""
    transaction = present_transaction()
    return transaction if transaction is not None and transaction.wheel == path else None
