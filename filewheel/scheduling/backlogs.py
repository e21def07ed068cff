"""The overdue messages of all handlers: one rate for those that share the scheduler's, one for each that has its own.

Invariant: an overdue message counts against one rate, and all backlogs together hold at most `held_max` messages, or
one each.
"""

from __future__ import annotations

from collections.abc import Iterator

from filewheel.message import Message
from filewheel.scheduling.handler import Handler, Handlers
from filewheel.scheduling.lanes import Throttle


class Backlogs:
    """Holds overdue messages back for their rates. Belongs to the dispatcher's thread."""

    def __init__(self, rate_per_s: float | None, now_us: int, held_max: int, handlers: Handlers) -> None:
        own = sum(handler.terms.catch_up_per_s is not None for handler in handlers)
        self.held_max = 0 if rate_per_s is None and not own else held_max
        """How many messages are held back at once."""
        self._each = held_max // (own + 1)
        self._common = Throttle(rate_per_s, now_us, self._each)
        self._own: dict[str, Throttle] = {}
        self.is_covered = self._common.is_covered

    def __iter__(self) -> Iterator[Throttle]:
        yield self._common
        yield from self._own.values()

    def of(self, handler: Handler[..., object], now_us: int) -> Throttle:
        """Return the backlog that a handler's overdue messages belong to."""
        rate_per_s = handler.terms.catch_up_per_s
        if rate_per_s is None:
            return self._common
        own = self._own.get(handler.name)
        if own is None:
            own = self._own[handler.name] = Throttle(rate_per_s, now_us, self._each)
        return own

    def take(self, now_us: int) -> list[Message]:
        """Return the messages that may start now."""
        if not self._own:
            return self._common.take(now_us)
        return [message for overdue in self for message in overdue.take(now_us)]

    def next_us(self) -> int | None:
        """Return when the next held message may start."""
        return min((us for overdue in self if (us := overdue.next_us()) is not None), default=None)
