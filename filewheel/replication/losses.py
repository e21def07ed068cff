"""Losses: journal segments that went although nobody was to remove them.

A segment leaves a primary's journals only when the checkpoint covers it. One that goes before was deleted by someone,
and what was dealt from it nowhere is in the backups only.
Invariant: a segment that was listed in journal/, in which something had been read, and that lies nowhere any more, was
covered by the checkpoint before, or its writer is told by `look`.
"""

from __future__ import annotations

from collections.abc import Mapping

from filewheel.disk.checkpoint import Checkpoint, Position
from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.replication.sources import Listing, list_places, list_segments


class Losses:
    """What one follower has seen of a primary's segments. Not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._listed: Listing = {}
        self._checkpoint = self._identity()
        self._read: dict[str, Position] = {}
        """For each writer, where the last frame ends that was read."""

    def begin_at(self, positions: Mapping[str, Position]) -> None:
        """Know of writers that were read up to here by someone else."""
        for writer, position in positions.items():
            if position.offset:
                self._listed[writer] = {position.segment}
                self._read[writer] = position

    def has_read(self, writer: str, upto: Position) -> None:
        """Note where a frame ends that was read."""
        self._read[writer] = upto

    def look(self) -> tuple[Listing, set[str]]:
        """List the segments, and return that and the writers of which something has gone that was not covered.

        Cost: two listings and a stat; when segments have gone, one reading of the checkpoint. Raises OSError.
        """
        checkpoint = self._identity()
        listing, in_journal = list_places(self._dir)
        lost = self._compare(listing)
        # What lies in retained/ is covered: it may go at any time.
        self._listed, self._checkpoint = in_journal, checkpoint
        for writer in [w for w in self._read if w not in listing]:
            del self._read[writer]
        return listing, lost

    def has_lost(self) -> bool:
        """Tell whether something has gone since the last `look` that was not covered. Raises OSError."""
        return bool(self._compare(list_segments(self._dir)))

    def _compare(self, listing: Listing) -> set[str]:
        gone = [(w, n) for w, known in self._listed.items() for n in known - listing.get(w, set())]
        gone = [(w, n) for w, n in gone if w in self._read and n <= self._read[w].segment]
        if not gone:
            return set()
        # Read after the listing: a segment goes after the checkpoint that covers it (K2).
        checkpoint = self._dir.checkpoint()
        return {w for w, n in gone if not self._is_covered(checkpoint, w, n)}

    def _is_covered(self, checkpoint: Checkpoint, writer: str, segment: int) -> bool:
        covered = checkpoint.positions.get(writer)
        if checkpoint.doubt:
            return False
        if covered is None:
            # K4: forgotten by a checkpoint that came after the segment went, and so after it was listed. Of a segment
            # that somebody else has read nobody knows whether it lay in journal/ still: then it counts as lost.
            return self._identity() != self._checkpoint
        read = self._read[writer]
        upto = read.offset if read.segment == segment else 0
        return covered.segment > segment or (covered.segment == segment and covered.offset >= upto)

    def _identity(self) -> tuple[int, int, int] | None:
        return self._dir.disk.identity(layout.CHECKPOINT)
