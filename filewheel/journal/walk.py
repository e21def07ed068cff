"""The walk over a wheel's journals: its segments, the part of each that a reader needs, and the frames in it.

`list_segments` lists them, `parts_above` leaves out everything below a reader's positions, and `read_part` yields the
frames of a part, and the gaps between them. Readers differ in how they treat a segment that is missing or cannot be
opened, so each opens the file itself, or gives `read_parts` its rule. A journal that is read as it grows is a `Tail`.

A listing beside a writer may hold a new segment and miss the one before it; the next listing has both.
Invariant: the parts of a writer come in the order in which they were written, and hold every byte above its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from filewheel.disk.checkpoint import START, Position
from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap, Scanner, scan

_ALL = 1 << 62
Listing = dict[str, set[int]]
"""Writer → its segments."""


class Part(NamedTuple):
    """A segment, or the part of it that is to be read."""

    writer: str
    segment: int
    start: int = 0
    end: int = _ALL
    """No more than the file holds is read."""

    @property
    def name(self) -> str:
        """The segment's name in journal/, from which its checksums start."""
        return layout.segment(self.writer, self.segment)


def listing_of(names: Iterable[str]) -> Listing:
    """Return writer → its segments, from the names in a directory; other names are left out."""
    listing: Listing = {}
    for last in names:
        parsed = layout.parse_segment(last)
        if parsed is not None:
            listing.setdefault(parsed[0], set()).add(parsed[1])
    return listing


def list_segments(directory: Directory) -> Listing:
    """Return writer → its segments in journal/. Raises OSError."""
    return listing_of(directory.disk.listdir(layout.JOURNAL))


def parts_above(listing: Mapping[str, Set[int]], positions: Mapping[str, Position]) -> Iterator[Part]:
    """Yield the parts above these positions, by writer and segment; all of a writer without a position."""
    for writer, segments in sorted(listing.items()):
        covered = positions.get(writer, START)
        for n in sorted(segments):
            if n >= covered.segment:
                yield Part(writer, n, covered.offset if n == covered.segment else 0)


def read_part(directory: Directory, fd: int, part: Part, *, headers: bool = False) -> Scanner:
    """Return a scanner of the frames and gaps in a part; with `headers`, of frames without bodies. Raises OSError."""
    disk = directory.disk
    end = min(part.end, disk.size(fd))
    return scan(disk, fd, part.start, end, directory.seed(part.name), headers=headers)


def read_parts(
    directory: Directory,
    open_file: Callable[[str], int],
    parts: Iterable[Part],
    *,
    headers: bool = False,
    on_error: Callable[[Part, OSError], None] | None = None,
) -> Iterator[tuple[Part, Frame | Gap]]:
    """Yield the frames and gaps of several parts. Raises OSError.

    A part that cannot be opened is skipped after `on_error`, which may raise; without it, only a missing one is.
    """
    for part in parts:
        try:
            fd = open_file(part.name)
        except OSError as exc:
            if on_error is not None:
                on_error(part, exc)
            elif not isinstance(exc, FileNotFoundError):
                raise
            continue
        for item in read_part(directory, fd, part, headers=headers):
            yield part, item
