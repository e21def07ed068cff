"""The directory of a partition: puts and drops that may not be durable yet, and the position.

What is pending is all puts less all drops. A power cut loses any part of what was written since the last flush, so a
drop may survive its put and a later put an earlier one; a kill loses nothing that was written. Housekeeping removes a
put with its drop, so a record that is read again can come back.
Invariant: `disk` changes by whole records only.
"""

from __future__ import annotations

import random

from tests.kafka.model.cluster import Rec

Op = tuple[str, Rec]


class Wheel:
    """What one node has of the partition, on disk and in memory."""

    def __init__(self) -> None:
        self.puts: dict[bytes, Rec] = {}
        self.drops: dict[bytes, Rec] = {}
        self.position: int | None = None
        self.unflushed: list[Op] = []
        self._safe_position: int | None = None
        self.claimed: set[bytes] = set()
        self.cancelled: set[bytes] = set()
        """With the shortcut only: the claimed records that end when they are given back."""

    # -- what is there ---------------------------------------------------------------------------------------

    def pending(self) -> dict[bytes, Rec]:
        """Return what waits, the claimed ones too."""
        return {id_: rec for id_, rec in self.puts.items() if id_ not in self.drops}

    def free(self) -> list[Rec]:
        """Return what waits and is not claimed, in the order of ids."""
        return [rec for id_, rec in sorted(self.pending().items()) if id_ not in self.claimed]

    # -- changes ---------------------------------------------------------------------------------------------

    def put(self, rec: Rec) -> None:
        """Store a record; the same one again changes nothing."""
        if rec.id not in self.puts:
            self.puts[rec.id] = rec
            self.unflushed.append(("put", rec))

    def drop(self, rec: Rec) -> None:
        """End a record."""
        if rec.id not in self.drops:
            self.drops[rec.id] = rec
            self.unflushed.append(("drop", rec))

    def cancel(self, key: str, before: int, *, in_memory: bool = False) -> None:
        """End what waits with a key and an offset before this one. What is claimed may go out all the same."""
        for id_, rec in self.pending().items():
            if rec.key == key and rec.offset < before:
                if in_memory and id_ in self.claimed:
                    self.cancelled.add(id_)
                else:
                    self.drop(rec)

    def give_back(self, recs: list[Rec]) -> None:
        """Free claimed records."""
        for rec in recs:
            self.claimed.discard(rec.id)
            if rec.id in self.cancelled:
                self.drop(rec)
        self.cancelled.clear()

    def settle(self, recs: list[Rec]) -> None:
        """End claimed records."""
        for rec in recs:
            self.claimed.discard(rec.id)
            self.cancelled.discard(rec.id)
            self.drop(rec)

    # -- the disk --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all that was written durable."""
        self.unflushed.clear()
        self._safe_position = self.position

    def write_position(self, offset: int) -> None:
        """Write the position; a power cut leaves this one or the one before."""
        self._safe_position, self.position = self.position, offset

    def collect(self, rng: random.Random) -> None:
        """Remove some puts with their drops, durable ones."""
        young = {rec.id for _, rec in self.unflushed}
        for id_ in list(self.drops):
            if id_ in self.puts and id_ not in young and rng.random() < 0.7:
                del self.puts[id_], self.drops[id_]

    def stop(self) -> None:
        """Forget what was in memory."""
        self.claimed.clear()
        self.cancelled.clear()

    def cut(self, rng: random.Random) -> None:
        """Lose some of what was not flushed."""
        for what, rec in self.unflushed:
            if rng.random() < 0.5:
                del (self.puts if what == "put" else self.drops)[rec.id]
        if rng.random() < 0.5:
            self.position = self._safe_position
        self.unflushed.clear()
        self.stop()
