"""A settlement: the outcome of one claimed message, and the puts that are written together with it.

A value that a consumer passes to `Keeper.settle`. All of one settlement is one frame, so a crash keeps all of it or
none: the acknowledgement of one step of a chain and the put of the next, the end of one occurrence and the next one.
This module makes the records; the keeper writes them.
Invariant: a message that was cancelled while it ran is dropped and never put back, and its successor is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, get_args

from filewheel.checks import check_whole, shown
from filewheel.errors import BadArgument
from filewheel.format.record import ACKED, BURIED, CANCELLED, RESCHEDULED, RETRIED, pack_drop, pack_message, unpack_put
from filewheel.journal.columns import At, Delay
from filewheel.message import (
    DEAD_US,
    DUE,
    DUE_LIMIT_US,
    REASON,
    WAITS,
    Attempt,
    Message,
    MessageId,
    end_of,
    with_attempt,
)
from filewheel.timespec import at_us, check_due, delay_us, due_from

What = Literal["acked", "retried", "deferred", "buried", "killed"]

_WHATS = get_args(What)
GONE = ("acked", "killed")
"""The outcomes after which the message is gone."""
_REASONS: dict[str, int] = {
    "acked": ACKED,
    "retried": RETRIED,
    "deferred": RESCHEDULED,
    "buried": BURIED,
    "killed": CANCELLED,
}
_MOVED = ("retried", "deferred")
_REASON_BYTES_MAX = 1000


@dataclass(slots=True, frozen=True)
class Settlement:
    """The outcome of a claimed message: done, to be fired again, or dead.

    Raises BadArgument for a wrong `what`, `delay`, `at` or `due_us`, for more than one of these three, and for a time
    when the message is not due again.
    """

    id: bytes
    what: What = "acked"
    """"killed" ends a message whose work was ended by force: dropped as by a cancel, and "killed" in the history."""
    due_us: int = 0
    """When a retried or deferred message is due next; 0, the default, is at once. A retry raises the attempt by one."""
    reason: str = ""
    """Why the message is buried."""
    headers: Mapping[str, str] | None = None
    """The new headers of a message that is retried, deferred or buried; None keeps them."""
    puts: Sequence[Message] = ()
    """Messages with ids of their own that are enqueued in the same frame, for any outcome."""
    replaces: frozenset[bytes] = frozenset()
    """The `puts` that take their unique key from its holder. The others are left out when their key is held."""
    successor: Message | None = None
    """Also enqueued in the same frame, unless the message was cancelled while it ran."""
    _: KW_ONLY
    outcome: str = ""
    """The word for it in the history of runs, such as "missed"; empty for that of `what`."""
    delay: Delay | None = None
    """In place of `due_us`: seconds or a timedelta, counted from `Keeper.settle`."""
    at: At | None = None
    """In place of `due_us`: an aware datetime or epoch seconds."""
    failed: str | None = None
    """Why the attempt failed: a message that is retried or buried keeps it among its `attempts`."""
    details: str | bytes = ""
    """With `failed`: the end of a traceback, or of what a program wrote to stderr. The last 4 KiB are kept."""

    def __post_init__(self) -> None:
        if self.what not in _WHATS:
            raise BadArgument(f"what is one of {', '.join(_WHATS)}, not {shown(self.what)}")
        if not isinstance(self.failed, str | None) or not isinstance(self.details, str | bytes):
            given = shown((self.failed, self.details))
            raise BadArgument(f"failed is a str, and details are a str or bytes, not {given}")
        if not isinstance(self.outcome, str):
            raise BadArgument(f"an outcome is a str, not {shown(self.outcome)}")
        if type(self.due_us) is not int or self.due_us:
            check_due(check_whole("due_us", self.due_us, least=0))
        if self.delay is None and self.at is None:
            return
        if (self.delay is not None and self.at is not None) or self.due_us:
            raise BadArgument("give one of due_us, delay and at")
        if self.what not in _MOVED:
            raise BadArgument(f"a message that is {self.what} is not due again", hint='what="retried" or "deferred"')
        if self.at is not None:
            at_us(self.at)
        if self.delay is not None:
            delay_us(self.delay)

    def timed(self, now_us: int) -> Settlement:
        """Return it with its due time in `due_us`. Raises BadArgument for a time outside 1970 to 9999."""
        if self.delay is None and self.at is None and (self.due_us or self.what not in _MOVED):
            return self
        return replace(self, due_us=due_from(now_us, delay=self.delay, at=self.at), delay=None, at=None)


@dataclass(slots=True)
class Records:
    """The records of one settlement."""

    drops: list[bytes]
    """One, or none when the cancel has written the drop already."""
    puts: list[bytes]
    moved_to: MessageId | None
    """The message's new id, also as a dead letter."""
    enters: list[tuple[str, MessageId]]
    """(key, id) of the puts that hold a unique key."""
    asks: frozenset[bytes]
    """The ids of the puts that are written only if no other message holds their key."""


NewId = Callable[[int], MessageId]


def records_of(settlement: Settlement, put: bytes, cancelled: bool, now_us: int, new_id: NewId, key: str) -> Records:
    """Make a settlement's records from the claimed put. `key` is the name of the header with the unique key."""
    moved = None
    messages = list(settlement.puts)
    if settlement.what not in GONE and not cancelled:
        moved = _moved(settlement, put, now_us, new_id)
        messages.append(moved)
    if settlement.successor is not None and not cancelled:  # mutant: cancelled-succeeded
        messages.append(settlement.successor)
    return Records(
        [] if cancelled else [pack_drop(settlement.id, _REASONS[settlement.what])],
        [pack_message(m) for m in messages],
        None if moved is None else moved.id,
        [(m.headers[key], m.id) for m in messages if key in m.headers and not m.is_dead],
        frozenset(m.id for m in settlement.puts if key in m.headers),
    )


def moved_headers(settlement: Settlement, message: Message, now_us: int) -> dict[str, str]:
    """Return the headers of a message that is retried, deferred or buried."""
    headers = dict(message.headers if settlement.headers is None else settlement.headers)
    if settlement.what != "deferred":  # it began
        headers = {k: v for k, v in headers.items() if k not in (DUE, WAITS)}
    if settlement.failed is None:
        return headers
    return with_attempt(headers, Attempt(now_us, message.attempt, settlement.failed, end_of(settlement.details)))


def _moved(settlement: Settlement, put: bytes, now_us: int, new_id: NewId) -> Message:
    message = unpack_put(put)
    message.root = message.root or message.id
    message.headers = moved_headers(settlement, message, now_us)
    due_us = settlement.due_us
    if settlement.what != "deferred":
        message.attempt += 1
    if settlement.what == "buried":
        due_us = min(DEAD_US + now_us, DUE_LIMIT_US - 1)
        message.headers = {**message.headers, REASON: _cut(settlement.reason)}
    message.id = new_id(due_us)
    return message


def _cut(reason: str) -> str:
    """Return a reason that a header can hold. Error texts may name files that are not valid Unicode."""
    return reason.encode("utf-8", "backslashreplace")[:_REASON_BYTES_MAX].decode("utf-8", "ignore")
