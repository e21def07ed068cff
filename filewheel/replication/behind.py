"""How far a backup is behind: what its primary's journals hold above the positions that it wrote down.

It needs no replicator to be running: the journals and the note are enough. Mirrors are judged by the same note, which
says what is known to be there; what producers have written to them since counts as behind until it was compared.
Invariant: 0 bytes behind means that everything the primary's journals hold is in the backup.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.replication.follows import Follows
from filewheel.replication.sources import SourceHandles, list_segments


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
