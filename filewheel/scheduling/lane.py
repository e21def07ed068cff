"""A lane: the calls of one handler that wait for their turn, where the handler has a limit of its own.

A limited handler must not fill the memory nor stand in the way of the others. So a lane holds a bounded number of
messages; what comes beyond is *deferred*: put back into the wheel at the time when its turn is expected. The wheel
itself is the waiting room, and each message moves about once. A lane is brisk when what fills it soon has its turn:
then no more is claimed than it holds, and nothing is deferred only to come back to a handler that has been idle.
Invariant: at most `concurrency` calls run and at most `rate_per_s` begin each second (bursts of a second's worth).
"""

from __future__ import annotations

import math
from collections import deque

from filewheel.message import US_PER_S, Message
from filewheel.scheduling.handler import Handler

_DEFER_MIN_US = US_PER_S
_SURE_CALLS = 32
"""After so many calls it is known how long they take. The first may have waited for an import or a connection."""
_SMOOTH = 16
_WINDOW_US = US_PER_S // 10
"""How often it is asked whether a lane is brisk: so long others may have to wait for what fills one that is not."""
_START_US = US_PER_S
"""A process may take so long to start before its lane is found slow."""


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
    """The waiting and running calls of one handler. Belongs to the dispatcher's thread."""

    def __init__(self, handler: Handler[..., object], slots: int | None, waiting_max: int, now_us: int) -> None:
        terms = handler.terms
        self.handler = handler
        self.slots = slots
        """How many calls may run at once; None for no limit but the runner's."""
        self.waiting: deque[Message] = deque()
        self.running = 0
        self.waiting_max = max(waiting_max, terms.batch or 1)
        """How many messages may wait here."""
        self._bucket = None if terms.rate_per_s is None else Bucket(terms.rate_per_s, now_us)
        self._horizon_us = 0
        self._first_us = 0
        """When the first of those comes back that were deferred since the lane was last able to take all."""
        self._mean_us = 0.0
        self._begun_us = now_us
        self._ended = 0
        self._is_brisk = True
        self._asked_us = now_us
        self._asked_ended = 0

    @property
    def is_limited(self) -> bool:
        """Whether messages may have to wait here."""
        return self.slots is not None or self._bucket is not None

    def full(self, now_us: int) -> bool:
        """Tell whether what comes next has to be deferred.

        Until the first deferred message comes back, it is also while half full, or what comes would overtake those.
        """
        count = len(self.waiting)
        return self.is_limited and (count if now_us >= self._first_us else count * 2) >= self.waiting_max

    def spare(self, now_us: int) -> int | None:
        """Return how many messages this lane takes in, where it is brisk; None where it bounds nothing."""
        if not self.is_limited:
            return None
        is_starting = self.handler.terms.where == "process" and self._ended <= (self.slots or 0)
        if not self.waiting or (is_starting and 0 <= now_us - self._begun_us < _START_US):
            self._ask(now_us, True)
        elif not 0 <= now_us - self._asked_us < _WINDOW_US:
            went = (self._ended - self._asked_ended) * (self.handler.terms.batch or 1)
            self._ask(now_us, went * 4 >= self.waiting_max)
        if not self._is_brisk:
            return None
        most = self.waiting_max if now_us >= self._first_us else (self.waiting_max + 1) // 2  # where it is `full`
        return max(0, most - len(self.waiting))

    def _ask(self, now_us: int, is_brisk: bool) -> None:
        self._is_brisk = is_brisk
        self._asked_us = now_us
        self._asked_ended = self._ended

    def defer_us(self, now_us: int) -> int:
        """Return when the turn of a message is expected that finds the lane full."""
        if self._horizon_us < now_us + _DEFER_MIN_US:
            self._horizon_us = now_us + max(_DEFER_MIN_US, int(self._step_us() * len(self.waiting)))
            self._first_us = self._horizon_us + math.ceil(self._step_us())
        self._horizon_us += math.ceil(self._step_us())
        if self._bucket is None and self._ended < _SURE_CALLS:
            # A guess that is wrong must not leave the lane idle for longer than it has been at work.
            self._horizon_us = min(self._horizon_us, now_us + max(_DEFER_MIN_US, now_us - self._begun_us))
            self._first_us = min(self._first_us, self._horizon_us)
        return self._horizon_us

    def _step_us(self) -> float:
        """Return how far apart two messages begin, as far as can be told."""
        step = 1.0
        if self.slots is not None and self._ended > self.slots:
            step = self._mean_us / self.slots / (self.handler.terms.batch or 1)
        if self._bucket is not None:
            step = max(step, US_PER_S / self._bucket.rate_per_s)
        return step

    def take(self, now_us: int) -> list[Message]:
        """Return the messages of the next call that may begin now; an empty list when none may.

        A rate counts messages.
        """
        if not self.waiting or (self.slots is not None and self.running >= self.slots):
            return []
        count = min(len(self.waiting), self.handler.terms.batch or 1)
        if self._bucket is not None:
            count = self._bucket.take(now_us, count)
        if not count:
            return []
        if not (self.running or self._ended):
            self._begun_us = now_us
        self.running += 1
        return [self.waiting.popleft() for _ in range(count)]

    def ended(self, took_us: int) -> None:
        """Note that a call has ended."""
        self.running -= 1
        self._ended += 1
        if self._ended <= (self.slots or 0) + 1:  # until now it is a guess, or has the starting of processes in it
            self._mean_us = float(took_us)
        else:
            self._mean_us += (took_us - self._mean_us) / _SMOOTH

    def next_us(self, now_us: int) -> int | None:
        """Return when a waiting message may begin; None when that depends on another call's end."""
        if not self.waiting or (self.slots is not None and self.running >= self.slots):
            return None
        return now_us if self._bucket is None else self._bucket.next_us()
