"""The journals of a primary, read from outside: in journal/, and in retained/ once they are covered.

The primary's keeper moves a segment at any time, also between a listing and an open. Readers treat both places as one:
journal/ is listed first, so a segment that moves in between is seen in one of them. A segment is read under the name
it was written with, because its checksums start from that name.

A segment leaves journal/ only when the checkpoint covers it. One that goes earlier was deleted by hand, and the
messages in it that were not dealt are in the backups only (`Losses`).
Invariants: a listing contains every segment that exists during the whole of it, in either place. A listed segment that
was read from, and is gone from both places, was covered by the checkpoint, or `Losses.look` reports its writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from filewheel.disk.checkpoint import Checkpoint, Position
from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID, records_of
from filewheel.journal.tail import Handles
from filewheel.replication.position import Follows


class SourceHandles(Handles):
    """Segments kept open for reading, by the names that they have in journal/, wherever they lie."""

    def _open_file(self, name: str) -> int:
        try:
            return self._disk.open(name, "r")
        except FileNotFoundError:
            try:
                return self._disk.open(layout.retained(name), "r")
            except NotADirectoryError as exc:
                raise FileNotFoundError(exc.errno, exc.strerror, name) from exc


Listing = dict[str, set[int]]
"""Writer → its segments."""


def list_segments(directory: Directory) -> Listing:
    """Return writer → its segments, those that wait in retained/ too. Cost: two listings. Raises OSError."""
    return list_places(directory)[0]


def list_places(directory: Directory) -> tuple[Listing, Listing]:
    """Return writer → its segments wherever they lie, and writer → those that were in journal/ still."""
    here = directory.disk.listdir(layout.JOURNAL)
    kept: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # nothing was kept so far
        kept = directory.disk.listdir(layout.RETAINED)
    return _parsed([*here, *kept]), _parsed(here)


def _parsed(names: list[str]) -> Listing:
    listing: Listing = {}
    for last in names:
        parsed = layout.parse_segment(last)
        if parsed is not None:
            listing.setdefault(parsed[0], set()).add(parsed[1])
    return listing


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


def dropped_among(directory: Directory, ids: Set[bytes]) -> set[bytes]:
    """Return, of these ids, those that the journals hold a drop of. Cost: a reading of the journals. Raises OSError."""
    found: set[bytes] = set()
    if ids:
        for drops in drops_of(directory):
            found.update(i for i in drops if i in ids)
    return found


def drops_of(directory: Directory) -> Iterator[list[bytes]]:
    """Yield the ids that each frame drops, frame by frame. Raises OSError."""
    handles = SourceHandles(directory)
    try:
        for writer, segments in list_segments(directory).items():
            for n in sorted(segments):
                name = layout.segment(writer, n)
                try:
                    fd = handles.get(name)
                except FileNotFoundError:
                    continue  # every backup has read it, or the counter of what went too early has changed
                end = directory.disk.size(fd)
                for item in scan(directory.disk, fd, 0, end, directory.seed(name)):
                    if isinstance(item, Frame) and item.drops:
                        with contextlib.suppress(Damaged):
                            yield [r[ID] for r in records_of(item)[1]]
    finally:
        handles.close()


@dataclass
class Behind:
    """What a backup lacks; None when that is not known."""

    messages: int | None = None
    bytes: int | None = None


def how_far_behind(primary: Directory, follows: Follows) -> Behind:
    """Count what lies above a backup's positions. Cost: a stat of each segment, and the headers of what is counted.

    Raises OSError when a segment cannot be read.
    """
    handles = SourceHandles(primary)
    messages = size = 0
    try:
        for writer, segments in list_segments(primary).items():
            position = follows.positions.get(writer)
            for n in sorted(segments):
                if position is not None and n < position.segment:
                    continue
                start = position.offset if position is not None and n == position.segment else 0
                name = layout.segment(writer, n)
                with contextlib.suppress(FileNotFoundError):  # every backup has read it
                    fd = handles.get(name)
                    end = primary.disk.size(fd)
                    for item in scan(primary.disk, fd, start, end, primary.seed(name), headers=True):
                        if isinstance(item, Frame):  # what follows a gap counts too
                            messages += item.puts + item.drops
                            size += 0 if item.is_seal else item.end - item.offset
    finally:
        handles.close()
    return Behind(messages, size)
