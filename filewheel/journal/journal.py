"""A writer's own journal: every enqueue, cancel and acknowledgement is a record in one of its frames.

Here messages get their ids and become frames; how these become durable is the appender's. What must not be left half
done by a crash is one frame (rule E3 of docs/adr/0002-the-protocol.md). A single put is what most producers do all day,
so it takes the short way: one look at the segment, one frame, and none of the calls between; and where it need not be
durable, a pen (docs/adr/0023-a-pen-that-writes.md), which is one call without the lock.

Invariant: an id is given out once, with the lock held or by the one pen that is lent, by the writer whose name is in
it; a frame that counts is where the roster asks for it, looked at less than a fifth of a second before it was written,
or afterwards.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.disk.begun import Marks
from filewheel.disk.directory import Directory, DiskFactory, Sync
from filewheel.disk.disk import OsDisk
from filewheel.errors import UNWRITTEN, DiskError, FilewheelError, disk_error, partly_done, unconfirmed
from filewheel.format import layout
from filewheel.format.columns import Run, runs_of
from filewheel.format.frame import HEADER_BYTES, body_of
from filewheel.format.id_source import SEQ_END, Entropy
from filewheel.format.ids import Ids
from filewheel.format.record import ID, PUT_PREFIX
from filewheel.journal.appender import FILL_BYTES, SEGMENT_BYTES, Appender
from filewheel.journal.copies import Copies
from filewheel.journal.segment import Segment
from filewheel.message import ID_END, MessageId, receipt
from filewheel.native.compiled import pack_drops, pack_puts, put_frame
from filewheel.roster.fence import LOOK_US, Fence
from filewheel.roster.roster import Roster

BATCH_BYTES = 8 << 20
_PEN_BYTES = 32 << 10
_ONE_BYTES = 256  # what a frame with one put has at most beside its payload and tail
_TURNS = 20
_NEVER_US = -(1 << 62)


class Journal(Appender):
    """One writer of messages. Thread-safe. Opens its first segment with its first record."""

    _putting = False
    """A thread is inside of `put`."""
    _has_pens = True
    """The disk gives pens, as far as is known."""
    roster: Roster | None = None
    """The set that the wheel is in, as `follow` was told last."""

    def __init__(
        self,
        directory: Directory,
        *,
        entropy: Entropy = secrets.token_bytes,
        disk: DiskFactory = OsDisk,
        clock: Clock = SYSTEM_CLOCK,
        on_copies: Literal["raise", "ignore"] = "raise",
        segment_bytes: int = SEGMENT_BYTES,
        fill_bytes: int = FILL_BYTES,
    ) -> None:
        """`disk` opens mirrors. `on_copies` says what a call does that fewer wheels hold than were asked for."""
        super().__init__(directory, entropy=entropy, segment_bytes=segment_bytes, fill_bytes=fill_bytes)
        self._factory = disk
        self._clock = clock
        self._strict = on_copies == "raise"
        self.marks: Marks | None = None
        """Told of drops: a keeper must not begin what they end. None for the keeper's own."""
        self._dropped = 0
        """The ticket of the last frame with a drop."""
        self.fence: Fence | None = None
        """Looks at the roster for this journal, with its lock held; None for one that writes to no mirrors."""
        self._looked_us = _NEVER_US
        self.before_flush: Callable[[], None] | None = None
        """Makes durable what has to be when this journal is: the entries of its messages in the index of keys."""

    def look(self) -> None:
        """Look at the roster, and write for the set that it shows from the next frame on. Cost: one stat.

        Raises Fenced, Damaged, DiskError, when nothing may be written.
        """
        with self.one_call():
            self._recall()
            self._look(self._written)

    def _look(self, ticket: int) -> None:
        fence, now_us = self.fence, self._clock.steady_us()
        assert fence is not None
        fence.look()
        if self._strict:
            fence.check_may_write()
        roster = fence.roster
        # The mirrors that a keeper had when its wheel was fenced are given its last acknowledgements.
        if roster != self.roster and (roster is None or roster.role == "primary"):
            self._follow(roster, ticket)
        # Last: whatever raised, the next call looks again.
        self._looked_us = now_us

    def _is_old(self) -> bool:
        """Tell whether the last look is so old that a mirror may have come into the set that counts as in step."""
        return self.fence is not None and not 0 <= self._clock.steady_us() - self._looked_us < LOOK_US

    def _look_again(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        """Look when the frame is written already, and give it to the mirrors that have come into the set.

        A keeper does not stop for what it meets there: its next claim does.
        """
        try:
            self._look(self._written - 1)
        except FilewheelError as exc:
            if self._strict:
                raise unconfirmed(exc) from exc
        if self._copies is not None:
            self._copies.write(self._written, body, puts, drops, first, last)

    def follow(self, roster: Roster | None) -> None:
        """Write what comes to the mirrors of this roster too, and to no others. Cost: nothing when it is the same.

        A wheel that is no primary has none. A mirror that cannot be opened is dealt with as the roster says, at once
        or with the next enqueue. Raises Fenced when a mirror shows that another wheel was promoted.
        """
        if roster == self.roster:
            return
        with self.one_call():
            self._recall()
            self._follow(roster, self._written)

    def _follow(self, roster: Roster | None, ticket: int) -> None:
        """Write the frames after this one to the mirrors of a roster."""
        copies = self._copies
        assert copies is None or isinstance(copies, Copies)
        if roster is not None and roster.role == "primary" and (roster.mirrors() or roster.copies > 1):
            if copies is None:
                copies = Copies(
                    self._dir, disk=self._factory, entropy=self._entropy, clock=self._clock, strict=self._strict
                )
            # Set first: a mirror that shows a higher epoch leaves nothing that could be written to.
            self._copies = copies
            copies.follow(roster, ticket)
        elif copies is not None:
            self._copies = None
            copies.release()
        self.roster = roster

    def _write(self, segment: Segment, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        if drops and self.marks is not None:
            self.marks.make()
        super()._write(segment, body, puts, drops, first, last)
        if drops:
            self._dropped = self._written
        if self._is_old():
            self._look_again(body, puts, drops, first, last)

    def _flush_all(self, segment: Segment, ticket: int) -> None:
        if self.before_flush is not None:
            self.before_flush()
        super()._flush_all(segment, ticket)

    def settle(self, ticket: int, sync: Sync) -> int:
        """Return when the frame is as durable as `sync` asks, and its drops are told of; tell how many hold it."""
        self.tell()
        return super().settle(ticket, sync)

    def tell(self) -> None:
        """Tell a keeper of the drops that were written: it begins nothing that they end. Raises DiskError."""
        dropped = self._dropped  # before the number: the mark must not be older than the drops that it is for
        if self.marks is not None and dropped:
            self.marks.note(self.writer.encode() + self.number.to_bytes(8, "little"), dropped)

    def put(self, due_us: int, enqueued_us: int, tail: bytes, payload: bytes, *, sync: Sync = "always") -> MessageId:
        """Write one new message, and return its id. `tail` is what stands between `enqueued_us` and payload."""
        size = len(payload) + len(tail) + _ONE_BYTES
        if sync != "always":
            try:
                written = self._put_with_pen(due_us, enqueued_us, tail, payload)
                if written is None and self._lend(size):
                    written = self._put_with_pen(due_us, enqueued_us, tail, payload)
            except OSError as exc:
                raise self._pen_failed(exc) from exc
            if written is not None:
                if sync != "never":
                    self._flush_later(float(sync))
                return written
        if self._putting:
            self._let_others_run()
        with self.one_call():
            self._recall()
            self._putting = True
            segment, copies = self._segment, self._copies
            if (
                copies is not None or segment is None or segment.failed
                or segment.offset + size > self._free_to or self._ids.seq >= SEQ_END
            ):  # fmt: skip
                segment = self._ready(size)
                copies = self._copies
            first, durable, ticket = self._first, self._durable, self._written + 1
            frame, id_ = put_frame(
                self._ids.low, self._ids.take(1), due_us, enqueued_us, tail, payload, segment.seed, segment.offset,
                ticket - first, durable - first if durable > first else 0,
            )  # fmt: skip
            segment.append(frame)
            self._written = ticket
            if copies is not None:
                copies.write(ticket, body_of(frame), 1, 0, id_, id_)
            if self._is_old():
                self._look_again(body_of(frame), 1, 0, id_, id_)
                copies = self._copies
            self._putting = False
        if sync == "always":
            self._flush_to(ticket)
        elif sync != "never":
            self._flush_later(float(sync))
        return id_ if copies is None else receipt(id_, copies.confirm(ticket, durable=sync == "always"))

    def _lend(self, size: int) -> bool:
        """Lend a pen to the puts that come, with room for one of this size; False when the journal has to write it.

        Nothing is looked at from then on before `_recall`.
        """
        if not self._has_pens or self._copies is not None or size > _PEN_BYTES:
            return False
        with self.one_call():
            self._recall()
            segment = self._ready(size)
            if self._copies is not None or segment.offset + size > self._free_to:
                return False
            pen = self._dir.disk.pen(
                segment.fd, self._ids.low, self._ids.seq, SEQ_END, segment.seed, segment.offset, self._free_to,
                self._written - self._first, max(0, self._durable - self._first),
            )  # fmt: skip
            if pen is None:
                self._has_pens = False
                return False
            # First noted, then lent: Ctrl-C in between leaves a pen that nobody puts with.
            self._pen = pen
            self._put_with_pen = pen.put
            return True

    def _pen_failed(self, exc: OSError) -> FilewheelError:
        """Take back a pen that could not write, and return its error."""
        with self.lock:
            self._recall()
            segment = self._segment
            place = self._dir.place(layout.JOURNAL) if segment is None else segment.place
            return disk_error(exc, place, undone=UNWRITTEN)

    def _let_others_run(self) -> None:
        """Wait until no thread is inside of a put, but not long.

        Who waits for a lock in the kernel is handed it on release, before it may run; then the thread that runs has
        to stop at its own next put, and each put costs a switch from thread to thread. So it is not waited for there.
        Only a hint: an interrupt may leave the mark set, which the next put takes away.
        """
        for _ in range(_TURNS):
            time.sleep(0)
            if not self._putting:
                return

    def move(self, due_us: int, rest: bytes, drop: bytes) -> tuple[MessageId, int]:
        """Write a packed drop and the put that takes its place (its id made here, `rest` what follows the id).

        They are one frame: both or neither (E3). Returns that id, and the ticket to wait with.
        """
        with self.one_call():
            self._recall()
            segment = self._ready(len(rest) + 64)
            id_ = self._ids.id_at(due_us, self._ids.take(1))
            dropped = drop[ID]
            first, last = (id_, dropped) if id_ < dropped else (dropped, id_)
            self._write(segment, drop + PUT_PREFIX + id_ + rest, 1, 1, first, last)
            return id_, self._written

    def put_many(
        self,
        dues_us: Sequence[int],
        middle: bytes | Sequence[bytes],
        payloads: Sequence[bytes],
        *,
        size_bytes: int | None = None,
        sync: Sync = "always",
    ) -> Ids:
        """Write many puts and return their ids: one frame up to BATCH_BYTES, and one flush.

        `middle` is what stands between id and payload: one for all, or one for each. `size_bytes`: of all payloads.
        """
        ids: list[bytes] = []
        least = ID_END
        done = ticket = 0
        copies = 1
        for run in runs_of(dues_us, middle, payloads, BATCH_BYTES, size_bytes):
            try:
                made, first, ticket = self._put_run(run)
            except DiskError as exc:
                raise (partly_done(exc, done) if done else exc) from exc.__cause__
            ids.append(made)
            least = min(least, first)
            done += len(run.payloads)
        if ids:
            copies = self.settle(ticket, sync)
        return Ids(ids[0] if len(ids) == 1 else b"".join(ids), copies, least)

    def _put_run(self, run: Run) -> tuple[bytes, bytes, int]:
        """Write puts as one frame; return their ids, one behind the other, the least, and the ticket to wait with."""
        with self.one_call():
            self._recall()
            count = len(run.payloads)
            segment = self._ready(run.size_bytes, ids=count)
            seq = self._ids.take(count)
            body, made, first, last = pack_puts(self._ids.low, seq, run.dues_us, run.middle, run.payloads)
            self._write(segment, body, count, 0, first, last)
            return made, first, self._written

    def append(self, records: Sequence[bytes], puts: int, *, sync: Sync = "always") -> None:
        """Write records that have their ids already (drops, imports) as one frame; `puts` of them are puts."""
        if records:
            self.settle(self.write(records, puts), sync)

    def write(self, records: Sequence[bytes], puts: int) -> int:
        """Write records as one frame without waiting for a flush; return the ticket to wait with."""
        with self.one_call():
            self._recall()
            body = b"".join(records)
            segment = self._ready(len(body))
            ids = [r[ID] for r in records]
            self._write(segment, body, puts, len(records) - puts, min(ids), max(ids))
            return self._written

    def drop(self, ids: list[bytes], reason: int) -> int:
        """Write a drop for each of these ids as one frame, as `write` does."""
        with self.one_call():
            self._recall()
            body = pack_drops(ids, reason)
            segment = self._ready(len(body))
            self._write(segment, body, 0, len(ids), min(ids), max(ids))
            return self._written

    def write_body(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> int:
        """Write records that were in frames before, as one frame, without waiting for a flush; return the ticket."""
        with self.one_call():
            self._recall()
            segment = self._ready(len(body))
            self._write(segment, body, puts, drops, first, last)
            return self._written

    def reserve(self, body_bytes: int) -> None:
        """Make room for frames with so many bytes in all, on a disk that is about to be full. May make a segment.

        Raises WheelFull where there is none.
        """
        with self.one_call():
            self._recall()
            segment = self._ready(body_bytes)
            if not segment.reserve(HEADER_BYTES + body_bytes + 8):
                raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), segment.place)

    def new_id(self, due_us: int) -> MessageId:
        """Return an id for a message that the caller writes with `write` or `append`."""
        return self.new_ids([due_us])[0]

    def new_ids(self, dues_us: Sequence[int]) -> list[MessageId]:
        """Return as many ids, in their order, as `new_id` does one."""
        with self.one_call():
            self._recall()
            if not self._ids.has(len(dues_us)):
                self._ready(0, ids=len(dues_us))
            return self._ids.ids_at(dues_us, self._ids.take(len(dues_us)))
