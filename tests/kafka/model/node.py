"""What one node does with the partition, step by step: each `yield` is a place where anything else may happen.

Owns the node's wheel, its memory and the tasks that run. The library's Marker decides what is done.
Invariant: nothing is shared with other nodes but the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.fate import id_of
from tests.kafka.model.cluster import Cluster, FencedOff, NoAnswer, Rec, Violation
from tests.kafka.model.shortcut import Shortcut
from tests.kafka.model.wheel import Wheel

Steps = Iterator[None]
OFFSET_END = 1 << 70
UNREAD = (Shortcut.FIRES_UNREAD, Shortcut.FIRES_BEFORE_END, Shortcut.REOPENS_WITHOUT_READING)
"""These hand out what was not read again, too."""


class Node:
    """One node."""

    def __init__(
        self, name: str, cluster: Cluster, rng: random.Random, *, exactly_once: bool, shortcut: Shortcut | None
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.rng = rng
        self.exactly_once = exactly_once
        self.shortcut = shortcut
        self.wheel = Wheel()
        self.now = 0
        self.is_member_owner = False
        """Whether the group says now that this node owns the partition."""
        self.fault = 0.0
        """How often an answer is lost."""
        self.unit = 3
        """The most records of a chunk."""
        self.refusals = 0.0
        """How often a target refuses a record."""
        self.fullness = 0.0
        """How often its disk is full, where no record can cancel another."""
        self._forget()

    def _forget(self) -> None:
        self.role = "none"
        self.tasks: list[Steps] = []
        self.is_up = True
        self.is_paused = False
        self.marker = Marker()
        self.ingested = 0
        self.unread = 0
        """A part of the log before this offset was gone before this node could read it, cancels included."""
        self.end = 0
        self.can_fire = False
        self.is_draining = False
        self.epoch = 0
        self.seen = 0

    # -- what the world does to a node -------------------------------------------------------------------------

    def crash(self, how: str) -> None:
        """End the process: `kill`, `cut` (the power) or `lost` (and its disk)."""
        self._forget()
        self.is_up = False
        if how == "cut":
            self.wheel.cut(self.rng)
        elif how == "lost":
            self.wheel = Wheel()
        self.wheel.stop()

    def start(self) -> None:
        """Start the process again; it owns nothing."""
        self._forget()

    def stand_by(self) -> None:
        """Keep the wheel without owning the partition."""
        self._stop_tasks("standby")
        self.tasks = [self._stand_by()]

    def own(self) -> None:
        """Take the partition over."""
        self._stop_tasks("owner")
        self.tasks = [self._own()]

    def lose(self) -> None:
        """Learn that the partition is another's: no marker, no commit."""
        self._stop_tasks("none")

    def drain(self) -> None:
        """Finish what goes out, and give the partition away."""
        self.is_draining = True

    def _stop_tasks(self, role: str) -> None:
        self.wheel.give_back([rec for id_, rec in self.wheel.puts.items() if id_ in self.wheel.claimed])
        self.role, self.tasks = role, []
        self.can_fire = self.is_draining = False

    # -- the wheel ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Bring the wheel to what the marker says, and find where to read on. One step: nothing else sees it."""
        self._apply(self.marker)
        low = self.marker.low
        if self.shortcut is Shortcut.COLD_START_AT_COMMIT:
            low = self.marker.ingested
        self.ingested = max(low, self.wheel.position or 0, self.cluster.start)

    def _apply(self, marker: Marker, *, by_id: bool = False) -> None:
        for rec in self.wheel.free():
            is_done = marker.done(rec.id, rec.offset)
            if self.shortcut is Shortcut.LOW_IS_NO_FACT:
                is_done = replace(marker, low=0).done(rec.id, rec.offset)
            if by_id:
                is_done = rec.id <= (marker.steps[0][1] if marker.steps else b"")
            if is_done:
                self.wheel.drop(rec)

    def _take_in(self) -> None:
        """Read some records and store those that are not done."""
        if self.role == "owner" and self.ingested < self.cluster.start:
            # A zombie's marker let the log go while this node was reading it. Fencing makes this impossible.
            if self.exactly_once and self.epoch == self.cluster.epoch:
                raise Violation(f"the log is gone from {self.ingested} to {self.cluster.start} under its owner")
            self.unread = self.cluster.start
        recs, after = self.cluster.read(self.ingested, self.rng.randint(1, self.unit + 1))
        for rec in recs:
            is_done = self.shortcut is not Shortcut.NO_FILTER and self.marker.done(rec.id, rec.offset)
            if rec.key is not None and not (is_done and self.shortcut is Shortcut.DONE_CANCELS_NOTHING):
                self.wheel.cancel(rec.key, rec.offset, in_memory=self.shortcut is Shortcut.CANCEL_IN_MEMORY)
            if not rec.is_tombstone and not is_done:
                self.wheel.put(rec)
        self.ingested = after

    def _low(self, chunk: list[Rec]) -> int:
        """Return the least offset that waits, beside what goes out now.

        What was not read again waits too, though the wheel may hold later records: a node on a full disk fires then.
        """
        left = {rec.offset for rec in self.wheel.pending().values()} - {rec.offset for rec in chunk}
        return min({self.ingested, *left})

    def _keep(self) -> Steps:
        """Flush, write the position, remove what ended."""
        while True:
            yield
            offset = self.ingested
            if self.shortcut is Shortcut.POSITION_BEFORE_FLUSH:
                self.wheel.write_position(offset)
                yield
                self.wheel.flush()
                continue
            self.wheel.flush()
            yield
            if self.shortcut is Shortcut.POSITION_AFTER_FLUSH:
                offset = self.ingested
            self.wheel.write_position(offset)
            yield
            if self.rng.random() < 0.5:
                self.wheel.collect(self.rng)

    # -- a standby ---------------------------------------------------------------------------------------------

    def _stand_by(self) -> Steps:
        self.marker = self.cluster.last_marker()
        self.seen = len(self.cluster.markers)
        self._open()
        self.tasks.append(self._keep())
        while True:
            yield
            if self.seen < len(self.cluster.markers) and self.rng.random() < 0.6:
                marker = Marker.unpack(self.cluster.markers[self.seen])
                self.seen += 1
                for step in marker.steps:
                    self.marker = self.marker.after_chunk(*step)
                self.marker = self.marker.with_low(marker.low)
                self._apply(marker, by_id=self.shortcut is Shortcut.STANDBY_BY_ID)
            else:
                self._take_in()

    # -- an owner ----------------------------------------------------------------------------------------------

    def _fence_and_read(self) -> Steps:
        """Fence the predecessor, then read the marker: its last transaction is decided by then."""
        if self.exactly_once:
            early = self.cluster.last_marker()
            yield
            self.epoch = self.cluster.fence()
            yield
            self.marker = self.cluster.last_marker()
            if self.shortcut is Shortcut.MARKER_BEFORE_FENCE:
                self.marker = early
        else:
            self.marker = self.cluster.last_marker()
        yield

    def _own(self) -> Steps:
        yield from self._fence_and_read()
        self._open()
        self.end = self.cluster.end
        self.tasks += [self._ingest(), self._fire(), self._keep()]

    def _ingest(self) -> Steps:
        while True:
            yield
            is_full = self.marker.is_full(self.ingested)
            if self.shortcut is Shortcut.TWO_STEPS:
                is_full = len(self.marker.steps) > 1
            if not is_full or not self.can_fire:
                self._take_in()
            if self.ingested >= self.end or self.shortcut is Shortcut.FIRES_BEFORE_END or self._disk_is_full():
                self.can_fire = True

    def _disk_is_full(self) -> bool:
        """Whether there is no room now. A node of a topic without keys fires then before it has read to the end."""
        return self.fullness > 0 and self.rng.random() < self.fullness

    def _fire(self) -> Steps:
        while True:
            yield
            if self.is_draining:
                self.wheel.flush()
                self.lose()
                return
            if not self.can_fire:
                continue
            chunk, ingested, through = self._claim()
            if not chunk and not (through and self.rng.random() < 0.2):
                continue
            if self.shortcut is Shortcut.INGESTED_AFTER_CLAIM:
                yield
                ingested = self.ingested
            marker = self._marker_after(ingested, through, chunk)
            if self.shortcut is Shortcut.DROP_BEFORE_MARKER:
                self.wheel.settle(chunk)
            if self.exactly_once:
                yield from self._send_in_transaction(chunk, marker)
            else:
                yield from self._send(chunk, marker)
            if self.role != "owner":
                return

    def _claim(self) -> tuple[list[Rec], int, bytes]:
        """Claim what is due, with what was taken in and the id up to which that is all. One step."""
        limit = self.rng.randint(1, self.unit)
        until = self.now + (self.shortcut is Shortcut.FIRES_WITHIN_THE_TICK)
        due = [rec for rec in self.wheel.free() if rec.due <= until and self._is_read(rec)]
        chunk = due[:limit]
        for rec in chunk:
            self.wheel.claimed.add(rec.id)
            canceller = self.cluster.cancelled_by.get(rec.offset)
            if canceller is not None and self.unread <= canceller < self.ingested:
                raise Violation(f"the record at {rec.offset} goes out, and was cancelled at {canceller}")
        through = chunk[-1].id if chunk else b""
        if len(due) <= limit and self.rng.random() < 0.5:
            through = max(through, id_of(self.now, OFFSET_END - 1))  # nothing else is due
        return chunk, self.ingested, through

    def _is_read(self, rec: Rec) -> bool:
        """Whether a record was read since the wheel was opened: else no marker of this owner speaks of it."""
        return rec.offset < self.ingested or self.shortcut in UNREAD

    def _fate(self) -> int | None:
        """Return when a record is due again that its target refused; None if it goes out."""
        return self.now + self.rng.randint(1, 5) if self.rng.random() < self.refusals else None

    def _marker_after(self, ingested: int, through: bytes, chunk: list[Rec]) -> Marker:
        marker = self.marker.after_chunk(ingested, through)
        if self.shortcut is Shortcut.TWO_STEPS and len(marker.steps) > 2:
            marker = replace(marker, steps=(marker.steps[0], marker.steps[-1]))
        return replace(marker.with_low(self._low(chunk)), owner=self.name)

    def _send(self, chunk: list[Rec], marker: Marker) -> Steps:
        """At least once: each record, then the marker, then the drops. An answer that is lost is asked for again."""
        for rec in chunk:
            yield
            self.cluster.produce(rec, self._fate())
        yield
        self.cluster.publish(marker)
        if self.rng.random() < self.fault:
            yield
            self.cluster.publish(marker)
        yield
        self._done(chunk, marker)

    def _send_in_transaction(self, chunk: list[Rec], marker: Marker) -> Steps:
        """Exactly once. A commit without an answer is neither done nor undone: the next fence decides it."""
        try:
            txn = self.cluster.begin(self.epoch)
            for rec in chunk:
                yield
                txn.sent.append((rec, self._fate()))
            yield
            txn.marker = marker
            yield
            luck = self.rng.random()
            if luck < self.fault / 2:
                self.cluster.late = txn  # the request is on its way
                raise NoAnswer
            self.cluster.commit(txn)
            if luck < self.fault:
                raise NoAnswer
            yield
            self.cluster.complete()
            yield
            self._done(chunk, marker)
        except FencedOff:
            yield from self._begin_again(chunk)
        except NoAnswer:
            if self.shortcut is Shortcut.UNKNOWN_IS_COMMITTED:
                self._done(chunk, marker)
            elif self.shortcut is Shortcut.UNKNOWN_IS_ABORTED:
                self.wheel.give_back(chunk)
                yield
                self.epoch = self.cluster.fence()
            else:
                yield from self._begin_again(chunk)

    def _done(self, chunk: list[Rec], marker: Marker) -> None:
        """Drop what went out: the marker is in the log."""
        self.marker = marker
        self.wheel.settle(chunk)

    def _begin_again(self, chunk: list[Rec]) -> Steps:
        """Fence with a new producer, if the group still says that this node is the owner; else stop."""
        self.can_fire = False
        yield
        if not self.is_member_owner:
            self.lose()
            return
        own = self.marker
        yield from self._fence_and_read()
        if self.shortcut is Shortcut.REPEATS_THE_STALE:
            self.marker = own
        self.wheel.give_back(chunk)
        self._apply(self.marker)
        self.end = self.cluster.end
        self.can_fire = self.ingested >= self.end or self.shortcut is Shortcut.REOPENS_WITHOUT_READING
