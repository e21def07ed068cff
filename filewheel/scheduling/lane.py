"""A lane: the calls of one handler that wait for their turn, where the handler has a limit of its own.

A limited handler must not fill the memory nor stand in the way of the others. So a lane holds no more than will soon
have its turn. The keeper passes the rest over, and hands it out when the lane runs dry. How far ahead a lane claims
follows from how soon it needed more: a slow one holds a few messages, a quick one many.
Invariant: at most `concurrency` calls run and at most `rate_per_s` begin each second (bursts of a second's worth).
"""

from __future__ import annotations

import math
import threading
from collections import deque

from filewheel.message import US_PER_S, Message
from filewheel.scheduling.handler import Handler

_SOON_US = US_PER_S // 50
_LATE_US = US_PER_S
"""A lane that needs more sooner than the one claims further ahead, later than the other less far."""


class Bucket:
    """A token bucket: `rate_per_s` tokens a second, at most one second's worth saved, and one at least."""

    def __init__(self, rate_per_s: float, now_us: int) -> None:
        self.rate_per_s = rate_per_s
        self._burst = max(1.0, rate_per_s)
        self._tokens = self._burst
        self._at_us = now_us

    def take(self, now_us: int, want: int) -> int:
        """Take up to `want` tokens; return how many there were."""
        self._tokens = min(self._burst, self._tokens + max(0, now_us - self._at_us) * self.rate_per_s / US_PER_S)
        self._at_us = now_us
        taken = min(want, int(self._tokens))
        self._tokens -= taken
        return taken

    def next_us(self) -> int:
        """Return when there will be a token."""
        missing = max(0.0, 1.0 - self._tokens)
        return self._at_us + math.ceil(missing * US_PER_S / self.rate_per_s)


class Lane:
    """The waiting and running calls of one handler. The dispatcher's thread fills it; any thread may take, and end."""

    def __init__(self, handler: Handler[..., object], slots: int | None, waiting_max: int, now_us: int) -> None:
        terms = handler.terms
        self.handler = handler
        self.slots = slots
        """How many calls may run at once; None for no limit but the runner's."""
        self.waiting: deque[Message] = deque()
        self.running = 0
        self.has_more = False
        """The keeper has passed over messages for this lane."""
        self._least = max(slots or 1, terms.batch or 1)
        self._most = max(waiting_max, self._least)
        self._ahead = min(self._most, max(self._least, int(terms.rate_per_s or 0)))
        """How many messages wait here after a claim; at first what may begin at once."""
        self._bucket = None if terms.rate_per_s is None else Bucket(terms.rate_per_s, now_us)
        self._filled_us = 0
        self._lock = threading.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether messages may have to wait here."""
        return self.slots is not None or self._bucket is not None

    @property
    def is_hungry(self) -> bool:
        """Whether it is time to claim what was passed over."""
        return self.has_more and len(self.waiting) * 2 <= self._ahead

    @property
    def waits_for_slot(self) -> bool:
        """Whether a message waits though a call less runs than may."""
        return self.slots is not None and bool(self.waiting) and self.running < self.slots

    def room(self, left: int) -> int:
        """Return how many messages to take in, where all lanes have room for so many more: enough to stay at work."""
        waits = len(self.waiting)
        return max(0, self._least - waits, min(self._ahead - waits, left))

    def add(self, message: Message, now_us: int) -> None:
        """Let a message wait."""
        if now_us != self._filled_us:  # the first of a claim
            since_us = now_us - self._filled_us
            self._filled_us = now_us
            if self.has_more and 0 <= since_us < _SOON_US:
                self._ahead = min(self._ahead * 2, self._most)
            elif since_us > _LATE_US:
                self._ahead = max(self._ahead // 2, self._least)
        self.waiting.append(message)

    def take(self, now_us: int) -> list[Message]:
        """Return the messages of the next call that may begin now; an empty list when none may.

        A rate counts messages.
        """
        with self._lock:
            if not self.waiting or (self.slots is not None and self.running >= self.slots):
                return []
            count = min(len(self.waiting), self.handler.terms.batch or 1)
            if self._bucket is not None:
                count = self._bucket.take(now_us, count)
            if count:
                self.running += 1
            return [self.waiting.popleft() for _ in range(count)]

    def began(self) -> None:
        """Note that a call has begun that did not wait here."""
        with self._lock:
            self.running += 1

    def ended(self) -> None:
        """Note that a call has ended, or was not begun."""
        with self._lock:
            self.running -= 1

    def next_us(self, now_us: int) -> int | None:
        """Return when a waiting message may begin; None when that depends on another call's end."""
        if not self.waiting or (self.slots is not None and self.running >= self.slots):
            return None
        return now_us if self._bucket is None else self._bucket.next_us()
