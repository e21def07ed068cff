"""The calls of limited handlers that wait for their turn, and the overdue messages that wait for a rate.

A limited handler must not fill the memory or delay the other handlers. So a lane holds only the messages that start
soon. The keeper passes over the rest, and hands it out when the lane runs dry. A lane that runs dry sooner claims
further ahead: a slow lane holds a few messages, a quick one many.
Without pools and priorities, a call goes to its runner at once, and the runner's queue has them in due order. With
them, all calls wait in lanes, and each runner begins only as many as it runs at once. So a call of a higher priority
starts at the next end of a call, whatever was claimed before it. One start of `FAIR` takes the call that was due
first, so a lower priority is slowed down and never stopped. Each pool and priority has its own share of `in_flight`, so
no backlog keeps another one from being claimed.
The memory of `Throttle` is bounded; a crash that loses it costs an extra call, never a missing one.
Invariants: at most `concurrency` calls run and at most `rate_per_s` start each second (bursts of a second's worth);
overdue messages start in due order; at most `slots` calls of a pool run.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping

from filewheel.message import US_PER_S, Message
from filewheel.scheduling.call import ANY
from filewheel.scheduling.handler import Handler, Handlers

FAIR = 10
"""One start of so many ignores priorities."""
_SOON_US = US_PER_S // 50
_LATE_US = US_PER_S
"""A lane that needs messages within `_SOON_US` claims further ahead; after more than `_LATE_US`, less far."""


class Bucket:
    """A token bucket: `rate_per_s` tokens a second; it holds at most one second's worth, and at least one token."""

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
    """The waiting and running calls of one handler. The dispatcher's thread adds; any thread may `take` and `ended`."""

    def __init__(
        self, handler: Handler[..., object], slots: int | None, waiting_max: int, now_us: int, pool: Pool
    ) -> None:
        terms = handler.terms
        self.handler = handler
        self.pool = pool
        """The runner's calls, which this lane has a part in."""
        self.priority = terms.priority
        self.slots = slots
        """How many calls may run at once; None for the runner's limit alone."""
        self.waiting: deque[Message] = deque()
        self.running = 0
        self.has_more = False
        """The keeper has passed over messages for this lane."""
        self._least = max(slots or 1, terms.batch or 1)
        self._most = max(waiting_max, self._least)
        self._ahead = min(self._most, max(self._least, int(terms.rate_per_s or 0)))
        """How many messages wait here after a claim; initially as many as may start at once."""
        self.target: int | None = None
        """With pools, of a lane without limits: how many messages to have claimed."""
        self._bucket = None if terms.rate_per_s is None else Bucket(terms.rate_per_s, now_us)
        self._filled_us = 0

    @property
    def is_limited(self) -> bool:
        """Whether messages may have to wait here."""
        return self.slots is not None or self._bucket is not None

    @property
    def is_hungry(self) -> bool:
        """Whether to claim messages that the keeper passed over."""
        if self.target is not None:
            return self.has_more and self.claimed * 4 <= self.target * 3
        return self.has_more and len(self.waiting) * 2 <= self._ahead

    @property
    def waits_for_slot(self) -> bool:
        """Whether a message waits although another call may run."""
        return self.slots is not None and bool(self.waiting) and self.running < self.slots

    @property
    def claimed(self) -> int:
        """How many messages wait here, or may be with the runner."""
        return len(self.waiting) + self.running * (self.handler.terms.batch or 1)

    def room(self, left: int) -> int:
        """Return how many messages to claim; `left` is the room of all lanes together."""
        waits = len(self.waiting)
        return max(0, self._least - waits, min(self._ahead - waits, left))

    def add(self, message: Message, now_us: int) -> None:
        """Add a message that waits."""
        if now_us != self._filled_us:  # the first message of a claim
            since_us = now_us - self._filled_us
            self._filled_us = now_us
            if self.has_more and 0 <= since_us < _SOON_US:
                self._ahead = min(self._ahead * 2, self._most)
            elif since_us > _LATE_US:
                self._ahead = max(self._ahead // 2, self._least)
        self.waiting.append(message)

    def take(self, now_us: int) -> list[Message]:
        """Return the messages of the next call that may start now; an empty list when none may.

        A rate counts messages.
        """
        with self.pool.lock:
            return self.take_unlocked(now_us)

    def take_unlocked(self, now_us: int) -> list[Message]:
        """Do as `take`, in a thread that has the lock of the pool."""
        if not self.waiting or (self.slots is not None and self.running >= self.slots):
            return []
        count = min(len(self.waiting), self.handler.terms.batch or 1)
        if self._bucket is not None:
            count = self._bucket.take(now_us, count)
        if count:
            self.running += 1
            self.pool.running += 1
        return [self.waiting.popleft() for _ in range(count)]

    def began(self) -> None:
        """Count a call that started without waiting here."""
        with self.pool.lock:
            self.running += 1
            self.pool.running += 1

    def ended(self) -> None:
        """Count a call that ended, or did not start."""
        with self.pool.lock:
            self.running -= 1
            self.pool.running -= 1

    def next_us(self, now_us: int) -> int | None:
        """Return when a waiting message may start; None when it waits for the end of another call."""
        if not self.waiting or (self.slots is not None and self.running >= self.slots):
            return None
        return now_us if self._bucket is None else self._bucket.next_us()


class Pool:
    """The calls of one runner: how many run, and which is next. Thread-safe; its lanes share its lock."""

    def __init__(self, place: str, slots: int | None) -> None:
        self.place = place
        """The name of the runner."""
        self.slots = slots
        """How many calls may run at once; None for the limits of their handlers alone."""
        self.lock = threading.Lock()
        self.running = 0
        self.lanes: list[Lane] = []
        self._starts = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether another call may run."""
        return self.slots is None or self.running < self.slots

    @property
    def waits_for_slot(self) -> bool:
        """Whether a call waits that may start, unless its rate forbids it."""
        return self.has_free_slot and any(
            lane.waiting and (lane.slots is None or lane.running < lane.slots) for lane in self.lanes
        )

    def take(self, now_us: int) -> tuple[Lane, list[Message]] | None:
        """Return the lane and the messages of the call that starts now; None when none may."""
        with self.lock:
            if not self.has_free_slot:
                return None
            waiting = [lane for lane in self.lanes if lane.waiting]
            is_fair = self._starts % FAIR == FAIR - 1
            waiting.sort(key=lambda lane: (0 if is_fair else -lane.priority, lane.waiting[0].id))
            for lane in waiting:
                messages = lane.take_unlocked(now_us)
                if messages:
                    self._starts += 1
                    return lane, messages
        return None

    def next_us(self, now_us: int) -> int | None:
        """Return when a call may start that waits for its rate alone."""
        times = [lane.next_us(now_us) for lane in self.lanes] if self.has_free_slot else []
        return min((us for us in times if us is not None), default=None)


class Lanes:
    """The lanes of all handlers, by name, and their pools. For the dispatcher's thread, except `ended`."""

    def __init__(
        self,
        handlers: Handlers,
        slots: Mapping[str, int | None],
        in_flight: int,
        pools: Mapping[str, int] | None = None,
        held_max: int = 0,
    ) -> None:
        """`slots` is how many calls of one handler may be with its runner, `pools` how many with each runner.

        `held_max` is how many messages of `in_flight` are held back elsewhere.
        """
        self._handlers = handlers
        self._slots = slots
        self._in_flight = in_flight
        self._held_max = held_max
        self._sizes = pools or {}
        self._by_name: dict[str, Lane] = {}
        self.pools: dict[str, Pool] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._by_name.values())

    def ended(self, handler: Handler[..., object]) -> Lane | None:
        """Count a call of a handler that ended, or did not start; return its lane. Thread-safe."""
        lane = self._by_name.get(handler.name)
        if lane is not None:
            lane.ended()
        return lane

    def of(self, handler: Handler[..., object], now_us: int) -> Lane:
        """Return the lane of a handler; make it if it is missing."""
        lane = self._by_name.get(handler.name)
        if lane is None or lane.handler is not handler:
            self._by_name[handler.name] = made = self._make(handler, now_us)
            with made.pool.lock:
                made.pool.lanes = [*(each for each in made.pool.lanes if each is not lane), made]
            lane = made
        return lane

    def _make(self, handler: Handler[..., object], now_us: int) -> Lane:
        place = handler.terms.place
        pool = self.pools.get(place)
        if pool is None:
            pool = self.pools[place] = Pool(place, self._sizes.get(place))
        slots = [s for s in (handler.terms.concurrency, self._slots.get(place)) if s is not None]
        return Lane(handler, min(slots, default=None), self._in_flight // 4, now_us, pool)

    def next(self, lane: Lane, now_us: int) -> tuple[Lane, list[Message]] | None:
        """Return the next call that may start: of a lane, or with pools of any lane of its pool. Thread-safe."""
        if self._handlers.has_pools:
            return lane.pool.take(now_us)
        messages = lane.take(now_us)
        return (lane, messages) if messages else None

    def next_us(self, now_us: int) -> int | None:
        """Return when a call may start that waits for its rate alone."""
        queues = self.pools.values() if self._handlers.has_pools else self._by_name.values()
        return min((us for queue in queues if (us := queue.next_us(now_us)) is not None), default=None)

    def has_next(self, lane: Lane) -> bool:
        """Return whether a call may follow one of this lane that has ended. Thread-safe."""
        return bool(lane.waiting) or (self._handlers.has_pools and lane.pool.waits_for_slot)

    def lacks(self, lane: Lane) -> bool:
        """Return whether to start or to claim calls, now that a call of a lane has ended. Thread-safe."""
        if not self._handlers.has_pools:
            return lane.waits_for_slot or lane.is_hungry
        return lane.pool.waits_for_slot or any(each.is_hungry for each in lane.pool.lanes)

    def rooms(self, now_us: int) -> dict[str, int]:
        """Return how many messages to claim for each limited handler; together they leave room for the others."""
        if len(self._by_name) < len(self._handlers):
            for handler in self._handlers:
                self.of(handler, now_us)
        if self._handlers.has_pools:
            return self._shared_rooms()
        left = self._in_flight // 2 - sum(len(lane.waiting) for lane in self)
        rooms = {}
        for name, lane in self._by_name.items():
            if lane.is_limited:
                rooms[name] = lane.room(left)
                left -= rooms[name]
        return rooms

    def _shared_rooms(self) -> dict[str, int]:
        """Return how many messages to claim for each handler, and with ANY for all names that have none."""
        groups: dict[tuple[str, int], list[Lane]] = {}
        for lane in self:
            groups.setdefault((lane.pool.place, lane.priority), []).append(lane)
        share = max(1, (self._in_flight - self._held_max) // (len(groups) + 1))
        rooms = {ANY: share}  # without a handler for any name, those calls are settled at once
        for lanes in groups.values():
            left = share - sum(lane.claimed for lane in lanes)
            limited = [lane for lane in lanes if lane.is_limited]
            waits = share // 2 - sum(len(lane.waiting) for lane in limited)
            for lane in limited:
                room = rooms[lane.handler.name] = max(0, min(left, lane.room(waits)))
                left, waits = left - room, waits - room
            others = [lane for lane in lanes if not lane.is_limited]
            for lane in others:
                lane.target = max(1, share // len(others))
                room = rooms[lane.handler.name] = max(0, min(left, lane.target - lane.claimed))
                left -= room
        return rooms

    def __getitem__(self, name: str) -> Lane:
        """Return the lane of a name."""
        return self._by_name[name]

    def get(self, name: str) -> Lane | None:
        """Return the lane of a name, or None."""
        return self._by_name.get(name)


def bounds_of(rooms: Mapping[str, int]) -> dict[str, int]:
    """Return the rooms as the bounds of a claim, in which the name of a handler is no glob. ANY is the last."""
    bounds = {"".join(f"[{c}]" if c in "*?[" else c for c in name): n for name, n in rooms.items() if name != ANY}
    return bounds if ANY not in rooms else {**bounds, ANY: rooms[ANY]}


OVERDUE_US = 10 * US_PER_S
"""A message that is later than this belongs to a backlog."""
HELD_MAX = 256
_NAMES_MAX = 10_000
_DEFER_MIN_US = US_PER_S


class Throttle:
    """Holds back overdue messages for the rate, and coalesces them. Belongs to the dispatcher's thread."""

    def __init__(self, rate_per_s: float | None, now_us: int, held_max: int = HELD_MAX) -> None:
        self._held_max = max(1, held_max)
        self._bucket = None if rate_per_s is None else Bucket(rate_per_s, now_us)
        self._held: deque[Message] = deque()
        self._horizon_us = 0
        self._begun: OrderedDict[tuple[str, str], int] = OrderedDict()

    # -- the rate ------------------------------------------------------------------------------------------------

    def holds_back(self, message: Message, now_us: int) -> bool:
        """Return whether a message has to wait for the rate."""
        if self._bucket is None or now_us - message.due_us < OVERDUE_US:
            return False
        return bool(self._held) or not self._bucket.take(now_us, 1)

    def keep(self, message: Message, now_us: int) -> int | None:
        """Hold a message back and return None; when enough are held, return the time to defer it to instead."""
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
        """Return the messages that may start now."""
        if self._bucket is None or not self._held:
            return []
        return [self._held.popleft() for _ in range(self._bucket.take(now_us, len(self._held)))]

    def next_us(self) -> int | None:
        """Return when the next held message may start."""
        return self._bucket.next_us() if self._bucket is not None and self._held else None

    # -- coalescing ----------------------------------------------------------------------------------------------

    def is_covered(self, message: Message, name: str, now_us: int) -> bool:
        """Return whether a call that started after this message was due covers it; if not, its own call starts now."""
        key = message.topic, name
        begun_us = self._begun.get(key)
        # A start in the future is older than a step back of the clock: it covers nothing.
        if begun_us is not None and message.due_us <= begun_us <= now_us and not message.attempt:
            return True
        self._begun[key] = now_us
        self._begun.move_to_end(key)
        if len(self._begun) > _NAMES_MAX:
            self._begun.popitem(last=False)
        return False
