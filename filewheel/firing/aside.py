"""What a claim passed over: due messages of a topic of which the claimer takes no more just now.

They wait here in order, by topic, so that no later claim has to step over them. Memory is bounded: what is too much of
a topic is let go from an id on, since it lies on disk, and is read from there when the rest has been claimed. So a
backlog of one topic neither fills the memory nor hides what is due of the others, and nothing is written for it.

Invariant: of a topic with a gap, what lies below the gap is here, and nothing that lies in it; the gap ends below the
frontier.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from filewheel.format.record import ID, PUT_PREFIX, topic_of
from filewheel.laps.window import Budget
from filewheel.message import id_after

_SHARE = 4


class Aside:
    """Due messages that wait for room, by topic. Not thread-safe: the keeper's lock guards it."""

    def __init__(self, budget: Budget) -> None:
        self.budget = Budget(max(1, budget.records // _SHARE), max(1, budget.bytes // _SHARE))
        """A part of the ready queue's: the rest stays for the topics that have room."""
        self._puts: dict[bytes, list[bytes]] = {}
        self._gaps: dict[bytes, tuple[bytes, bytes]] = {}
        """Topic → from which id to below which its messages lie on disk only."""
        self._count = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._puts or topic in self._gaps

    @property
    def is_in_use(self) -> bool:
        """Whether anything waits here, or in a gap."""
        return bool(self._puts or self._gaps)

    def floor(self, frontier: bytes) -> bytes:
        """Return the id below which nothing pending lies on disk only."""
        return min((start for start, _ in self._gaps.values()), default=frontier)

    def first(self) -> bytes | None:
        """Return the first id of all that wait here, or in a gap."""
        starts = [start for start, _ in self._gaps.values()]
        return min([*(puts[0][ID] for puts in self._puts.values()), *starts], default=None)

    # -- coming ------------------------------------------------------------------------------------------------

    def keep(self, topic: bytes, put: bytes) -> bool:
        """Keep a message that was passed over; False when it lies behind a gap of its topic, and is left on disk."""
        id_ = put[ID]
        gap = self._gaps.get(topic)
        if gap is not None and id_ >= gap[0]:
            self._gaps[topic] = gap[0], max(gap[1], id_after(id_))
            return False
        puts = self._puts.setdefault(topic, [])
        if puts and put < puts[-1]:
            insort(puts, put)
        else:
            puts.append(put)
        self._count += 1
        self.bytes += len(put)
        return True

    def join(self, puts: list[bytes]) -> list[bytes]:
        """Keep those that come before what waits here of their topic; return the others."""
        return [put for put in puts if not self._joins(put)] if self.is_in_use else puts

    def _joins(self, put: bytes) -> bool:
        topic = topic_of(put)
        gap, puts = self._gaps.get(topic), self._puts.get(topic)
        # Before the gap, or before the last that was passed over: so it is due too.
        is_before = put[ID] < gap[0] if gap is not None else puts is not None and put < puts[-1]
        return is_before and self.keep(topic, put)

    def without_known(self, puts: list[bytes]) -> list[bytes]:
        """Return those that are neither here nor in a gap, where they are found when it is read."""
        return [put for put in puts if not self._knows(put)] if self.is_in_use else puts

    def _knows(self, put: bytes) -> bool:
        topic, id_ = topic_of(put), put[ID]
        gap = self._gaps.get(topic)
        if gap is not None and gap[0] <= id_ < gap[1]:
            return True
        puts = self._puts.get(topic, ())
        at = bisect_left(puts, PUT_PREFIX + id_)
        return at < len(puts) and puts[at][ID] == id_

    def lacking(self, at_most: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield each topic that has room and only a gap left, with the gap: until something of it was read."""
        for topic in list(self._gaps):
            while topic not in self._puts and at_most.get(topic, 1) > 0 and (gap := self._gaps.get(topic)) is not None:
                yield topic, *gap

    def read(self, topic: bytes, puts: Iterable[bytes], upto: bytes) -> None:
        """Take in what was read of a gap, from its start to below an id."""
        start, end = self._gaps.pop(topic)
        if upto < end:
            self._gaps[topic] = upto, end
        for put in puts:
            assert start <= put[ID] < upto
            self.keep(topic, put)

    # -- going -------------------------------------------------------------------------------------------------

    def take(self, before: bytes, limit: int, at_most: MutableMapping[bytes, int]) -> list[bytes]:
        """Take up to `limit` messages below an id, in order, of topics that have room; lower that room."""
        found: list[tuple[bytes, bytes]] = []
        for topic, puts in self._puts.items():
            room = min(limit, at_most.get(topic, limit), bisect_left(puts, PUT_PREFIX + before))
            found += [(put, topic) for put in puts[:room]]
        found.sort()
        del found[limit:]
        counts: dict[bytes, int] = {}
        for _, topic in found:
            counts[topic] = counts.get(topic, 0) + 1
        for topic, count in counts.items():
            if topic in at_most:
                at_most[topic] -= count
            self._remove(topic, 0, count)
        return [put for put, _ in found]

    def discard(self, ids: Iterable[bytes]) -> list[bytes]:
        """Take messages out by id; return those that were here."""
        gone: list[bytes] = []
        for topic, puts in list(self._puts.items()):
            for id_ in ids:
                at = bisect_left(puts, PUT_PREFIX + id_)
                if at < len(puts) and puts[at][ID] == id_:
                    gone += self._remove(topic, at, at + 1)
        return gone

    def forget_from(self, floor: bytes) -> list[bytes]:
        """Forget what lies from an id on, which is read again with everything else; return what was here."""
        for topic, (start, end) in list(self._gaps.items()):
            del self._gaps[topic]
            if start < floor:
                self._gaps[topic] = start, min(end, floor)
        gone: list[bytes] = []
        for topic, puts in list(self._puts.items()):
            gone += self._remove(topic, bisect_left(puts, PUT_PREFIX + floor), len(puts))
        return gone

    def let_go(self) -> list[bytes]:
        """Forget the latest of the topics with the most, until the rest fits; return what was forgotten."""
        gone: list[bytes] = []
        while self._count > self.budget.records or self.bytes > self.budget.bytes:
            topic = max(self._puts, key=lambda topic: len(self._puts[topic]))
            puts = self._puts[topic]
            start, end = puts[len(puts) // 2][ID], id_after(puts[-1][ID])
            self._gaps[topic] = start, max(end, self._gaps.get(topic, (b"", b""))[1])
            gone += self._remove(topic, len(puts) // 2, len(puts))
        return gone

    def _remove(self, topic: bytes, start: int, end: int) -> list[bytes]:
        puts = self._puts[topic]
        gone = puts[start:end]
        del puts[start:end]
        if not puts:
            del self._puts[topic]
        self._count -= len(gone)
        self.bytes -= sum(map(len, gone))
        return gone
