"""Losses: journal segments that went although nobody was to remove them.

A segment leaves a primary's journals only when the checkpoint covers it. One that goes before was deleted by someone,
and what was dealt from it nowhere is in the backups only.
Invariant: a segment that was listed, in which something had been read, and that is not listed any more, was covered
by the checkpoint before, or its writer is told by `look`.
"""

from __future__ import annotations

from collections.abc import Mapping

from filewheel import layout
from filewheel.directory import Directory
from filewheel.manifest import Manifest, Position, read_manifest


class Losses:
    """What one follower has seen of a primary's segments. Not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._listed: dict[str, set[int]] = {}
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

    def look(self, listing: dict[str, set[int]]) -> set[str]:
        """Return the writers of which something has gone that was not covered, and go by this listing from now on.

        Cost: a stat; when segments have gone, one reading of the checkpoint. Raises OSError.
        """
        lost = self.compare(listing)
        self._listed = listing
        for writer in [w for w in self._read if w not in listing]:
            del self._read[writer]
        self._checkpoint = self._identity()
        return lost

    def compare(self, listing: dict[str, set[int]]) -> set[str]:
        """Return the writers of which something has gone that was not covered since the last `look`."""
        gone = [(w, n) for w, known in self._listed.items() for n in known - listing.get(w, set())]
        gone = [(w, n) for w, n in gone if w in self._read and n <= self._read[w].segment]
        if not gone:
            return set()
        # Read after the listing: a segment goes after the checkpoint that covers it (K2).
        manifest = read_manifest(self._dir.disk, self._dir.seed, self._dir.settings.lap_of, self._dir.path)
        return {w for w, n in gone if not self._is_covered(manifest, w, n)}

    def _is_covered(self, manifest: Manifest, writer: str, segment: int) -> bool:
        covered = manifest.positions.get(writer)
        if manifest.doubt:
            return False
        if covered is None:
            # K4: forgotten by a checkpoint that came after the segment went, and so after it was listed.
            return self._identity() != self._checkpoint
        read = self._read[writer]
        upto = read.offset if read.segment == segment else 0
        return covered.segment > segment or (covered.segment == segment and covered.offset >= upto)

    def _identity(self) -> tuple[int, int, int] | None:
        return self._dir.disk.identity(layout.CHECKPOINT)
