"""The journals of a primary, read from outside: in journal/, and in retained/ once they are covered.

The primary's keeper may move a segment at any time, even between a listing and an open. Readers treat both places as
one: journal/ is listed first, so a segment that moves in between is in one of the listings. A segment is read under its
original name, because its checksums start from that name.

The keeper removes a segment from journal/ only when the checkpoint covers it. A segment that disappears earlier was
deleted by hand, and only the backups have its undealt messages (`SegmentLosses`).
Invariants: a listing contains every segment that exists during the whole listing, in either place. A listed segment
that was read, and is now missing in both places, was covered by the checkpoint, or `SegmentLosses.look` reports its
writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from filewheel.disk.checkpoint import Checkpoint, Position
from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import Frame
from filewheel.format.record import ID, readable_records
from filewheel.journal.tail import Handles
from filewheel.journal.walk import Listing, listing_of, parts_above, read_parts


class SegmentHandles(Handles):
    """Open segments, by their names in journal/; a segment that is missing there is opened in retained/."""

    def _open_file(self, name: str) -> int:
        try:
            return self._disk.open(name, "r")
        except FileNotFoundError:
            try:
                return self._disk.open(layout.retained(name), "r")  # mutant: source-in-journal-only
            except NotADirectoryError as exc:
                raise FileNotFoundError(exc.errno, exc.strerror, name) from exc


def list_all_segments(directory: Directory) -> Listing:
    """Return writer → its segments, in journal/ and retained/. Cost: two listings. Raises OSError."""
    return list_places(directory)[0]


def list_places(directory: Directory) -> tuple[Listing, Listing]:
    """Return writer → its segments in either place, and writer → those in journal/."""
    here = directory.disk.listdir(layout.JOURNAL)  # mutant: source-retained-first
    kept: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # no segment was retained yet
        kept = directory.disk.listdir(layout.RETAINED)
    return listing_of([*here, *kept]), listing_of(here)


# -- frames and drops ----------------------------------------------------------------------------------------


def frames_above(directory: Directory, positions: Mapping[str, Position], *, headers: bool = False) -> Iterator[Frame]:
    """Yield all frames above these positions, also after damage; with `headers`, without bodies.

    A missing segment is skipped: every backup has read it, or the overflow counter has changed. Raises OSError.
    """
    with contextlib.closing(SegmentHandles(directory)) as handles:
        parts = parts_above(list_all_segments(directory), positions)
        for _, item in read_parts(directory, handles.get, parts, headers=headers):
            if isinstance(item, Frame):
                yield item


def drops_above(directory: Directory, positions: Mapping[str, Position]) -> Iterator[list[bytes]]:
    """Yield the packed drops of each frame with drops above these positions; none of an invalid one. Raises OSError."""
    for frame in frames_above(directory, positions):
        if frame.drops:
            yield readable_records(frame)[1]


def dropped_among(directory: Directory, ids: Set[bytes]) -> set[bytes]:
    """Return the ids that have a drop in the journals: their messages ended here.

    Cost: reads all journals. Raises OSError.
    """
    if not ids:
        return set()
    return {drop[ID] for drops in drops_above(directory, {}) for drop in drops if drop[ID] in ids}


@dataclass
class Lag:
    """The part of the primary's journals that a backup has not read; None when it is unknown."""

    messages: int | None = None
    bytes: int | None = None


def lag_of(primary: Directory, positions: Mapping[str, Position]) -> Lag:
    """Measure the records above a backup's positions; 0 bytes mean that the backup has everything.

    A frame that a mirror got from its producer counts until it was compared. Cost: a stat of each segment, and the
    headers of the counted frames. Raises OSError when a segment cannot be read.
    """
    messages = size = 0
    for frame in frames_above(primary, positions, headers=True):
        messages += frame.puts + frame.drops
        size += 0 if frame.is_seal else frame.end - frame.offset
    return Lag(messages, size)


# -- segments that were deleted ------------------------------------------------------------------------------


class SegmentLosses:
    """Finds deleted segments of a primary, for one follower. Not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._listed: Listing = {}
        self._checkpoint = self._identity()
        self._read: dict[str, Position] = {}
        """For each writer, the end of the last frame that was read."""

    def begin_at(self, positions: Mapping[str, Position]) -> None:
        """Add writers that an earlier follower has read up to these positions."""
        for writer, position in positions.items():
            if position.offset:
                self._listed[writer] = {position.segment}
                self._read[writer] = position

    def has_read(self, writer: str, upto: Position) -> None:
        """Note the end of a frame that was read."""
        self._read[writer] = upto

    def look(self) -> tuple[Listing, set[str]]:
        """List the segments; return the listing, and the writers of deleted segments that were not covered.

        Cost: two listings and a stat; when segments are missing, also reads the checkpoint. Raises OSError.
        """
        checkpoint = self._identity()
        listing, in_journal = list_places(self._dir)
        lost = self._compare(listing)
        # Segments in retained/ are covered, and may be deleted at any time.
        self._listed, self._checkpoint = in_journal, checkpoint
        for writer in [w for w in self._read if w not in listing]:
            del self._read[writer]
        return listing, lost

    def has_lost(self) -> bool:
        """Check whether an uncovered segment was deleted since the last `look`. Raises OSError."""
        return bool(self._compare(list_all_segments(self._dir)))

    def _compare(self, listing: Listing) -> set[str]:
        gone = [(w, n) for w, known in self._listed.items() for n in known - listing.get(w, set())]
        gone = [(w, n) for w, n in gone if w in self._read and n <= self._read[w].segment]
        if not gone:
            return set()
        # Read after the listing: a segment is deleted after the checkpoint that covers it (K2).
        checkpoint = self._dir.checkpoint()
        return {w for w, n in gone if not self._is_covered(checkpoint, w, n)}

    def _is_covered(self, checkpoint: Checkpoint, writer: str, segment: int) -> bool:
        covered = checkpoint.positions.get(writer)
        if checkpoint.doubt:
            return False
        if covered is None:
            # K4: a checkpoint that was written after the deletion, and so after the listing, has forgotten the writer.
            # A segment known only from `begin_at` may have been in retained/ already; it counts as lost.
            return self._identity() != self._checkpoint
        read = self._read[writer]
        upto = read.offset if read.segment == segment else 0
        return covered.segment > segment or (covered.segment == segment and covered.offset >= upto)

    def _identity(self) -> tuple[int, int, int] | None:
        return self._dir.disk.identity(layout.CHECKPOINT)
