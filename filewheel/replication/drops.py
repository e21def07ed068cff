"""What a wheel's journals say was dropped, retained segments included.

A drop is read where it was written, so this tells a message that has ended from one that was never here, for as long
as the segment is kept. Invariant: a drop that can be read in a journal is found, also behind damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID, records_of
from filewheel.replication.sources import SourceHandles, list_segments


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
