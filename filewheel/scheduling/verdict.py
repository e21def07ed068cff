"""The verdict on a call that ended: acknowledged, retried, or dead. Pure functions.

The next occurrence of a schedule follows after any verdict. An occurrence is retried only before the next one is due,
so a job that always fails does not stop its schedule.
Invariant: every outcome of a message leads to exactly one settlement; only a message that succeeded is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from filewheel.journal.settlement import Settlement
from filewheel.message import DUE, DUE_END_US, KEY, SCHEDULE, SKIP_LATE, WAITS, Attempt, Message, with_attempt
from filewheel.runs.run import EXPIRED
from filewheel.schedules.definition import without_schedule
from filewheel.schedules.occurrences import waiting
from filewheel.scheduling.failure import Failure, Retry
from filewheel.scheduling.job import Outbox

Kind = str
"""The name of an event and a counter: acknowledged, retried, dead, skipped, coalesced, deferred, and others."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The settlement of a message, and its kind for events and counters."""

    kind: Kind
    settlement: Settlement
    delay_us: int = 0


def succeeded(message: Message, puts: Outbox, successor: Message | None) -> Verdict:
    """Return the verdict on a call that returned."""
    return Verdict(
        "acknowledged",
        Settlement(message.id, "acked", puts=puts.messages, replaces=frozenset(puts.replaces), successor=successor),
    )


def failed(
    message: Message,
    failure: Failure,
    retry: Retry,
    now_us: int,
    chance: Callable[[], float],
    successor: Message | None,
    *,
    traced: bool = True,
) -> Verdict:
    """Return the verdict on a call that failed; with `traced` its traceback is stored."""
    kept = {k: v for k, v in message.headers.items() if k not in (DUE, WAITS)}
    details = failure.trace if traced else ""
    headers = with_attempt(kept, Attempt(now_us, message.attempt, failure.text, details))
    delay_us = None
    if failure.retry_in_us is not None:
        delay_us = failure.retry_in_us
    elif not failure.gives_up and not retry.forbids(failure.ancestry) and message.attempt < retry.limit:
        delay_us = retry.delay_us(message.attempt, chance)
    if delay_us is not None:
        due_us = min(now_us + delay_us, DUE_END_US - 1)
        if successor is None or due_us < successor.due_us:
            return Verdict("retried", Settlement(message.id, "retried", due_us, headers=headers), delay_us)
    tries = message.attempt + 1
    times = "" if tries == 1 else f" (after {tries} attempts)"
    return _dead("dead", message, f"{failure.text}{times}", headers, successor)


def killed(message: Message, successor: Message | None) -> Verdict:
    """Return the verdict on a message whose call was killed, and that is not to be tried again."""
    return Verdict("killed", Settlement(message.id, "killed", successor=successor))


def skipped(message: Message, why: str, successor: Message | None) -> Verdict:
    """Return the verdict on a message that is too late to start."""
    return _dead("skipped", message, why, message.headers, successor)


def passed_over(message: Message, kind: Kind, successor: Message | None) -> Verdict:
    """Return the verdict on a message that needs no call."""
    return Verdict(kind, Settlement(message.id, "acked", successor=successor))


def expired(message: Message) -> Verdict:
    """Return the verdict on the result of a call: nobody calls it, and it is dropped when it is due."""
    return Verdict(EXPIRED, Settlement(message.id, "acked", outcome=EXPIRED))


def deferred(message: Message, due_us: int) -> Verdict:
    """Return the verdict on a message that a limit of its handler holds back."""
    headers = None
    if SKIP_LATE in message.headers and DUE not in message.headers:
        headers = {**message.headers, DUE: str(message.due_us)}
    return Verdict("deferred", Settlement(message.id, "deferred", min(due_us, DUE_END_US - 1), headers=headers))


def waits(message: Message, now_us: int, why: str) -> Verdict:
    """Return the verdict on a message that this program cannot begin: it has no handler, or not the schedule."""
    return Verdict("unknown", waiting(message, now_us, why))


def buried(message: Message, why: str, kind: Kind = "dead") -> Verdict:
    """Return the verdict on a message without a handler."""
    return _dead(kind, message, why, message.headers, None)


def _dead(kind: Kind, message: Message, why: str, headers: dict[str, str], successor: Message | None) -> Verdict:
    kept = without_schedule(headers)
    if SCHEDULE not in headers and KEY in headers:
        kept[KEY] = headers[KEY]  # a revived one takes its key again
    return Verdict(kind, Settlement(message.id, "buried", reason=why, headers=kept, successor=successor))
