"""From one occurrence to the next: whether it is called, what follows it, and when.

The next occurrence is written in the frame that settles this one, so a crash leaves one or the other. A scheduler
settles through its verdicts (scheduling/settlements.py). `PlainOccurrences` settles for a consumer that claims with a
Keeper of its own, as `filewheel run` does; the rules are the same.
Invariant: an occurrence that is settled has a successor, unless its schedule is over. One that this program cannot call
waits: what cannot be read here and now, or is not declared here, is not over.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Container
from typing import Protocol

from filewheel.errors import BadArgument
from filewheel.format.ids import MINT
from filewheel.journal.settlement import Settlement
from filewheel.message import (
    DETAILS,
    DUE,
    DUE_END_US,
    HISTORY,
    KEY,
    RESULT,
    SCHEDULE,
    US_PER_S,
    WAITS,
    Message,
    MessageId,
    is_call,
)
from filewheel.runs.run import EXPIRED
from filewheel.schedules.definition import ASTRAY_US, moved_on, schedule_of, without_schedule
from filewheel.schedules.recurrence import is_skipped, next_due

log = logging.getLogger(__name__)

WAIT_US = 300 * US_PER_S
"""A message that this program cannot begin is deferred by this, and then looked at again."""
_WHY_CHARS_MAX = 300


class Now(Protocol):
    """A clock, or a Keeper."""

    def now_us(self) -> int:
        """Return the time that messages fire by."""


def waiting(message: Message, now_us: int, why: str) -> Settlement:
    """Return the settlement of a message that this program cannot begin: it waits, and says why."""
    headers = {**message.headers, DUE: message.headers.get(DUE, str(message.due_us)), WAITS: why[:_WHY_CHARS_MAX]}
    due_us = min(now_us + WAIT_US, DUE_END_US - 1)
    return Settlement(message.id, "deferred", due_us, reason=why, headers=headers, outcome="unknown")


class Occurrences:
    """Computes the next occurrences, and finds those that must not be called. Thread-safe."""

    def __init__(self, declared: Container[str], clock: Now) -> None:
        """`declared` has the names of the schedules that this program declares."""
        self._declared = declared
        self._clock = clock

    def hindrance(self, message: Message) -> str:
        """Return why this program cannot call an occurrence, which waits then; the empty string if it can."""
        stored = schedule_of(message)
        if stored is None:
            return ""
        if stored.is_declared and stored.name not in self._declared:
            return (
                f"the schedule {stored.name!r} waits for a program that declares it, with @scheduler.every(..., "
                f"name={stored.name!r}); {program()} fires now and does not. To end it: filewheel unschedule "
                f"{shlex.quote(stored.name)}"
            )
        return f"the schedule {stored.name!r} cannot be read here: {stored.unreadable}" if stored.unreadable else ""

    def next_of(self, message: Message, started_us: int, *, called: bool = True) -> Message | None:
        """Return the occurrence after one that was started at a time; None when nothing follows.

        One that is not `called` does not count. Raises FilewheelError when that cannot be read here and now.
        """
        stored = schedule_of(message)
        if stored is None:
            return None
        left = stored.left
        if left is not None and called:
            left -= 1
        if left == 0:
            return None
        now_us = self._now_us(message)
        try:
            # A time in the future is from before the clock was put back: it does not count.
            ahead_us = now_us + ASTRAY_US
            was_us, started_us = (now_us if us > ahead_us else us for us in (stored.time_us, started_us))
            time_us = next_due(stored, was_us, started_us, stored.missed)
        except BadArgument:
            return None  # after its end, or the year 9999
        id_ = self._new_id(stored.key, stored.due_us(time_us, message.id))
        kept = {k: v for k, v in message.headers.items() if k not in (HISTORY, DETAILS, DUE, WAITS)}
        kept[KEY] = stored.key
        kept[SCHEDULE] = moved_on(message, left, None if id_.due_us == time_us else time_us)
        return Message(id_, message.payload, message.topic, kept, 0, now_us)

    def is_missed(self, message: Message, now_us: int) -> bool:
        """Return whether an occurrence is not called because it is too late, by the policy of its schedule."""
        stored = schedule_of(message)
        if stored is None or stored.unreadable or message.attempt:
            return False
        since_us = message.waits_since_us
        return is_skipped(message.due_us if since_us is None else since_us, now_us, stored.missed, stored.grace_us)

    def _now_us(self, message: Message) -> int:
        return self._clock.now_us()

    def _new_id(self, key: str, due_us: int) -> MessageId:
        return MINT.id_at(due_us)


class PlainOccurrences:
    """Makes the settlements of claimed messages that may be occurrences of schedules. Thread-safe.

    For a consumer with a Keeper of its own: pass each result to `Keeper.settle`. `Keeper.ack` would end the schedule.
    Messages that are no occurrences are settled as `ack`, `nack` and `bury` do.
    """

    def __init__(self, keeper: Now) -> None:
        self._keeper = keeper
        self._occurrences = Occurrences((), keeper)

    @staticmethod
    def refuses(message: Message) -> bool:
        """Return whether this message must be left to a scheduler: it is a call."""
        return only_a_scheduler_fires(message)

    @staticmethod
    def recurs(message: Message) -> bool:
        """Return whether this is an occurrence that must be settled here: `Keeper.ack` would end its schedule."""
        return SCHEDULE in message.headers and not only_a_scheduler_fires(message)

    def passed_over(self, message: Message) -> Settlement | None:
        """Return the settlement of a message that is not to be started now; None to start it.

        That of an occurrence that is too late to start, under missed="skip"; of one that cannot be read here, which
        waits, with a WARNING in the log; and of a call's result, which has expired: it is dropped.
        """
        if RESULT in message.headers:
            return Settlement(message.id, outcome=EXPIRED)
        if not self.recurs(message):
            return None
        now_us = self._keeper.now_us()
        why = self._occurrences.hindrance(message)
        if why:
            log.warning("%s: %s", message.topic or "-", why)
            return waiting(message, now_us, why)
        if not self._occurrences.is_missed(message, now_us):
            return None
        successor = self._occurrences.next_of(message, now_us, called=False)
        return Settlement(message.id, successor=successor, outcome="missed")

    def succeeded(self, message: Message, started_us: int) -> Settlement:
        """Return the settlement of a message whose work, started at a time, is done."""
        return Settlement(message.id, successor=self._next_of(message, started_us))

    def failed(
        self,
        message: Message,
        started_us: int,
        *,
        delay_us: int | None,
        reason: str = "",
        failed: str | None = None,
        details: str | bytes = "",
    ) -> Settlement:
        """Return the settlement of a message whose work failed: retried after a delay, or buried without one.

        An occurrence is retried only before the next one is due, so a job that always fails does not stop its schedule.
        `reason` is that of a dead letter; `failed` and `details` are kept as its latest attempt (see Keeper.nack).
        """
        successor = self._next_of(message, started_us)
        if delay_us is not None:
            due_us = min(self._keeper.now_us() + delay_us, DUE_END_US - 1)
            if successor is None or due_us < successor.due_us:
                return Settlement(message.id, "retried", due_us, failed=failed, details=details)
        headers = without_schedule(message.headers) if self.recurs(message) else None
        return Settlement(
            message.id, "buried", reason=reason, headers=headers, successor=successor, failed=failed, details=details
        )

    def _next_of(self, message: Message, started_us: int) -> Message | None:
        return self._occurrences.next_of(message, started_us) if self.recurs(message) else None


def only_a_scheduler_fires(message: Message) -> bool:
    """Return whether a message is a call of a handler, or an occurrence of which only a scheduler knows what follows.

    Any other consumer that acknowledges it loses the call, or ends the schedule.
    """
    stored = schedule_of(message)
    return is_call(message.headers) if stored is None else not stored.is_plain


def program() -> str:
    """Return the command of this process, without its arguments, which may be secret."""
    shown = sys.argv[:3] if sys.argv[1:2] == ["work"] else sys.argv[:1]
    return f"process {os.getpid()} (`{shlex.join(shown)}`)"
