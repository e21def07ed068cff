"""A job: one call of a handler, as the handler sees it; and the transaction that it can enqueue in.

`current_job()` finds the job from anywhere inside of the call, in threads and in coroutines. A message that is enqueued
inside `with job.transaction():` is written in the frame that acknowledges the job, so a chain of steps neither loses
nor repeats a step when a process is killed.
Invariant: the messages of a transaction are written if its block and the handler end without an exception, else never.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from filewheel.errors import BadArgument, Closed, TooLarge
from filewheel.message import US_PER_S, Message, MessageId

_current: ContextVar[Job | None] = ContextVar("filewheel_job", default=None)
_collecting: ContextVar[Transaction | None] = ContextVar("filewheel_transaction", default=None)


BYTES_MAX = 64 << 20
"""The most payload bytes that one transaction holds."""


@dataclass(slots=True, eq=False)
class Outbox:
    """The messages that a job enqueues with its acknowledgement."""

    messages: list[Message] = field(default_factory=list)
    replaces: list[MessageId] = field(default_factory=list)
    """The ids of those that take their key from the message that holds it."""

    def __bool__(self) -> bool:
        return bool(self.messages)


EMPTY_OUTBOX = Outbox()


class Transaction:
    """The messages that a job enqueues together with its own acknowledgement."""

    def __init__(self, wheel: str) -> None:
        self.wheel = wheel
        """The path of the job's wheel; a call for another wheel is enqueued at once."""
        self.puts = Outbox()
        self.is_open = True
        self._bytes = 0

    def add(self, messages: Sequence[Message], *, replaces: bool = False) -> None:
        """Collect messages: all, or none. With `replaces` they take their keys from those that hold them then."""
        if not self.is_open:
            raise Closed("this transaction has ended", hint="enqueue inside of its `with` block")
        size = self._bytes + sum(len(message.payload) for message in messages)
        if size > BYTES_MAX:
            raise TooLarge(
                f"the payloads of this transaction have more than {BYTES_MAX >> 20} MiB; it is written as one frame",
                hint="enqueue smaller payloads, or some of them outside of the block",
            )
        self._bytes = size
        self.puts.messages += messages
        if replaces:
            self.puts.replaces += (message.id for message in messages)


class Job:
    """One call of a handler."""

    __slots__ = ("args", "failed", "handler", "kwargs", "message", "puts", "started_us", "wheel")

    def __init__(
        self, message: Message, handler: str, args: list[Any], kwargs: dict[str, Any], started_us: int, wheel: str
    ) -> None:
        self.message = message
        self.handler = handler
        self.args = args
        self.kwargs = kwargs
        self.started_us = started_us
        self.wheel = wheel
        self.failed: str | None = None
        self.puts = EMPTY_OUTBOX
        """The messages of its transactions: written when this job is acknowledged."""

    @property
    def id(self) -> MessageId:
        """The message's id, which a retry changes."""
        return self.message.id

    @property
    def fire_id(self) -> MessageId:
        """The id that all attempts of this job share: a handler recognizes repetitions by it."""
        return self.message.root or self.message.id

    @property
    def attempt(self) -> int:
        """The number of earlier attempts."""
        return self.message.attempt

    @property
    def due(self) -> datetime:
        """When it was due."""
        return self.message.due

    @property
    def lateness_s(self) -> float:
        """How long after its due time it started."""
        return (self.started_us - self.message.due_us) / US_PER_S

    @property
    def headers(self) -> dict[str, str]:
        """The message's headers."""
        return self.message.headers

    @property
    def enqueued(self) -> tuple[Message, ...]:
        """The messages of its transactions: written when this job is acknowledged."""
        return tuple(self.puts.messages)

    def fail(self, error: str) -> None:
        """Mark this job as failed while the handler continues: for handlers that take several jobs at once."""
        self.failed = str(error)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Collect the calls enqueued in the block, to be written in one frame with this job's acknowledgement.

        If the block or the handler raises, none of them is written.
        """
        if _collecting.get() is not None:
            raise BadArgument("a transaction is open already", hint="enqueue in that one")
        transaction = Transaction(self.wheel)
        token = _collecting.set(transaction)
        try:
            yield transaction
            before, new = self.puts, transaction.puts
            self.puts = Outbox(before.messages + new.messages, before.replaces + new.replaces)
        finally:
            transaction.is_open = False
            _collecting.reset(token)

    def __repr__(self) -> str:
        return f"<Job {self.handler} {self.message.id} attempt {self.attempt}>"


def current_job() -> Job:
    """Return the job that the calling handler works on.

    Raises BadArgument outside of a handler.
    """
    job = _current.get()
    if job is None:
        raise BadArgument("no job: this is not running inside of a handler")
    return job


def present_job() -> Job | None:
    """Return the current job, or None outside of a handler."""
    return _current.get()


def present_transaction() -> Transaction | None:
    """Return the caller's open transaction, if there is one."""
    return _collecting.get()


def enter(job: Job | None) -> Token[Job | None]:
    """Make a job the current one, until `leave`."""
    return _current.set(job)


def leave(token: Token[Job | None]) -> None:
    """Make the previous job the current one again."""
    _current.reset(token)
