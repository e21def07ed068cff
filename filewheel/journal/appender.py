"""Appends frames to a writer's segments, and makes them durable.

Each open handle is a writer of its own (writer.py), so a commit takes no shared lock: one pwrite of a frame, and one
fdatasync that all waiting threads share (group commit). A writer that commits again and again writes zeros ahead: a
flush into space that was written before costs one device flush, and a growing file costs two. The order of calls is
the protocol's (docs/adr/0002-the-protocol.md, rules E1-E5, O1 and O2); the comments name the rule. The journal decides
what the frames hold (journal.py).

Invariant: a ticket counts as durable only after a flush that returned has covered its frame, and a flush that failed
is never repeated.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.threads import reentered, started
from filewheel.env import Condition
from filewheel.errors import UNWRITTEN, Closed, FilewheelError, Poisoned, TooFewCopies, TooLarge, anew, disk_error
from filewheel.format import layout
from filewheel.format.frame import BODY_BYTES_MAX, HEADER_BYTES, seal
from filewheel.format.ids import SEQ_END
from filewheel.format.settings import Sync
from filewheel.journal.segment import FILL_BYTES, Segment
from filewheel.journal.writer import Lender, Writer
from filewheel.message import MessageId
from filewheel.native.compiled import put_frame

SEGMENT_BYTES = 32 << 20
_FILL_AFTER_COMMITS = 2
_PEN_BYTES = 32 << 10


class Copying(Protocol):
    """Writes an appender's frames to other wheels too. Tickets count the appender's frames."""

    def ready(self) -> None:
        """Raise unless enough wheels can hold a frame that is written now."""

    def write(self, ticket: int, name: str, offset: int, frame: bytes) -> None:
        """Write a frame that was just written here. Called with the lock held; never raises for another disk."""

    def fill(self, name: str, start: int, size: int) -> None:
        """Write zeros that were just written ahead here. Called with the lock held; never raises."""

    def begin(self, ticket: int) -> None:
        """Start to flush up to this frame."""

    def finish(self, ticket: int) -> None:
        """Return when it is flushed, or the wheels that failed are given up. Never raises for another disk."""

    def confirm(self, ticket: int, *, durable: bool) -> int:
        """Return how many wheels hold this frame, durably or just written. Raises TooFewCopies."""

    def close(self) -> None:
        """Close the other wheels."""


class Appender:
    """Appends frames as one writer. Thread-safe. Opens its first segment with its first frame."""

    def __init__(
        self,
        directory: Directory,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        fill_bytes: int = FILL_BYTES,
        on_segment_end: Callable[[str, Position, bool], None] | None = None,
        on_flush: Callable[[int], None] | None = None,
    ) -> None:
        """Both are called perhaps with the lock held, must not raise, and call nothing of this.

        `on_segment_end` is called with (writer, end of its segment, whether the writer ends too), `on_flush` with the
        microseconds of each flush.
        """
        self._dir = directory
        self._segment_bytes = segment_bytes
        self._fill_bytes = fill_bytes
        self.lock = threading.RLock()
        self._changed = Condition(self.lock)
        self.lender = Lender(self.lock, Writer(directory))
        self._has_pens = True
        """Whether the disk gives pens, as far as known."""
        self._durable = 0
        """The ticket of the last durable frame."""
        self._flushing = 0
        """The thread that flushes, without the lock."""
        self.broken: FilewheelError | None = None
        """Why this handle is finished: a flush failed."""
        self._unreported: FilewheelError | None = None
        """An error of the flushing thread that no caller has seen."""
        self._flusher: threading.Thread | None = None
        self._interval_s = 0.0
        self._closed = False
        self.last = b""
        """The last frame written."""
        self.copies: Copying | None = None
        """Writes the frames to other wheels too. Set with the lock held."""
        self._on_segment_end = on_segment_end
        self._on_flush = on_flush

    @property
    def number(self) -> int:
        """The number of the last frame written; the first frame of a writer has number 1."""
        with self.lock:
            return self.lender.writer.number

    @property
    def written(self) -> int:
        """The ticket of the last frame written."""
        with self.lock:
            return self.lender.writer.written

    def flush(self) -> int:
        """Make everything written so far durable; return how many wheels hold the last frame."""
        with self.one_call():
            self._check()
            ticket = self.lender.writer.written
        return self.wait_durable(ticket, "always")

    def close(self) -> None:
        """Flush, seal and unlock the segment. Everything written stays.

        Raises Poisoned when a flush failed, now or in the flushing thread, and no call has raised it yet.
        """
        with self.one_call():
            while self._flushing:
                self._changed.wait()
            if self._closed:
                return
            copies, ticket = self.copies, self.lender.writer.written
            unconfirmed = copies is not None and self._durable < ticket
            try:
                if self.broken is None:  # mutant: close-unflushed
                    self._flush_held()
            finally:
                writer = self.lender.writer
                if self.broken is None:
                    writer.seal(self._durable)
                writer.release()
                self._closed = True
                self._changed.notify_all()
                if copies is not None:
                    copies.close()
        if self._flusher is not None and self._flusher is not threading.current_thread():
            self._flusher.join(timeout=5)
        if self._unreported is not None:
            raise anew(self._unreported)
        if copies is not None and unconfirmed:
            copies.confirm(ticket, durable=True)

    def rotate(self) -> None:
        """Continue in a new segment, so that the present one can be covered and removed."""
        with self.one_call():
            while self._flushing:
                self._changed.wait()
            self._check()
            segment = self.lender.writer.segment
            if segment is not None and segment.offset:
                self._next_segment()

    def one_call(self) -> threading.RLock:
        """Return the lock, to be taken by a call that no other call of this thread may interrupt. Raises Reentered."""
        # mutant: call-in-call call-in-flush
        if self.lock._is_owned() or self._flushing == threading.get_ident():  # type: ignore[attr-defined]
            raise reentered(self._dir.path)
        return self.lock

    # -- segments ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.broken is not None:
            self._unreported = None
            raise anew(self.broken)
        if self._closed:
            raise Closed("the journal is closed", path=self._dir.path, hint="open the wheel again")

    def ready(self, body_bytes: int, *, ids: int = 1) -> Writer:
        """Return the writer, with ids left and a segment that has room for a frame with a body of this size.

        Called with the lock held. May wait with the lock released; afterwards the frame can be written without
        waiting.
        """
        if body_bytes > BODY_BYTES_MAX:
            raise TooLarge(
                f"{body_bytes} bytes in one commit; the limit is {BODY_BYTES_MAX}", hint="enqueue them in several calls"
            )
        size = HEADER_BYTES + body_bytes + 8
        while True:
            self._check()
            if self.copies is not None:
                self.copies.ready()
            writer = self.lender.writer
            segment = writer.segment
            if segment is None and not writer.has_started and writer.ids.has(ids):
                writer.open_segment(1)
                return writer
            if segment is None or segment.failed or not writer.ids.has(ids):
                act = self._retire
            elif segment.offset and segment.offset + size > self._segment_bytes:
                act = self._next_segment
            elif (
                writer.commits >= _FILL_AFTER_COMMITS
                and segment.offset + size > segment.filled
                and size <= self._fill_bytes  # a larger frame pays for its own growth
            ):
                self._fill(segment)
                continue
            else:
                fills = writer.commits >= _FILL_AFTER_COMMITS and self._fill_bytes
                writer.free_to = segment.filled if fills else self._segment_bytes
                return writer
            if self._flushing:  # mutant: rotate-under-flush
                # During a flush, do not close its descriptor or take its error.
                self._changed.wait()
            else:
                act()

    def _next_segment(self) -> None:
        writer = self.lender.writer
        writer.free_to = 0
        # mutant: rotate-unflushed
        self._flush_held()  # O1: before anyone can be released by a flush of the next segment
        old = writer.segment
        assert old is not None
        writer.seal(self._durable)
        end = writer.position
        try:
            writer.open_segment(old.n + 1)
        except BaseException:
            # O2: a live writer holds a locked segment. Without a next one, this writer has ended.
            writer.segment = None  # first: after another Ctrl-C, nothing is written to the closed file
            old.release()
            self._segment_ended(end, last=True)
            self._renew()
            raise
        old.release()
        self._segment_ended(end, last=False)

    def _segment_ended(self, end: Position, *, last: bool) -> None:
        if self._on_segment_end is not None:
            self._on_segment_end(self.lender.writer.name, end, last)

    def _retire(self) -> None:
        """End this writer and become another: after a write that failed, or when its sequence is used up."""
        writer = self.lender.writer
        if writer.segment is not None:
            self._flush_held()  # mutant: retire-unflushed
            end = writer.position
            writer.release()
            self._segment_ended(end, last=True)
        self._renew()

    def _renew(self) -> None:
        """Become a new writer: another name, another sequence, no segment yet."""
        self.lender.replace(Writer(self._dir, self.lender.writer.written))

    # -- writing, with the lock held ---------------------------------------------------------------------------

    def append(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> int:
        """Write a frame, after `ready`; return its ticket."""
        writer = self.lender.writer
        segment, ticket = writer.segment, writer.written + 1
        assert segment is not None
        frame = seal(
            body,
            seed=segment.seed,
            offset=segment.offset,
            number=ticket - writer.first,
            synced=writer.synced(self._durable),
            puts=puts,
            drops=drops,
            first=first,
            last=last,
        )
        segment.append(frame)
        writer.written, self.last = ticket, frame
        if self.copies is not None:  # mutant: mirror-batch-unwritten
            self.write_copies()
        return ticket

    def write_copies(self) -> None:
        """Write the last frame to the other wheels that do not have it."""
        writer = self.lender.writer
        segment = writer.segment
        if self.copies is not None and segment is not None:
            self.copies.write(writer.written, segment.name, segment.offset - len(self.last), self.last)

    def append_put(
        self, due_us: int, enqueued_us: int, tail: bytes, payload: bytes, size: int
    ) -> tuple[MessageId, int]:
        """Write a frame with one new put, whose body has at most `size` bytes; return its id and its ticket.

        Most producers write single puts, so this is the short path: one check of the segment, one frame.
        """
        writer, copies = self.lender.writer, self.copies
        segment, ids = writer.segment, writer.ids
        if (
            copies is not None
            or segment is None
            or segment.failed
            or segment.offset + size > writer.free_to
            or ids.seq >= SEQ_END
        ):
            writer = self.ready(size)
            segment, ids, copies = writer.segment, writer.ids, self.copies
            assert segment is not None
        first, durable, ticket = writer.first, self._durable, writer.written + 1
        frame, id_ = put_frame(
            ids.low,
            ids.take(1),
            due_us,
            enqueued_us,
            tail,
            payload,
            segment.seed,
            segment.offset,
            ticket - first,
            durable - first if durable > first else 0,
        )
        segment.append(frame)  # mutant: mirror-first
        writer.written, self.last = ticket, frame
        if copies is not None:  # mutant: mirror-first.2
            self.write_copies()
        return id_, ticket

    def lend(self, size: int) -> bool:
        """Lend the writer to a pen with room for a put of this size; False when the put has to take the other path."""
        if not self._has_pens or self.copies is not None or size > _PEN_BYTES:
            return False
        with self.one_call():
            writer = self.ready(size)
            if self.copies is not None or writer.segment is None or writer.segment.offset + size > writer.free_to:
                return False
            self._has_pens = self.lender.lend(self._dir.disk, self._durable)
            return self._has_pens

    def pen_failed(self, exc: OSError) -> FilewheelError:
        """Take the writer back from a pen that could not write, and return the error."""
        with self.lock:
            segment = self.lender.writer.segment
            place = self._dir.place(layout.JOURNAL) if segment is None else segment.place
            return disk_error(exc, place, undone=UNWRITTEN)

    def _fill(self, segment: Segment) -> None:
        """Write zeros ahead. They share the flush of the frame that needed them: one growth of the file for both."""
        start = max(segment.filled, segment.offset)
        if not segment.fill(self._fill_bytes, self._segment_bytes):
            self._fill_bytes = 0  # no room to spare: this handle appends without zeros from now on
        elif self.copies is not None:
            self.copies.fill(segment.name, start, segment.filled - start)

    # -- flushing ------------------------------------------------------------------------------------------

    def wait_durable(self, ticket: int, sync: Sync) -> int:
        """Wait until the frame with this ticket is as durable as `sync` asks; return how many wheels hold it."""
        if sync == "always":
            self.flush_to(ticket)
        elif sync != "never":
            self.flush_later(float(sync))
        copies = self.copies
        return 1 if copies is None else copies.confirm(ticket, durable=sync == "always")

    def flush_to(self, ticket: int) -> None:
        """Wait until the frame with this ticket is durable. Of the threads that wait, one flushes for all."""
        me, target, failed, is_mine, done = threading.get_ident(), 0, None, False, False
        try:
            with self.one_call():
                while True:
                    if self._durable >= ticket:
                        return
                    if self.broken is not None:
                        raise anew(self.broken)
                    if not self._flushing:
                        break
                    self._changed.wait()
                writer = self.lender.writer
                target, segment = writer.written, writer.segment
                is_mine = True
                self._flushing = me
            if segment is not None:
                self._flush_all(segment, target)
            done = True
        except OSError as exc:
            failed = exc  # mutant: error-ignored
        finally:
            # Also after an interrupt (Ctrl-C): other threads must not wait for this flush for ever.
            if is_mine and self._flushing == me:
                with self.lock:
                    self._flushing = 0
                    self._changed.notify_all()
                    if failed is not None:
                        self._poison(failed)
                    if done:
                        self._durable = target  # mutant: flush-counts-later
                        writer = self.lender.writer
                        writer.commits += 1
                        if writer.commits == _FILL_AFTER_COMMITS:
                            writer.free_to = 0

    def _flush_all(self, segment: Segment, ticket: int) -> None:
        """Flush a segment, and its frames on other wheels, side by side. Raises OSError when the segment's failed."""
        copies = self.copies
        if copies is not None:
            copies.begin(ticket)
        segment.flush(self._on_flush)  # mutant: mirror-flushed-later
        if copies is not None:
            copies.finish(ticket)  # mutant: mirror-unflushed

    def _flush_held(self) -> None:
        """Flush with the lock held and no other flush in progress."""
        self._check()
        writer = self.lender.writer
        if self._durable < writer.written:
            try:
                if writer.segment is not None:
                    self._flush_all(writer.segment, writer.written)
            except OSError as exc:
                self._poison(exc)
            self._durable = writer.written
            self._changed.notify_all()

    def _poison(self, exc: OSError) -> None:
        """Finish this handle. No flush is repeated: after an error the kernel may drop the pages and report success."""
        writer = self.lender.writer  # mutant: pen-after-poison
        writer.free_to = 0
        broken = Poisoned(
            f"a flush failed ({exc.strerror or exc}); unconfirmed messages may or may not be on disk",
            path=self._dir.path if writer.segment is None else writer.segment.place,
            hint="close this handle, look at the kernel log, open it again",
        )
        broken.__cause__ = exc
        self.broken = anew(broken)  # mutant: flush-again
        self._changed.notify_all()
        raise broken

    def flush_later(self, interval_s: float) -> None:
        """Start the thread that flushes every `interval_s`, or change its interval."""
        if self._flusher is not None and self._interval_s == interval_s:
            return
        with self.one_call():
            self._interval_s = interval_s
            if self._flusher is None:
                with contextlib.suppress(OSError):
                    flusher = threading.Thread(target=self._flush_loop, name="filewheel-flush", daemon=True)
                    self._flusher = started(flusher)  # mutant: interval-never
        if self._flusher is None:
            self.flush()  # no thread can be started: flush now  # mutant: interval-unthreaded

    def _flush_loop(self) -> None:
        while True:
            with self.lock:
                # mutant: flusher-sleeps-on
                if not self._closed:  # `close` notifies once: after it, this would wait for the whole interval
                    self._changed.wait(self._interval_s)
                if self._closed or self.broken is not None:
                    return
            try:
                self.flush()
            except Closed:  # mutant: flusher-too-late
                return  # `close` has flushed everything
            except TooFewCopies:
                continue  # the frames are in this directory; the next enqueue raises  # mutant: flusher-ends
            except FilewheelError as exc:
                self._unreported = anew(exc)
                return  # the next call or `close` raises it
