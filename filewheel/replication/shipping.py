"""Records on their way from one wheel's journals into another wheel.

`Bundle` gathers records into frames of a good size. A commit of the primary stays one commit, and frames keep their
order.

`still_pending` filters frames that are read a second time, after a restart from a stored position or a skip. A
position in all journals is no consistent cut: a drop may be below it and its put above it, when they are in two
journals that one pass read in that order. If written again, such a put would stay, because its drop may have been dealt
and forgotten. So frames that are read again are compared with the presently pending messages.

`carry_drops` serves a promotion. Another backup that is a little behind has messages that the old primary fired or
cancelled; the new primary may have forgotten their drops. When that backup joins, `absorb.py` would treat those
messages as lost. So the drops that a backup may lack are written to the new primary again; a drop without a put changes
nothing.
Invariants: a crash leaves whole bundles, from the first on. `still_pending` yields no put that was dropped before its
frame was requested. After `carry_drops`, every drop that the old primary still has and a backup may lack is durable
and undealt in the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.format.frame import Frame, portions
from filewheel.format.record import ID, readable_records
from filewheel.journal.journal import Journal
from filewheel.message import ID_END, ID_MIN
from filewheel.replication.compare import pending
from filewheel.replication.position import Positions
from filewheel.replication.primary_journals import drops_above

BUNDLE_BYTES = 4 << 20


class Bundle:
    """Gathers records and writes them to a journal, without a flush. Not thread-safe."""

    def __init__(self, journal: Journal, on_frame: Callable[[Frame], None] | None = None) -> None:
        """Start empty. `on_frame` is called with each frame before it is written."""
        self._journal = journal
        self._on_frame = on_frame
        self.records = 0
        """The number of records that were added."""
        self._clear()

    def _clear(self) -> None:
        self._bodies: list[bytes] = []
        self._size = self._puts = self._drops = 0
        self._first, self._last = ID_END, ID_MIN

    def add(self, frame: Frame) -> None:
        """Add the records of a frame."""
        self._add(frame.body, frame.puts, frame.drops, frame.first, frame.last)

    def add_put(self, put: bytes) -> None:
        """Add a packed put."""
        self._add(put, 1, 0, put[ID], put[ID])

    def add_puts(self, puts: Sequence[bytes]) -> None:
        """Add packed puts in the order of their ids, in commits of a good size. Cheaper than one by one."""
        for start, upto in portions([len(put) for put in puts], BUNDLE_BYTES):
            some = puts[start:upto]
            self._add(b"".join(some), len(some), 0, some[0][ID], some[-1][ID])

    def add_drops(self, drops: Sequence[bytes]) -> None:
        """Add packed drops in the order of their ids, in commits of a good size."""
        for start, upto in portions([len(drop) for drop in drops], BUNDLE_BYTES):
            some = drops[start:upto]
            self._add(b"".join(some), 0, len(some), some[0][ID], some[-1][ID])

    def add_records(self, puts: Sequence[bytes], drops: Sequence[bytes]) -> None:
        """Add packed records as one commit."""
        ids = [r[ID] for r in (*puts, *drops)]
        if ids:
            self._add(b"".join((*puts, *drops)), len(puts), len(drops), min(ids), max(ids))

    def _add(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        if self._size and self._size + len(body) > BUNDLE_BYTES:
            self.write()
        self._bodies.append(body)
        self._size += len(body)
        self._puts += puts
        self._drops += drops
        self._first = min(self._first, first)
        self._last = max(self._last, last)
        self.records += puts + drops

    def write(self) -> None:
        """Write the records that were gathered since the last write."""
        if not self._bodies:
            return
        body = b"".join(self._bodies)
        if self._on_frame is not None:
            self._on_frame(Frame(0, 0, 0, 0, self._puts, self._drops, self._first, self._last, body))
        self._journal.write_body(body, self._puts, self._drops, self._first, self._last)
        self._clear()


PASSES = 2
"""After this many passes, everything that existed at the start has been yielded."""
_BYTES = 8 << 20


def still_pending(source: Directory, frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield frames without the puts that are no longer pending in a wheel. Memory: 8 MiB of frames.

    Cost: reads the wheel's undealt journals for each 8 MiB of frames. Raises DiskError, Damaged.
    """
    some: list[Frame] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame.body)
        if size >= _BYTES:
            yield from _without_gone(source, some)
            some, size = [], 0
    yield from _without_gone(source, some)


def _without_gone(source: Directory, frames: list[Frame]) -> Iterator[Frame]:
    there = pending(source, [p[ID] for frame in frames if frame.puts for p in readable_records(frame)[0]])
    for frame in frames:
        puts, drops = readable_records(frame)
        kept = [p for p in puts if p[ID] in there]
        if len(kept) == len(puts):
            yield frame  # also one with invalid records: its checksums are right, so it was written like this
        elif kept or drops:
            records = [*kept, *drops]
            ids = [r[ID] for r in records]
            yield replace(frame, body=b"".join(records), puts=len(kept), first=min(ids), last=max(ids))


def carry_drops(old: Directory, new: Directory, places: Sequence[Positions]) -> int:
    """Write the drops of `old` above the lowest of these positions into `new`, durably; return how many.

    Only the keeper of a primary may deal `new` during this, because it retains the dealt journals. Cost: reads the old
    journals above the positions. Raises OSError, DiskError.
    """
    if not places:
        return 0
    known = set.intersection(*(set(place) for place in places))
    lowest = {writer: min(place[writer] for place in places) for writer in known}
    with contextlib.closing(Journal(new)) as journal:
        bundle = Bundle(journal)
        for drops in drops_above(old, lowest):
            bundle.add_records([], drops)
        bundle.write()
        journal.flush()
        return bundle.records
