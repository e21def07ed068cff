"""The settlement of a call that ended: acknowledged, retried, or dead. Pure functions.

The next occurrence of a schedule follows after any settlement. An occurrence is retried only before the next one is
due, so a job that always fails does not stop its schedule.
Invariant: every outcome of a message leads to exactly one settlement; only a message that succeeded is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from filewheel.journal.settlement import Settlement
from filewheel.message import DUE, DUE_END_US, KEY, SCHEDULE, SKIP_LATE, WAITS, Message
from filewheel.runs.run import EXPIRED
from filewheel.schedules.definition import without_schedule
from filewheel.scheduling.job import Outbox
from filewheel.scheduling.outcome import Outcome, Retry

_EVENTS = {"acked": "acknowledged", "buried": "dead"}


def event_of(settlement: Settlement) -> str:
    """Return the name of the event, and of the counter, of a settlement: acknowledged, retried, dead, skipped, ..."""
    return settlement.outcome or _EVENTS.get(settlement.what, settlement.what)


def succeeded(message: Message, puts: Outbox, successor: Message | None) -> Settlement:
    """Settle a call that returned."""
    return Settlement(message.id, puts=puts.messages, replaces=frozenset(puts.replaces), successor=successor)


def failed(
    message: Message,
    outcome: Outcome,
    retry: Retry,
    now_us: int,
    chance: Callable[[], float],
    successor: Message | None,
    *,
    traced: bool = True,
) -> Settlement:
    """Settle a call that failed; with `traced` its traceback is stored."""
    details = outcome.trace if traced else ""
    delay_us = None
    if outcome.retry_in_us is not None:
        delay_us = outcome.retry_in_us
    elif not outcome.gives_up and not retry.forbids(outcome.ancestry) and message.attempt < retry.limit:
        delay_us = retry.delay_us(message.attempt, chance)
    if delay_us is not None:
        due_us = min(now_us + delay_us, DUE_END_US - 1)
        if successor is None or due_us < successor.due_us:
            return Settlement(message.id, "retried", due_us, failed=outcome.error, details=details)
    tries = message.attempt + 1
    times = "" if tries == 1 else f" (after {tries} attempts)"
    return Settlement(
        message.id,
        "buried",
        reason=f"{outcome.error}{times}",
        headers=_dead(message.headers),
        successor=successor,
        failed=outcome.error,
        details=details,
    )


def killed(message: Message, why: str, successor: Message | None) -> Settlement:
    """Settle a message whose call was killed, and that is not to be tried again."""
    return Settlement(message.id, "killed", successor=successor, failed=why)


def skipped(message: Message, why: str, successor: Message | None) -> Settlement:
    """Settle a message that is too late to start."""
    return Settlement(
        message.id, "buried", reason=why, headers=_dead(message.headers), successor=successor, outcome="skipped"
    )


def passed_over(message: Message, why: str, successor: Message | None) -> Settlement:
    """Settle a message that needs no call: "missed", "stopped" or "coalesced"."""
    return Settlement(message.id, successor=successor, outcome=why)


def expired(message: Message) -> Settlement:
    """Settle the result of a call: nobody calls it, and it is dropped when it is due."""
    return Settlement(message.id, outcome=EXPIRED)


def deferred(message: Message, due_us: int) -> Settlement:
    """Settle a message that a limit of its handler holds back."""
    headers = {k: v for k, v in message.headers.items() if k != WAITS}
    if SKIP_LATE in headers:
        headers.setdefault(DUE, str(message.due_us))
    return Settlement(message.id, "deferred", min(due_us, DUE_END_US - 1), headers=headers)


def buried(message: Message, why: str) -> Settlement:
    """Settle a message without a handler."""
    return Settlement(message.id, "buried", reason=why, headers=_dead(message.headers), outcome="unknown")


def _dead(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a dead letter."""
    kept = without_schedule(headers)
    if SCHEDULE not in headers and KEY in headers:
        kept[KEY] = headers[KEY]  # a revived one takes its key again
    return kept
