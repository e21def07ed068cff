"""The ready queue: the messages that fire next, in memory, sorted and bounded.

`Ready` holds every pending message below `frontier` that is not claimed; all others are on disk. The keeper loads the
next window of ids, and the frontier rises. A message that arrives below the frontier is inserted at its place. When
the queue then exceeds its budget, it releases the latest messages and the frontier falls. They are still on disk, so
nothing is lost. Memory is bounded for any load, and messages fire in the order (due, writer, sequence).

`Aside` holds the due messages that a claim passed over because the claimer has no room for their topic. They wait in
order, by share (shares.py), so that no later claim has to step over them. This memory is bounded too: the latest
messages of the largest share are released, their range of ids becomes the share's gap, and they are read from disk
after the rest was claimed. So the backlog of one share neither fills the memory nor hides other topics, and nothing is
written for it.

Due messages that a pause holds are not kept in memory at all, only the seconds that they are in. When a pause ends, the
frontier falls to the first of these, and they are read from disk again.

Invariants: the queue is sorted and all its ids are below the frontier. `waiting[s]` counts the messages of second s
that are here or claimed; `held` has the seconds of those that a pause holds. For a share with a gap, all its messages
below the gap are here and none within it; a gap ends below the frontier.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping

from filewheel.firing.shares import Layout
from filewheel.format.record import ID, PUT_PREFIX
from filewheel.laps.window import Budget
from filewheel.message import ID_MIN, US_PER_S, due_of, id_after, id_floor
from filewheel.native.compiled import count_seconds, size_of

_SHARE = 4


class Aside:
    """Due messages that wait for room, by share. Not thread-safe: the keeper's lock guards it."""

    def __init__(self, budget: Budget) -> None:
        self.budget = Budget(max(1, budget.records // _SHARE), max(1, budget.bytes // _SHARE))
        """A part of the ready queue's budget: the rest is for shares that have room."""
        self.layout = Layout()
        """Which share a topic belongs to. A topic that no key names is a share of its own."""
        self._puts: dict[bytes, list[bytes]] = {}
        self._gaps: dict[bytes, tuple[bytes, bytes]] = {}
        """Share → the range of ids (from, below) whose messages are on disk only."""
        self.count = 0
        """How many messages are here."""
        self.bytes = 0

    def __contains__(self, share: bytes) -> bool:
        return share in self._puts or share in self._gaps

    @property
    def is_in_use(self) -> bool:
        """Whether there are messages here, or in a gap."""
        return bool(self._puts or self._gaps)

    def floor(self, frontier: bytes) -> bytes:
        """Return the id below which no pending message is on disk only."""
        return min((start for start, _ in self._gaps.values()), default=frontier)

    def first(self) -> bytes | None:
        """Return the first id of all messages here, or in a gap."""
        starts = [start for start, _ in self._gaps.values()]
        return min([*(puts[0][ID] for puts in self._puts.values()), *starts], default=None)

    # -- coming ------------------------------------------------------------------------------------------------

    def keep(self, share: bytes, put: bytes) -> bool:
        """Keep a message that was passed over; False when it is after a gap of its share, and stays on disk."""
        id_ = put[ID]
        gap = self._gaps.get(share)
        if gap is not None and id_ >= gap[0]:
            self._gaps[share] = gap[0], max(gap[1], id_after(id_))
            return False
        puts = self._puts.setdefault(share, [])
        if puts and put < puts[-1]:
            insort(puts, put)
        else:
            puts.append(put)
        self.count += 1
        self.bytes += len(put)
        return True

    def join(self, puts: list[bytes]) -> list[bytes]:
        """Keep the puts that precede a waiting message of their share; return the others."""
        return [put for put in puts if not self._joins(put)] if self.is_in_use else puts

    def _joins(self, put: bytes) -> bool:
        share = self.layout.share_of(put)
        gap, puts = self._gaps.get(share), self._puts.get(share)
        # It is before the gap, or before the last message that was passed over, so it is due too.
        is_before = put[ID] < gap[0] if gap is not None else puts is not None and put < puts[-1]
        return is_before and self.keep(share, put)

    def without_known(self, puts: list[bytes]) -> list[bytes]:
        """Return the puts that are neither here nor in a gap, which is read later."""
        return [put for put in puts if not self._knows(put)] if self.is_in_use else puts  # mutant: gap-known-twice

    def _knows(self, put: bytes) -> bool:
        share, id_ = self.layout.share_of(put), put[ID]
        gap = self._gaps.get(share)
        if gap is not None and gap[0] <= id_ < gap[1]:
            return True
        puts = self._puts.get(share, ())
        at = bisect_left(puts, PUT_PREFIX + id_)
        return at < len(puts) and puts[at][ID] == id_

    def lacking(self, at_most: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield each share with room and only a gap left, and the gap, until some of it was read."""
        for share in list(self._gaps):
            while share not in self._puts and at_most.get(share, 1) > 0 and (gap := self._gaps.get(share)) is not None:
                yield share, *gap

    def lacks(self, at_most: Mapping[bytes, int]) -> bool:
        """Return whether messages of a share with room are on disk only."""
        return any(at_most.get(share, 1) > 0 for share in self._gaps)

    def read(self, share: bytes, puts: Iterable[bytes], upto: bytes) -> None:
        """Add the messages read from a gap, from its start to below an id."""
        start, end = self._gaps.pop(share)
        if upto < end:
            self._gaps[share] = upto, end
        for put in puts:
            assert start <= put[ID] < upto
            self.keep(share, put)

    # -- going -------------------------------------------------------------------------------------------------

    def take(self, before: bytes, limit: int, at_most: MutableMapping[bytes, int]) -> list[bytes]:
        """Take up to `limit` messages below an id, in order, of shares that have room; lower that room."""
        found: list[tuple[bytes, bytes]] = []
        for share, puts in self._puts.items():
            # mutant: passed-over-early
            room = min(limit, at_most.get(share, limit), bisect_left(puts, PUT_PREFIX + before))
            found += [(put, share) for put in puts[:room]]
        found.sort()
        del found[limit:]
        counts: dict[bytes, int] = {}
        for _, share in found:
            counts[share] = counts.get(share, 0) + 1
        for share, count in counts.items():
            if share in at_most:
                at_most[share] -= count
            self._remove(share, 0, count)
        return [put for put, _ in found]

    def discard(self, ids: Iterable[bytes]) -> list[bytes]:
        """Remove messages by id; return those that were here."""
        gone: list[bytes] = []
        for share, puts in list(self._puts.items()):
            for id_ in ids:
                at = bisect_left(puts, PUT_PREFIX + id_)
                if at < len(puts) and puts[at][ID] == id_:
                    gone += self._remove(share, at, at + 1)
        return gone

    def forget_from(self, floor: bytes) -> list[bytes]:
        """Forget the messages from an id on, which are read again later; return those that were here."""
        for share, (start, end) in list(self._gaps.items()):
            del self._gaps[share]
            if start < floor:
                self._gaps[share] = start, min(end, floor)
        gone: list[bytes] = []
        for share, puts in list(self._puts.items()):
            gone += self._remove(share, bisect_left(puts, PUT_PREFIX + floor), len(puts))
        return gone

    def let_go(self) -> list[bytes]:
        """Forget the latest messages of the largest shares until the rest fits; return the forgotten ones."""
        gone: list[bytes] = []
        while self.count > self.budget.records or self.bytes > self.budget.bytes:
            share = max(self._puts, key=lambda share: len(self._puts[share]))
            puts = self._puts[share]
            start, end = puts[len(puts) // 2][ID], id_after(puts[-1][ID])
            self._gaps[share] = start, max(end, self._gaps.get(share, (b"", b""))[1])
            gone += self._remove(share, len(puts) // 2, len(puts))
        return gone

    def _remove(self, share: bytes, start: int, end: int) -> list[bytes]:
        puts = self._puts[share]
        gone = puts[start:end]
        del puts[start:end]
        if not puts:
            del self._puts[share]
        self.count -= len(gone)
        self.bytes -= sum(map(len, gone))
        return gone


_INSERT_MAX = 16
_ID_END = ID.stop
_TAKEN_MAX = 8192
_ANY = sys.maxsize

READY_BUDGET = Budget(records=1 << 16, bytes=12 << 20)
"""How much is read ahead of its due time: records and bytes."""


class Ready:
    """The queue of messages that fire next. Not thread-safe: the keeper's lock guards it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.begin_again(())

    def begin_again(self, claimed: Iterable[bytes]) -> None:
        """Forget everything but which messages are claimed: all others are on disk, and are read again."""
        self._puts: list[bytes] = []
        self._head = 0
        self._bytes = 0
        self.aside = Aside(self._budget)
        self._keys: list[bytes] = []
        self.frontier = ID_MIN
        self.waiting: dict[int, int] = dict(count_seconds(sorted(claimed), 0))
        self.held: set[int] = set()

    def __len__(self) -> int:
        return len(self._puts) - self._head + self.aside.count

    def room(self) -> Budget:
        """Return how much more may be loaded."""
        return Budget(self._budget.records - len(self), self._budget.bytes - self._bytes - self.aside.bytes)

    def wants_more(self) -> bool:
        """Return whether less than half the budget is used."""
        return len(self) * 2 < self._budget.records and (self._bytes + self.aside.bytes) * 2 < self._budget.bytes

    def next_due_us(self) -> int | None:
        """Return the due time of the first message that no claim has passed over."""
        return due_of(self._puts[self._head][ID]) if self._head < len(self._puts) else None

    def first_due_us(self) -> int | None:
        """Return the due time of the first message."""
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

    def load_gap(self, share: bytes, puts: list[bytes], upto: bytes) -> None:
        """Add the messages read from a share's gap, up to an id."""
        self.aside.read(share, puts, upto)
        self._note(puts)

    def add(self, puts: list[bytes]) -> None:
        """Add messages that arrived below the frontier, in any order; ignore one that is here already."""
        self._trim()
        puts = self._new(puts)  # mutant: ready-twice
        puts = self.aside.without_known(puts)
        self._note(puts)
        # First the overdue messages of topics that were passed over: they are claimed before the rest of their topic.
        puts = self.aside.join(puts)  # mutant: newcomer-late
        if len(puts) <= _INSERT_MAX:
            for put in puts:
                insort(self._puts, put, self._head)
        else:
            self._puts += puts
            self._puts.sort()
        self._bytes += size_of(puts, _ANY)
        self._forget(self.aside.let_go())
        if len(self) > self._budget.records or self._bytes + self.aside.bytes > self._budget.bytes:
            self._shrink()

    def _new(self, puts: list[bytes]) -> list[bytes]:
        """Return the puts that are not here yet, each once: `add` and replicators write a message again."""
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
        """Remove the taken messages from the front of the list, so that they are not sorted again."""
        if self._head:
            del self._puts[: self._head]
            self._head = 0

    def _note(self, puts: list[bytes]) -> None:
        """Count messages as waiting."""
        waiting = self.waiting
        for second, count in count_seconds(puts, ID.start):
            waiting[second] = waiting.get(second, 0) + count

    def _shrink(self) -> None:
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
            self.frontier = floor  # mutant: frontier-stays
            self._forget(gone + self.aside.forget_from(floor))

    def release_held(self) -> None:
        """Lower the frontier to the first message that a pause held, so that all of them are read again."""
        if self.held:
            floor = id_floor(min(self.held) * US_PER_S)
            self.held.clear()
            self.forget_from(floor)

    def _forget(self, gone: list[bytes]) -> None:
        """Stop counting messages as waiting: they are on disk only, or dropped."""
        self.done(put[ID] for put in gone)

    # -- going -----------------------------------------------------------------------------------------------

    def lay_out(self, keys: list[bytes]) -> None:
        """Sort topics into shares by these keys; when that changes, what was passed over is read again, from disk."""
        if keys == self._keys:
            return
        self._keys, layout = keys, Layout(keys)
        if layout != self.aside.layout:
            start = self.aside.first()
            if start is not None:
                self.forget_from(start)  # mutant: shares-mixed
            self.aside.layout = layout

    def take(
        self,
        before: bytes,
        limit: int,
        at_most: MutableMapping[bytes, int],
        is_held: Callable[[bytes], bool] | None = None,
    ) -> list[bytes]:
        """Take up to `limit` messages with ids below `before`, in order. They still count as waiting.

        Of a share in `at_most` only so many are taken, and its room falls; the others are passed over and wait aside.
        Those for which `is_held` returns True are passed over and leave the memory.
        """
        upto = bisect_left(self._puts, PUT_PREFIX + before, self._head)
        if at_most or is_held is not None or self.aside.is_in_use:
            return self._take_some(before, upto, limit, at_most, is_held)
        return self._take_upto(min(upto, self._head + limit))

    def _take_upto(self, upto: int) -> list[bytes]:
        taken = self._puts[self._head : upto]
        self._head = upto
        self._bytes -= size_of(taken, _ANY)
        if self._head > _TAKEN_MAX or self._head == len(self._puts):
            self._trim()
        return taken

    def _take_some(
        self,
        before: bytes,
        upto: int,
        limit: int,
        at_most: MutableMapping[bytes, int],
        is_held: Callable[[bytes], bool] | None,
    ) -> list[bytes]:
        aside, puts, share_of = self.aside, self._puts, self.aside.layout.share_of
        taken = aside.take(before, limit, at_most)
        gone = []
        held: list[bytes] = []
        if is_held is not None:
            held = [put for put in taken if is_held(put)]
            taken = [put for put in taken if not is_held(put)]
        at = self._head
        while at < upto and len(taken) < limit:
            put = puts[at]
            at += 1
            if is_held is not None and is_held(put):
                held.append(put)
                continue
            share = share_of(put)
            room = at_most.get(share)
            if share not in aside and room != 0:
                if room is not None:
                    at_most[share] = room - 1
                taken.append(put)
            elif not aside.keep(share, put):
                gone.append(put)
        self._take_upto(at)
        self.held.update(due_of(put[ID]) // US_PER_S for put in held)
        self._forget(gone + held + aside.let_go())  # mutant: passed-over-fills
        taken.sort()
        return taken

    def discard(self, ids: Iterable[bytes]) -> set[bytes]:
        """Remove messages by id; return those that were here."""
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
        gone += self.aside.discard(wanted)  # mutant: passed-over-uncancelled
        self._forget(gone)
        return {r[ID] for r in gone}

    def done(self, ids: Iterable[bytes]) -> None:
        """Stop counting messages as waiting."""
        waiting = self.waiting
        for second, count in count_seconds(sorted(ids), 0):  # a batch is in order already
            left = waiting.get(second, 0) - count
            if left > 0:
                waiting[second] = left
            else:
                waiting.pop(second, None)
