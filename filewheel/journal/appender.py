"""A writer's segments: where frames become durable.

Each open handle is a writer of its own, with a random name and segment files that nobody else ever writes, so
committing takes no shared lock: one pwrite of a frame, one fdatasync that all waiting threads share (group commit).
A writer that commits again and again writes zeros ahead, because a flush into space that was written before costs
one device flush and a growing file two. The order of calls is the protocol's (docs/adr/0002-the-protocol.md, rules
E1-E5, O1-O3); the comments name the rule. What the frames hold is the journal's (journal.py).

Invariants: frames are numbered without a gap over all segments of a writer; a segment is never opened for appending
again; the kernel lock of the segment in use is held, so a free lock means that nothing more will come; what a pen was
lent is looked at only after it was taken back.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Protocol

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory, Sync
from filewheel.disk.reentry import one_call
from filewheel.disk.started import started
from filewheel.errors import Closed, FilewheelError, Poisoned, TooFewCopies, TooLarge
from filewheel.format.frame import BODY_BYTES_MAX, HEADER_BYTES, seal
from filewheel.format.id_source import Entropy, IdSource
from filewheel.journal.segment import Segment, no_pen
from filewheel.message import ID_END, ID_MIN
from filewheel.native.compiled import Pen
from filewheel.roster.roster import Roster

SEGMENT_BYTES = 32 << 20
FILL_BYTES = 1 << 20
_FILL_AFTER_COMMITS = 2


class Copying(Protocol):
    """What an appender asks of whoever writes its frames elsewhere too. Tickets count its frames."""

    def ready(self) -> None:
        """Raise unless a frame that is written now would be held by as many wheels as are asked for."""

    def write(self, ticket: int, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        """Write a frame that was just written here. Called with the lock held, and never raises for another disk."""

    def begin(self, ticket: int) -> None:
        """Begin to flush up to this frame."""

    def finish(self, ticket: int) -> None:
        """Return when it is flushed, or when whoever did not do it is given up. Never raises for another disk."""

    def confirm(self, ticket: int, *, durable: bool) -> int:
        """Return how many wheels hold this frame, durably or just written; raise when these are too few."""

    def close(self) -> None:
        """Let go of the other wheels."""


class Appender:
    """One writer. Thread-safe. Opens its first segment with its first frame."""

    def __init__(
        self,
        directory: Directory,
        *,
        entropy: Entropy = secrets.token_bytes,
        segment_bytes: int = SEGMENT_BYTES,
        fill_bytes: int = FILL_BYTES,
    ) -> None:
        self._dir = directory
        self._entropy = entropy
        self._segment_bytes = segment_bytes
        self._fill_bytes = fill_bytes
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        self._flushing = 0
        """The thread that flushes, without the lock."""
        self._broken: FilewheelError | None = None
        self._untold: FilewheelError | None = None
        """What the flushing thread met, and no caller has been told."""
        self._flusher: threading.Thread | None = None
        self._interval_s = 0.0
        self._closed = False
        self._copies: Copying | None = None
        """Where frames go beside this directory; set with the lock held."""
        self._free_to = 0
        """Up to here the segment takes small frames without another look (`_ready`)."""
        self.roster: Roster | None = None
        """The set that the wheel is in, as `follow` was told last."""
        # Frames over the life of this handle, whatever writer they belong to: what waiters wait for.
        self._written = 0
        self._durable = 0
        self.on_segment_end: Callable[[str, Position, bool], None] | None = None
        """Told (writer, where its segment ends, whether the writer ends too), with the lock held."""
        self.on_flush: Callable[[int], None] | None = None
        """Told the microseconds of each flush, perhaps with the lock held. It must not raise, nor use this journal."""
        self._pen: Pen | None = None
        """Has the numbers of the segment in use, as long as it is set: `_recall`."""
        self._put_with_pen = no_pen
        """Puts with the pen, without the lock."""
        self._renew()

    def _renew(self) -> None:
        """Become a new writer: a fresh name, a fresh sequence, no segment yet."""
        self._ids = IdSource(self._entropy)
        self._segment: Segment | None = None
        self._first = self._written
        self._commits = 0
        self._free_to = 0

    @property
    def writer(self) -> str:
        """The name that this writer has now."""
        return self._ids.name

    @property
    def position(self) -> Position:
        """Where this writer stands; segment 0 before its first."""
        with self.lock:
            self._recall()
            segment = self._segment
            return Position(0, 0, 0) if segment is None else Position(segment.n, segment.offset, self.number)

    @property
    def number(self) -> int:
        """The number of the last frame written; the first frame of a writer has number 1."""
        with self.lock:
            self._recall()
            return self._written - self._first

    @property
    def synced(self) -> int:
        """The number of the last frame known to be durable; 0 when none is."""
        return max(0, self._durable - self._first)

    def flush(self) -> int:
        """Make everything written so far durable; return how many wheels hold the last of it."""
        with self.one_call():
            self._recall()
            self._check()
            ticket = self._written
        return self.settle(ticket, "always")

    def close(self) -> None:
        """Flush, seal and unlock the segment. What was written stays.

        Raises Poisoned when a flush failed, now or in the flushing thread, that nobody has been told of.
        """
        with self.one_call():
            self._recall()
            while self._flushing:
                self._wait()
            if self._closed:
                return
            copies, ticket = self._copies, self._written
            untold = copies is not None and self._durable < ticket
            try:
                if self._broken is None:
                    self._flush_held()
            finally:
                self._let_go(seal_it=self._broken is None)
                self._closed = True
                self._free_to = 0
                self._settled.notify_all()
                if copies is not None:
                    copies.close()
        if self._flusher is not None and self._flusher is not threading.current_thread():
            self._flusher.join(timeout=5)
        if self._untold is not None:
            raise self._untold
        if copies is not None and untold:
            copies.confirm(ticket, durable=True)

    def follow(self, roster: Roster | None) -> None:
        """Write for this set from the next frame on; None is a wheel that stands alone."""
        self.roster = roster

    def rotate(self) -> None:
        """Go on in a new segment, so that the present one can be covered and removed."""
        with self.one_call():
            self._recall()
            while self._flushing:
                self._wait()
            self._check()
            if self._segment is not None and self._segment.offset:
                self._next_segment()

    def one_call(self) -> threading.RLock:
        """Return the lock, for a call that none of the same thread may come into. Raises Reentered."""
        return one_call(self.lock, self._dir.path, self._flushing)

    def _wait(self, timeout_s: float | None = None) -> None:
        """Let others have the lock until they have settled something."""
        self._settled.wait(timeout_s)
        self._recall()

    def _recall(self) -> None:
        """Take back what was lent to a pen. Whoever takes the lock calls it before they look at anything."""
        pen = self._pen
        if pen is not None:
            assert self._segment is not None
            # Once more if an interrupt (Ctrl-C) comes in between: the pen is let go last.
            self._ids.seq, number = self._segment.take_back(pen)
            self._written = self._first + number
            self._put_with_pen = no_pen
            self._pen = None

    # -- segments ------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._broken is not None:
            self._untold = None
            raise self._broken
        if self._closed:
            raise Closed("the journal is closed", path=self._dir.path)

    def _ready(self, body_bytes: int, *, ids: int = 1) -> Segment:
        """Return a segment with room for a frame with a body of this size.

        May wait, and let other threads in; when it returns, the frame can be written without waiting.
        """
        if body_bytes > BODY_BYTES_MAX:
            raise TooLarge(f"{body_bytes} bytes in one commit; the limit is {BODY_BYTES_MAX}")
        size = HEADER_BYTES + body_bytes + 8
        while True:
            self._check()
            if self._copies is not None:
                self._copies.ready()
            segment = self._segment
            if segment is None and self._ids.has(ids):
                try:
                    self._segment = segment = Segment(self._dir, self.writer, 1)
                except BaseException:
                    # A keeper that saw the name come and go takes this writer for ended.
                    self._renew()
                    raise
                self._free_to = 0
                return segment
            if segment is None or segment.failed or not self._ids.has(ids):
                act = self._retire
            elif segment.offset and segment.offset + size > self._segment_bytes:
                act = self._next_segment
            elif (
                self._commits >= _FILL_AFTER_COMMITS
                and segment.offset + size > segment.filled
                and size <= self._fill_bytes  # a larger frame pays for its own growth
            ):
                self._fill(segment)
                continue
            else:
                fills = self._commits >= _FILL_AFTER_COMMITS and self._fill_bytes
                self._free_to = segment.filled if fills else self._segment_bytes
                return segment
            if self._flushing:
                # Its descriptor must not be closed, and its error not be taken, under a flush.
                self._wait()
            else:
                act()

    def _next_segment(self) -> None:
        self._free_to = 0
        self._flush_held()  # O1: before anyone can be released by a flush of the next segment
        old = self._segment
        assert old is not None
        self._seal(old)
        end = self.position
        try:
            self._segment = Segment(self._dir, self.writer, old.n + 1)
        except BaseException:
            # O2: a live writer holds a locked segment. Without a next one, this writer has ended.
            old.release()
            self._segment_ended(end, last=True)
            self._renew()
            raise
        old.release()
        self._segment_ended(end, last=False)

    def _segment_ended(self, end: Position, *, last: bool) -> None:
        if self.on_segment_end is not None:
            self.on_segment_end(self.writer, end, last)

    def _retire(self) -> None:
        """End this writer and become another: after a write that failed, or when its sequence is used up."""
        if self._segment is not None:
            self._flush_held()
            end = self.position
            self._let_go(seal_it=False)
            self._segment_ended(end, last=True)
        self._renew()

    def _let_go(self, *, seal_it: bool) -> None:
        self._free_to = 0
        segment = self._segment
        if segment is None:
            return
        if seal_it:
            self._seal(segment)
        self._segment = None
        segment.release()

    def _seal(self, segment: Segment) -> None:
        """End a segment that was flushed with an empty frame: "all before me was durable".

        What is missing before it later on was damaged. It repeats the last frame's number, so that it may itself
        be missing: it is not flushed.
        """
        if segment.offset and not segment.failed and self._durable == self._written:
            with contextlib.suppress(FilewheelError):
                segment.append(self._sealed(segment, b"", self.number, 0, 0, ID_END, ID_MIN))

    # -- for whoever writes the frames of another writer ---------------------------------------------------

    def is_there(self) -> bool:
        """Tell whether the segment in use still has its name. Cost: one stat."""
        segment = self._segment
        return segment is None or self._dir.disk.identity(segment.name) is not None

    def has_room(self, body_bytes: int) -> bool:
        """Tell whether a frame with a body of this size goes into the segment in use."""
        segment = self._segment
        end = HEADER_BYTES + body_bytes + 8 + (0 if segment is None else segment.offset)
        return segment is not None and not segment.failed and end <= self._segment_bytes

    def make_room(self, body_bytes: int) -> None:
        """See to it that a frame with a body of this size can be written. May flush, and make a segment."""
        with self.one_call():
            self._recall()
            self._ready(body_bytes)

    def fill_ahead(self) -> None:
        """Write zeros ahead where few are left, for the next flush to cover: writing goes on meanwhile."""
        with self.one_call():
            self._recall()
            segment = self._segment
            if segment is None or segment.failed or self._commits < _FILL_AFTER_COMMITS or not self._fill_bytes:
                return
            if segment.offset + self._fill_bytes // 4 <= segment.filled or segment.filled >= self._segment_bytes:
                return
            self._fill(segment)

    def copy(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        """Write a frame for which room was made."""
        with self.one_call():
            self._recall()
            assert self._segment is not None
            self._write(self._segment, body, puts, drops, first, last)

    # -- writing -------------------------------------------------------------------------------------------

    def _write(self, segment: Segment, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        segment.append(self._sealed(segment, body, self.number + 1, puts, drops, first, last))
        self._written += 1
        if self._copies is not None:
            self._copies.write(self._written, body, puts, drops, first, last)

    def _sealed(
        self, segment: Segment, body: bytes, number: int, puts: int, drops: int, first: bytes, last: bytes
    ) -> bytes:
        return seal(
            body, seed=segment.seed, offset=segment.offset, number=number, synced=self.synced,
            puts=puts, drops=drops, first=first, last=last,
        )  # fmt: skip

    def _fill(self, segment: Segment) -> None:
        """Write zeros ahead. They share the flush of the frame that needed them: one growth of the file for both."""
        if not segment.fill(self._fill_bytes, self._segment_bytes):
            self._fill_bytes = 0  # no room to be generous: this handle just appends from now on

    # -- flushing ------------------------------------------------------------------------------------------

    def settle(self, ticket: int, sync: Sync) -> int:
        """Return when the frame with this ticket is as durable as `sync` asks; tell how many wheels hold it."""
        if sync == "always":
            self._flush_to(ticket)
        elif sync != "never":
            self._flush_later(float(sync))
        copies = self._copies
        return 1 if copies is None else copies.confirm(ticket, durable=sync == "always")

    def _flush_to(self, ticket: int) -> None:
        with self.one_call():
            self._recall()
            while True:
                if self._durable >= ticket:
                    return
                if self._broken is not None:
                    raise self._broken
                if not self._flushing:
                    break
                self._wait()
            self._flushing = threading.get_ident()
            target = self._written
            segment = self._segment
        failed: OSError | None = None
        done = False
        try:
            if segment is not None:
                self._flush_all(segment, target)
            done = True
        except OSError as exc:
            failed = exc
        finally:
            # Also when an interrupt (Ctrl-C) got out of the flush: others must not wait for it for ever.
            with self.lock:
                self._recall()
                self._flushing = 0
                self._settled.notify_all()
                if failed is not None:
                    self._poison(failed)
                if done:
                    self._durable = target
                    self._commits += 1
                    if self._commits == _FILL_AFTER_COMMITS:
                        self._free_to = 0

    def _flush_all(self, segment: Segment, ticket: int) -> None:
        """Flush a segment, and what was written elsewhere, side by side. Raises OSError when the segment's failed."""
        copies = self._copies
        if copies is not None:
            copies.begin(ticket)
        segment.flush(self.on_flush)
        if copies is not None:
            copies.finish(ticket)

    def _flush_held(self) -> None:
        """Flush with the lock held and no other flush in progress."""
        self._check()
        if self._durable < self._written:
            try:
                if self._segment is not None:
                    self._flush_all(self._segment, self._written)
            except OSError as exc:
                self._poison(exc)
            self._durable = self._written
            self._settled.notify_all()

    def _poison(self, exc: OSError) -> None:
        self._free_to = 0
        # Never flushed again: after an error the kernel may drop the pages and report success.
        self._broken = Poisoned(
            f"a flush failed ({exc.strerror or exc}); what was not confirmed may or may not be there",
            path=self._segment.place if self._segment is not None else self._dir.path,
            hint="close this handle, look at the kernel log, open it again",
        )
        self._settled.notify_all()
        raise self._broken from exc

    def _flush_later(self, interval_s: float) -> None:
        """Start the thread that flushes every `interval_s`, or change its pace."""
        if self._flusher is not None and self._interval_s == interval_s:
            return
        with self.one_call():
            self._recall()
            self._interval_s = interval_s
            if self._flusher is None:
                with contextlib.suppress(OSError):
                    flusher = threading.Thread(target=self._flush_loop, name="filewheel-flush", daemon=True)
                    self._flusher = started(flusher)
        if self._flusher is None:
            self.flush()  # no thread: the caller does at once what it would have done later

    def _flush_loop(self) -> None:
        while True:
            with self.lock:
                self._recall()
                if not self._closed:  # else nobody would wake it before the interval is over
                    self._wait(self._interval_s)
                if self._closed or self._broken is not None:
                    return
            try:
                self.flush()
            except Closed:
                return  # `close` came between, and has flushed everything
            except TooFewCopies:
                continue  # it is in this directory; who enqueues next is told
            except FilewheelError as exc:
                self._untold = exc
                return  # the next call raises it, be it `close`
