"""What is overdue: how fast it is let through after a long stop, and which of it one call does for.

Owns two small memories: messages held back for the asked rate, and when a call last began for each coalescing name.
Both are bounded; losing them in a crash costs a call too many, never one too few.
Invariant: what is held back goes in due order.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from filewheel.message import US_PER_S, Message
from filewheel.scheduling.lane import Bucket

OVERDUE_US = 10 * US_PER_S
"""What is later than that is part of a backlog."""
HELD_MAX = 256
_NAMES_MAX = 10_000
_DEFER_MIN_US = US_PER_S


class Overdue:
    """Holds back and passes over what is overdue. Belongs to the dispatcher's thread."""

    def __init__(self, rate_per_s: float | None, now_us: int, held_max: int = HELD_MAX) -> None:
        self._held_max = max(1, held_max)
        self._bucket = None if rate_per_s is None else Bucket(rate_per_s, now_us)
        self._held: deque[Message] = deque()
        self._horizon_us = 0
        self._begun: OrderedDict[tuple[str, str], int] = OrderedDict()

    # -- the rate ------------------------------------------------------------------------------------------------

    def holds_back(self, message: Message, now_us: int) -> bool:
        """Tell whether a message has to wait for the rate."""
        if self._bucket is None or now_us - message.due_us < OVERDUE_US:
            return False
        return bool(self._held) or not self._bucket.take(now_us, 1)

    def keep(self, message: Message, now_us: int) -> int | None:
        """Hold a message back; or return until when it goes back into the wheel, when enough are held."""
        assert self._bucket is not None
        if len(self._held) < self._held_max:
            self._held.append(message)
            return None
        step_us = math.ceil(US_PER_S / self._bucket.rate_per_s)
        if self._horizon_us < now_us + _DEFER_MIN_US:
            self._horizon_us = now_us + max(_DEFER_MIN_US, step_us * len(self._held))
        self._horizon_us += step_us
        return self._horizon_us

    def take(self, now_us: int) -> list[Message]:
        """Return the messages whose turn has come."""
        if self._bucket is None or not self._held:
            return []
        return [self._held.popleft() for _ in range(self._bucket.take(now_us, len(self._held)))]

    def next_us(self) -> int | None:
        """Return when the next held message has its turn."""
        return self._bucket.next_us() if self._bucket is not None and self._held else None

    # -- coalescing ----------------------------------------------------------------------------------------------

    def is_covered(self, message: Message, name: str, now_us: int) -> bool:
        """Tell whether a call that began after this message was due does for it; if not, its own call begins now."""
        key = message.topic, name
        begun_us = self._begun.get(key)
        # A beginning that lies ahead of now is from before the clock was put back, and covers nothing.
        if begun_us is not None and message.due_us <= begun_us <= now_us and not message.attempt:
            return True
        self._begun[key] = now_us
        self._begun.move_to_end(key)
        if len(self._begun) > _NAMES_MAX:
            self._begun.popitem(last=False)
        return False
