"""Kafka, as far as the protocol sees it: the delay topic's partition, its markers, what was produced, transactions.

Fencing, atomic commits and committed reads are assumed to be right. Each marker is judged when it becomes visible.
Invariant: everything here survives; only a transaction that is not decided can still end either way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.fate import id_of


class Violation(AssertionError):
    """The protocol broke a promise."""


class FencedOff(Exception):
    """A newer producer has this transactional id, or the transaction was ended without it."""


class NoAnswer(Exception):
    """A request was sent, and its answer did not come."""


@dataclass(frozen=True, slots=True)
class Rec:
    """A record of the delay topic. A tombstone only cancels."""

    offset: int
    due: int
    key: str | None
    is_tombstone: bool
    id: bytes


@dataclass(slots=True)
class Txn:
    """A transaction: its records, each with its new due if it goes back to the delay topic, and the marker."""

    epoch: int
    sent: list[tuple[Rec, int | None]] = field(default_factory=list)
    marker: Marker | None = None
    state: str = "open"
    """open, prepared (decided, not visible yet), committed or aborted"""


class Cluster:
    """One partition of the delay topic and what belongs to it."""

    def __init__(self) -> None:
        self.log: dict[int, Rec] = {}
        self.start = 0
        self.end = 0
        self.last_due = 0
        self.cancelled_by: dict[int, int] = {}
        self.produced: Counter[int] = Counter()
        self.markers: list[bytes] = []
        self.latest = 0
        """The latest time of a clock."""
        self.epoch = 0
        self.txn: Txn | None = None
        self.late: Txn | None = None
        """A commit that is on its way to the coordinator."""
        self._newest: dict[str, int] = {}

    # -- the delay topic -------------------------------------------------------------------------------------

    def append(self, due: int, key: str | None, is_tombstone: bool, hole: bool) -> Rec:
        """Append a record; `hole` leaves an offset out, as a transaction's end does."""
        rec = Rec(self.end, due, key, is_tombstone, id_of(due, self.end))
        if key is not None:
            older = self._newest.get(key)
            if older is not None:
                self.cancelled_by[older] = rec.offset
            self._newest[key] = rec.offset
        self.log[rec.offset] = rec
        self.last_due = max(self.last_due, due)
        self.end += 2 if hole else 1
        return rec

    def read(self, offset: int, limit: int) -> tuple[list[Rec], int]:
        """Return records from an offset on, and the offset after them."""
        found: list[Rec] = []
        at = max(offset, self.start)
        while at < self.end and len(found) < limit:
            if at in self.log:
                found.append(self.log[at])
            at += 1
        return found, at

    def truncate(self) -> None:
        """Delete what the last marker's low allows to delete."""
        self.start = max(self.start, self.last_marker().low)

    # -- producing -------------------------------------------------------------------------------------------

    def last_marker(self) -> Marker:
        """Return the last visible marker."""
        return Marker.unpack(self.markers[-1]) if self.markers else Marker()

    def produce(self, rec: Rec, due: int | None) -> None:
        """Give a record its fate: it goes out, or back to the delay topic with another due."""
        if rec.due > self.latest:
            raise Violation(f"the record at {rec.offset} goes out early")
        self.produced[rec.offset] += 1
        if due is not None:
            self.append(due, None, False, False)

    def publish(self, marker: Marker) -> None:
        """Make a marker visible. Raises Violation when it says more than is true."""
        for rec in self.log.values():
            if rec.is_tombstone or self.produced[rec.offset] or rec.offset in self.cancelled_by:
                continue
            if rec.offset < marker.low:
                raise Violation(f"low is {marker.low}, and the record at {rec.offset} waits")
            if marker.done(rec.id, rec.offset):
                raise Violation(f"a marker says that the record at {rec.offset} is done: {marker}")
        self.markers.append(marker.pack())

    def fence(self) -> int:
        """Open a producer: the last transaction of the one before is decided when this returns."""
        if self.txn is not None:
            self.complete()
            if self.txn is not None:
                self.txn.state, self.txn = "aborted", None
        self.epoch += 1
        return self.epoch

    def begin(self, epoch: int) -> Txn:
        """Begin a transaction."""
        if epoch != self.epoch:
            raise FencedOff
        self.txn = Txn(epoch)
        return self.txn

    def commit(self, txn: Txn) -> None:
        """Decide a transaction; `complete` makes it visible."""
        if txn.state == "aborted" or txn.epoch != self.epoch:
            raise FencedOff
        if txn.state == "open":
            txn.state = "prepared"

    def complete(self) -> None:
        """Make a transaction visible that was decided."""
        txn = self.txn
        if txn is not None and txn.state == "prepared":
            for rec, due in txn.sent:
                self.produce(rec, due)
                if self.produced[rec.offset] > 1:
                    raise Violation(f"the record at {rec.offset} went out twice")
            txn.state, self.txn = "committed", None
            if txn.marker is not None:
                self.publish(txn.marker)

    def arrive(self) -> None:
        """Let a commit arrive that was on its way; one of a fenced producer has no effect."""
        late, self.late = self.late, None
        if late is not None and late.state == "open" and late.epoch == self.epoch:
            late.state = "prepared"

    def time_out(self) -> None:
        """End a transaction that lasts too long: its producer is fenced."""
        if self.txn is not None and self.txn.state == "open":
            self.txn.state, self.txn = "aborted", None
            self.epoch += 1
