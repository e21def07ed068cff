"""A bundle: records on their way into a backup, gathered into frames of a good size.

What came in one frame stays in one frame, and frames stay in their order.
Invariant: a crash leaves a run of whole bundles from the first on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from filewheel.format.frame import Frame, portions
from filewheel.format.record import ID
from filewheel.journal.journal import Journal
from filewheel.message import ID_END, ID_MIN

BUNDLE_BYTES = 4 << 20


class Bundle:
    """Gathers records and writes them to a journal, without a flush. Not thread-safe."""

    def __init__(self, journal: Journal, told: Callable[[Frame], None] | None = None) -> None:
        """Begin an empty one. `told` hears of each frame before it is written."""
        self._journal = journal
        self._told = told
        self.records = 0
        """How many records were added."""
        self._clear()

    def _clear(self) -> None:
        self._bodies: list[bytes] = []
        self._size = self._puts = self._drops = 0
        self._first, self._last = ID_END, ID_MIN

    def add(self, frame: Frame) -> None:
        """Add what a frame holds."""
        self._add(frame.body, frame.puts, frame.drops, frame.first, frame.last)

    def add_put(self, put: bytes) -> None:
        """Add a packed put."""
        self._add(put, 1, 0, put[ID], put[ID])

    def add_puts(self, puts: Sequence[bytes]) -> None:
        """Add packed puts in the order of their ids, in commits of a good size: the cheap form."""
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
        """Write what has been gathered since the last write."""
        if not self._bodies:
            return
        body = b"".join(self._bodies)
        if self._told is not None:
            self._told(Frame(0, 0, 0, 0, self._puts, self._drops, self._first, self._last, body))
        self._journal.write_body(body, self._puts, self._drops, self._first, self._last)
        self._clear()
