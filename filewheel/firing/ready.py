"""The head of what is pending: the messages that fire next, in memory, sorted, and no more than a budget.

Everything pending below `frontier` is here or claimed; everything else is on disk. Going forward, the keeper loads
the next window and the frontier rises. A message that arrives below the frontier joins at its place. When that makes
too many, the latest are let go again and the frontier falls: they are still on disk, so letting go loses nothing.
Memory is therefore bounded whatever arrives, and firing order is (due, writer, sequence) throughout. What a claim
passes over, because the claimer has no room for its topic, waits aside (aside.py).

Invariants: sorted; all ids below the frontier; `waiting[s]` counts the messages of second s that are here or claimed.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from filewheel.firing.aside import Aside
from filewheel.format.record import ID, PUT_PREFIX, topic_of
from filewheel.laps.window import Budget
from filewheel.message import ID_MIN, due_of, id_after
from filewheel.native.compiled import count_seconds, size_of

_INSERT_MAX = 16
_ID_END = ID.stop
_TAKEN_MAX = 8192
_ANY = sys.maxsize

READY_BUDGET = Budget(records=1 << 16, bytes=12 << 20)
"""How much is read ahead of its due time: records and bytes."""


class Ready:
    """The queue in front of the firing. Not thread-safe: the keeper's lock guards it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._puts: list[bytes] = []
        self._head = 0
        self._bytes = 0
        self.aside = Aside(budget)
        self.frontier = ID_MIN
        self.waiting: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._puts) - self._head + len(self.aside)

    def room(self) -> Budget:
        """Return how much more may be loaded."""
        return Budget(self._budget.records - len(self), self._budget.bytes - self._bytes - self.aside.bytes)

    def wants_more(self) -> bool:
        """Tell whether less than half the budget is used."""
        return len(self) * 2 < self._budget.records and (self._bytes + self.aside.bytes) * 2 < self._budget.bytes

    def next_due_us(self) -> int | None:
        """Return when the first message is due that no claim has passed over."""
        return due_of(self._puts[self._head][ID]) if self._head < len(self._puts) else None

    def first_due_us(self) -> int | None:
        """Return when the first message is due."""
        passed = self.aside.first()
        dues = (self.next_due_us(), None if passed is None else due_of(passed))
        return min((us for us in dues if us is not None), default=None)

    # -- coming ----------------------------------------------------------------------------------------------

    def load(self, puts: list[bytes], frontier: bytes) -> None:
        """Add the next window: sorted, and all at or above the present frontier."""
        self._trim()
        self._puts += puts
        self.frontier = frontier
        self._bytes += size_of(puts, _ANY)
        self._note(puts)

    def load_gap(self, topic: bytes, puts: list[bytes], upto: bytes) -> None:
        """Add what was read of a topic's gap, up to an id."""
        self.aside.read(topic, puts, upto)
        self._note(puts)

    def add(self, puts: list[bytes]) -> None:
        """Add messages that arrived below the frontier, in any order; one that is here already is passed by."""
        self._trim()
        puts = self._new(puts)
        puts = self.aside.without_known(puts)
        self._note(puts)
        # First what is overdue of a topic that was passed over: it is claimed before the rest of its topic.
        puts = self.aside.join(puts)
        if len(puts) <= _INSERT_MAX:
            for put in puts:
                insort(self._puts, put, self._head)
        else:
            self._puts += puts
            self._puts.sort()
        self._bytes += size_of(puts, _ANY)
        self._forget(self.aside.let_go())
        if len(self) > self._budget.records or self._bytes + self.aside.bytes > self._budget.bytes:
            self._let_go()

    def _new(self, puts: list[bytes]) -> list[bytes]:
        """Return those that are not here yet, each once: `add` and replicators write a message again."""
        puts = sorted(puts)
        here = self._puts
        at = bisect_left(here, puts[0][:_ID_END], self._head) if puts else 0
        found = []
        before = b""
        for put in puts:
            id_ = put[:_ID_END]
            if id_ != before:
                at = bisect_left(here, id_, at)
                if at == len(here) or here[at][:_ID_END] != id_:
                    found.append(put)
            before = id_
        return found

    def _trim(self) -> None:
        """Drop what was taken from the front of the list, so that it is not sorted again."""
        if self._head:
            del self._puts[: self._head]
            self._head = 0

    def _note(self, puts: list[bytes]) -> None:
        """Count messages as waiting."""
        waiting = self.waiting
        for second, count in count_seconds(puts, ID.start):
            waiting[second] = waiting.get(second, 0) + count

    def _let_go(self) -> None:
        """Forget the latest messages, down to three quarters of the budget. They stay on disk."""
        keep = size = 0
        for put in self._puts:
            size += len(put)
            if keep and (keep >= self._budget.records * 3 // 4 or size > self._budget.bytes * 3 // 4):
                break
            keep += 1
        if keep < len(self._puts):
            self.forget_from(id_after(self._puts[keep - 1][ID]))

    def forget_from(self, floor: bytes) -> None:
        """Forget the messages from an id on, and lower the frontier to it. They stay on disk."""
        if floor < self.frontier:
            keep = bisect_left(self._puts, PUT_PREFIX + floor, self._head)
            gone = self._puts[keep:]
            del self._puts[keep:]
            self._bytes -= size_of(gone, _ANY)
            self.frontier = floor
            self._forget(gone + self.aside.forget_from(floor))

    def _forget(self, gone: list[bytes]) -> None:
        """Count messages as waiting no longer, that lie on disk or are dropped."""
        self.done(put[ID] for put in gone)

    # -- going -----------------------------------------------------------------------------------------------

    def take(self, before: bytes, limit: int, at_most: Mapping[bytes, int] | None = None) -> list[bytes]:
        """Take up to `limit` messages with ids below `before`, in order. They go on counting as waiting.

        Of some topics `at_most` so many are taken; what is over is passed over, and waits aside.
        """
        upto = bisect_left(self._puts, PUT_PREFIX + before, self._head)
        if at_most or self.aside.is_in_use:
            return self._take_some(before, upto, limit, dict(at_most or {}))
        return self._take_upto(min(upto, self._head + limit))

    def _take_upto(self, upto: int) -> list[bytes]:
        taken = self._puts[self._head : upto]
        self._head = upto
        self._bytes -= size_of(taken, _ANY)
        if self._head > _TAKEN_MAX or self._head == len(self._puts):
            self._trim()
        return taken

    def _take_some(self, before: bytes, upto: int, limit: int, at_most: dict[bytes, int]) -> list[bytes]:
        aside, puts = self.aside, self._puts
        taken = aside.take(before, limit, at_most)
        gone = []
        at = self._head
        while at < upto and len(taken) < limit:
            put = puts[at]
            at += 1
            topic = topic_of(put)
            room = at_most.get(topic)
            if topic not in aside and room != 0:
                if room is not None:
                    at_most[topic] = room - 1
                taken.append(put)
            elif not aside.keep(topic, put):
                gone.append(put)
        self._take_upto(at)
        self._forget(gone + aside.let_go())
        taken.sort()
        return taken

    def discard(self, ids: Iterable[bytes]) -> set[bytes]:
        """Take messages out by id; return those that were here."""
        wanted = set(ids)
        if len(wanted) <= _INSERT_MAX:
            gone = []
            for id_ in wanted:
                at = bisect_left(self._puts, PUT_PREFIX + id_, self._head)
                if at < len(self._puts) and self._puts[at][ID] == id_:
                    gone.append(self._puts.pop(at))
        else:
            self._trim()
            gone = [r for r in self._puts if r[ID] in wanted]
            if gone:
                self._puts = [r for r in self._puts if r[ID] not in wanted]
        self._bytes -= size_of(gone, _ANY)
        gone += self.aside.discard(wanted)
        self._forget(gone)
        return {r[ID] for r in gone}

    def done(self, ids: Iterable[bytes]) -> None:
        """Count messages as waiting no longer."""
        waiting = self.waiting
        for second, count in count_seconds(sorted(ids), 0):  # a batch is in order already
            left = waiting.get(second, 0) - count
            if left > 0:
                waiting[second] = left
            else:
                waiting.pop(second, None)
