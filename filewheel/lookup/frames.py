"""The frames that a finder reads: a run of them, or the one at a place.

The files are those that one checkpoint names, and the journals above it. One that has gone when there is a newer
checkpoint was covered or finished, and the look starts again; gone under the same checkpoint, it was taken away by
hand, and what it held is not found. The frames that were read last are kept, up to `RECENT_BYTES`: messages that are
asked for together often lie together.
Invariant: a frame is given out only when it verified.
"""

from __future__ import annotations

from collections.abc import Iterator

from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import SMALL_BLOCK, Frame, scan
from filewheel.journal.tail import Handles
from filewheel.lookup.index import Run

RECENT_BYTES = 8 << 20
"""How much is kept of the frames that were read last."""

Place = tuple[str, int]
"""A file, and where in it a frame starts."""


class Frames:
    """Reads frames under one checkpoint. Opens files only through the handles that it is given."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._recent: dict[Place, Frame] = {}
        """Those read last, the last one at the end."""
        self._recent_bytes = 0
        self.checkpoint_identity: tuple[int, int, int] | None = None
        """The identity of the checkpoint that names the files; None while it is not known."""

    def are_current(self) -> bool:
        """Tell whether the checkpoint is the same still."""
        return self._disk.identity(layout.CHECKPOINT) == self.checkpoint_identity

    def fd_of(self, name: str, handles: Handles) -> int | None:
        """Return an open file; None when it has gone though the checkpoint is the same: by hand.

        Raises FileNotFoundError when there is another checkpoint.
        """
        try:
            return handles.get(name)
        except FileNotFoundError:
            if not self.are_current():
                raise
            return None

    def of(self, run: Run, handles: Handles, *, lo: bytes | None = None, hi: bytes | None = None) -> Iterator[Frame]:
        """Yield a run's frames, those that verify; only those that may hold an id from `lo` to below `hi`."""
        fd = self.fd_of(run.name, handles)
        if fd is not None:
            end = min(run.end, self._disk.size(fd))
            for item in scan(self._disk, fd, run.offset, end, self._dir.seed(run.name), lo=lo, hi=hi):
                if isinstance(item, Frame):
                    yield item

    def at(self, place: Place, handles: Handles) -> Frame | None:
        """Return the frame at a place; None when it cannot be read any more."""
        frame = self._recent.pop(place, None)
        if frame is None:
            frame = self._read(*place, handles)
            if frame is None or len(frame.body) > RECENT_BYTES:
                return frame
            self._recent_bytes += len(frame.body)
        self._recent[place] = frame
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))).body)
        return frame

    def _read(self, name: str, offset: int, handles: Handles) -> Frame | None:
        fd = self.fd_of(name, handles)
        if fd is None:
            return None
        size = self._disk.size(fd)
        items = scan(self._disk, fd, offset, size, self._dir.seed(name), resync=False, block_bytes=SMALL_BLOCK)
        item = next(iter(items), None)
        return item if isinstance(item, Frame) else None
