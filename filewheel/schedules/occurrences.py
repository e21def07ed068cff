"""From one occurrence to the next: whether it is called, what follows it, and when.

The next occurrence is written in the frame that settles this one, so a crash leaves one or the other. A scheduler
settles through its verdicts (scheduling/verdict.py). `PlainOccurrences` settles for a consumer that claims with a
Keeper of its own, as `filewheel run` does; the rules are the same.
Invariant: an occurrence that is settled has a successor, unless its schedule is over.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from filewheel.errors import BadArgument
from filewheel.format.ids import MINT
from filewheel.journal.settlement import Settlement
from filewheel.message import DETAILS, DUE_END_US, HISTORY, KEY, RESULT, SCHEDULE, Message, is_call
from filewheel.runs.run import EXPIRED
from filewheel.schedules.definition import ASTRAY_US, StoredSchedule, moved_on, schedule_of, without_schedule
from filewheel.schedules.recurrence import is_skipped, next_due


class Now(Protocol):
    """A clock, or a Keeper."""

    def now_us(self) -> int:
        """Return the time that messages fire by."""


class Occurrences:
    """Computes the next occurrences, and finds those that must not be called. Thread-safe."""

    def __init__(self, declared: Collection[str], clock: Now) -> None:
        """`declared` has the names of the schedules that this program declares."""
        self._declared = declared
        self._clock = clock

    def next_of(self, message: Message, started_us: int, *, called: bool = True) -> Message | None:
        """Return the occurrence after one that was started at a time; None when nothing follows.

        One that is not `called` does not count.
        """
        stored = schedule_of(message)
        if stored is None or self._has_stopped(stored):
            return None
        left = stored.left
        if left is not None and called:
            left -= 1
        if left == 0:
            return None
        now_us = self._clock.now_us()
        try:
            # A time in the future is from before the clock was put back: it does not count.
            ahead_us = now_us + ASTRAY_US
            was_us, started_us = (now_us if us > ahead_us else us for us in (stored.time_us, started_us))
            time_us = next_due(stored, was_us, started_us, stored.missed)
        except BadArgument:
            return None  # after its end, or the year 9999
        due_us = stored.due_us(time_us, message.id)
        kept = {k: v for k, v in message.headers.items() if k not in (HISTORY, DETAILS)}
        kept[KEY] = stored.key
        kept[SCHEDULE] = moved_on(message, left, None if due_us == time_us else time_us)
        return Message(MINT.id_at(due_us), message.payload, message.topic, kept, 0, now_us)

    def fate_of(self, message: Message, now_us: int) -> str | None:
        """Return why an occurrence is not to be called ("missed", "stopped"), or None."""
        stored = schedule_of(message)
        if stored is None:
            return None
        if self._has_stopped(stored):
            return "stopped"
        is_first_try = message.attempt == 0
        late = is_skipped(message.due_us, now_us, stored.missed, stored.grace_us)
        return "missed" if is_first_try and late else None

    def _has_stopped(self, stored: StoredSchedule) -> bool:
        return stored.is_declared and stored.name not in self._declared


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
        """Return whether this message must be left to a scheduler: it is a call, or its schedule cannot be read."""
        return only_a_scheduler_fires(message)

    @staticmethod
    def recurs(message: Message) -> bool:
        """Return whether this is an occurrence that must be settled here: `Keeper.ack` would end its schedule."""
        return SCHEDULE in message.headers and not only_a_scheduler_fires(message)

    def missed(self, message: Message) -> Settlement | None:
        """Return the settlement of an occurrence that is too late to start, under missed="skip"; None to start it.

        Also that of a call's result, which has expired: it is dropped.
        """
        if RESULT in message.headers:
            return Settlement(message.id, outcome=EXPIRED)
        if not self.recurs(message):
            return None
        now_us = self._keeper.now_us()
        if self._occurrences.fate_of(message, now_us) is None:
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
    headers = message.headers
    if SCHEDULE not in headers:
        return is_call(headers)
    stored = schedule_of(message)
    return stored is None or not stored.is_plain
