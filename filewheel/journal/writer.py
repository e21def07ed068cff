"""One writer: its name, its segments, the numbers of its frames; and how it is lent to a pen.

A handle is a writer until a write fails or the sequence of ids is used up; then it becomes another one. While puts
come that need not be durable, the writer is lent to a pen (docs/adr/0023-a-pen-that-writes.md). Then only the pen knows
where the next frame goes, the next place in the sequence and the number of the last frame. The lender is the only way
to a writer, and ends the loan before it returns the writer, so these numbers are never read while they are stale.

Invariants: frames are numbered without a gap over all segments of a writer; a segment is never opened again to append;
the kernel lock of the segment in use is held, so a free lock means that nothing more will come.
"""

from __future__ import annotations

import contextlib
import threading

from filewheel.disk.checkpoint import START, Position
from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import FilewheelError
from filewheel.format.frame import seal
from filewheel.format.ids import SEQ_END, IdSource
from filewheel.journal.segment import Segment, no_pen
from filewheel.message import ID_END, ID_MIN
from filewheel.native.compiled import Pen


class Writer:
    """One writer. Not thread-safe: the appender's lock guards it."""

    def __init__(self, directory: Directory, ticket: int = 0) -> None:
        self._dir = directory
        self.ids = IdSource(directory.env.entropy)
        self.name = self.ids.name
        """The name of its journal."""
        self.segment: Segment | None = None
        """The segment in use; None before the first frame and after the last."""
        self.has_started = False
        """Its first segment was made, or the attempt failed. Without a segment it has ended then."""
        self.first = ticket
        """The ticket before that of its first frame. Tickets count the frames of a handle, over all its writers."""
        self.written = ticket
        """The ticket of its last frame."""
        self.commits = 0
        """How often it was flushed for a caller."""
        self.free_to = 0
        """A small frame that ends here or before fits into the segment without another look (`Appender.ready`)."""

    @property
    def number(self) -> int:
        """The number of its last frame; the first has number 1."""
        return self.written - self.first

    @property
    def position(self) -> Position:
        """The end of its journal; segment 0 before the first segment."""
        segment = self.segment
        return START if segment is None else Position(segment.n, segment.offset, self.written - self.first)

    def synced(self, durable: int) -> int:
        """Return the number of its last durable frame, from the ticket of the handle's last durable one; 0 for none."""
        return max(0, durable - self.first)  # mutant: synced-too-much

    def open_segment(self, n: int) -> Segment:
        """Make a segment and write to it from now on. The segment before it stays locked: the caller releases it."""
        self.free_to = 0
        # Set first: after Ctrl-C or an error in the next line, a keeper may have seen the name come and go.
        self.has_started = True  # mutant: ended-goes-on
        self.segment = made = Segment(self._dir, self.name, n)
        return made

    def seal(self, durable: int) -> None:
        """End a segment that was flushed with an empty frame: everything before it was durable.

        A frame that is missing before the seal later on was damaged. The seal repeats the last frame's number, so that
        it may itself be missing: it is not flushed.
        """
        segment = self.segment
        if segment is not None and segment.offset and not segment.failed and durable == self.written:  # mutant: no-seal
            end = seal(
                b"",
                seed=segment.seed,
                offset=segment.offset,
                number=self.number,
                synced=self.synced(durable),
                puts=0,
                drops=0,
                first=ID_END,
                last=ID_MIN,
            )
            with contextlib.suppress(FilewheelError):
                segment.append(end)

    def release(self) -> None:
        """Unlock and close the segment in use."""
        self.free_to = 0
        segment, self.segment = self.segment, None
        if segment is not None:
            segment.release()


class Lender:
    """Holds the writer of a handle, and lends it to a pen. The appender's lock guards everything but `put`."""

    def __init__(self, lock: threading.RLock, writer: Writer) -> None:
        self._lock = lock
        self._writer = writer
        self.name = writer.name
        """The writer's name, which no pen changes."""
        self._pen: Pen | None = None
        self.put = no_pen
        """Writes one put with the pen, without the lock. Returns None when no pen is out, or the pen has no room."""

    @property
    def writer(self) -> Writer:
        """The writer, taken back from the pen. Ask again after each wait: other threads may have lent it since."""
        pen = self._pen  # mutant: pen-end-torn
        if pen is not None:  # mutant: pen-not-taken-back
            assert self._lock._is_owned(), "the lock guards the writer"  # type: ignore[attr-defined]
            writer = self._writer
            assert writer.segment is not None
            # Forget the pen last: after Ctrl-C in between, the next call repeats this, and `end` returns the same.
            writer.ids.seq, number = writer.segment.take_back(pen)
            writer.written = writer.first + number
            self.put = no_pen
            self._pen = None
        return self._writer

    def replace(self, writer: Writer) -> None:
        """Become another writer."""
        assert self._pen is None
        self._writer, self.name = writer, writer.name

    def lend(self, disk: Disk, durable: int) -> bool:
        """Lend the writer to a pen; False when the disk has none."""
        writer = self.writer
        ids, segment = writer.ids, writer.segment
        assert segment is not None
        pen = disk.pen(
            segment.fd,
            ids.low,
            ids.seq,
            SEQ_END,
            segment.seed,
            segment.offset,
            writer.free_to,
            writer.number,
            writer.synced(durable),
        )
        if pen is None:
            return False
        # Set `_pen` before `put`: if Ctrl-C hits in between, the pen is simply unused.
        self._pen = pen
        self.put = pen.put
        return True
