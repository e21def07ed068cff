"""A writer's own journal: every enqueue, cancel and acknowledgement is a record in one of its frames.

Messages get their ids here and become frames; the appender makes the frames durable, and the copies write them to the
mirrors of the set. Records that a crash must not separate are one frame (rule E3 of docs/adr/0002-the-protocol.md). A
put that need not be durable is written by a pen (docs/adr/0023-a-pen-that-writes.md): one call, without the lock.

Invariant: an id is given out once, with the lock held or by the one pen that is lent, by the writer whose name is in
it. A frame that counts is on the mirrors that the roster asks for: the roster was read less than a fifth of a second
before the frame was written, or after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from filewheel.disk.begun import Marks
from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.errors import DiskError, FilewheelError, disk_errors, partly_done, unconfirmed
from filewheel.format import layout
from filewheel.format.frame import portions
from filewheel.format.ids import Ids
from filewheel.format.record import ID, PUT_PREFIX, RESCHEDULED, pack_drop
from filewheel.format.settings import Sync
from filewheel.journal.appender import SEGMENT_BYTES, Appender
from filewheel.journal.columns import BatchPart, runs_of
from filewheel.journal.copies import Copies
from filewheel.journal.segment import FILL_BYTES
from filewheel.message import ID_END, MessageId, receipt
from filewheel.native.compiled import pack_drops, pack_puts
from filewheel.roster.fence import LOOK_US, Fence
from filewheel.roster.roster import Roster

BATCH_BYTES = 8 << 20
_ONE_BYTES = 256
"""The rest of a frame with one put, beside payload and tail, has at most so many bytes."""
_TURNS = 20
_NEVER_US = -(1 << 62)


class Journal:
    """One writer of messages. Thread-safe. Opens its first segment with its first record."""

    _putting = False
    """A thread is inside `put`."""

    def __init__(
        self,
        directory: Directory,
        *,
        on_copies: Literal["raise", "ignore"] = "raise",
        segment_bytes: int = SEGMENT_BYTES,
        fill_bytes: int = FILL_BYTES,
        fence: Fence | None = None,
        marks: Marks | None = None,
        on_segment_end: Callable[[str, Position, bool], None] | None = None,
        on_flush: Callable[[int], None] | None = None,
    ) -> None:
        """With `on_copies` "ignore" no call fails because too few wheels hold its frame.

        `fence` checks the roster, with the lock held; a journal without one has no mirrors. `marks` are written to
        after drops, so that no keeper begins a dropped message; the keeper's own journal has none. The two functions
        are those of Appender.
        """
        self._dir = directory
        self._clock = directory.env.clock
        self._strict = on_copies == "raise"
        self.appender = Appender(
            directory,
            segment_bytes=segment_bytes,
            fill_bytes=fill_bytes,
            on_segment_end=on_segment_end,
            on_flush=on_flush,
        )
        self._lender = self.appender.lender
        self._copies: Copies | None = None
        """The mirrors, also `appender.copies`."""
        self.roster: Roster | None = None
        """The set that the frames are written for."""
        self._marks = marks
        self._dropped = 0
        """The ticket of the last frame with a drop."""
        self._fence = fence
        self._looked_us = _NEVER_US
        self._purged: tuple[int, int, int] | None = None
        """The file `purged` when the present segment was begun, or before."""

    @property
    def writer(self) -> str:
        """The name of the present writer."""
        return self._lender.name

    @property
    def position(self) -> Position:
        """The end of the writer's journal; segment 0 before its first segment."""
        with self.appender.lock:
            return self._lender.writer.position

    def flush(self) -> int:
        """Make everything written so far durable; return how many wheels hold the last frame."""
        self.mark_drops()
        return self.appender.flush()

    def rotate(self) -> None:
        """Continue in a new segment, so that the present one can be covered and removed."""
        self.appender.rotate()

    def close(self) -> None:
        """Flush, seal and unlock the segment. Everything written stays. Raises Poisoned when a flush failed."""
        self.appender.close()

    # -- the set ---------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check the roster, and write for the set in it from the next frame on. Cost: two stats.

        After a purge it goes on in a new segment, so that the keeper can remove the old one, with what has ended in it.

        Raises Fenced, Damaged or DiskError when nothing may be written.
        """
        with self.appender.one_call():
            self._look(self.appender.written)
        with disk_errors(self._dir.path):
            purged = self._dir.disk.identity(layout.PURGED)
        if purged != self._purged:
            self._purged = purged
            self.rotate()  # mutant: purge-unheeded

    def _look(self, ticket: int) -> None:
        fence, now_us = self._fence, self._clock.steady_us()
        assert fence is not None
        fence.look()
        if self._strict:  # mutant: refused-once
            fence.check_may_write()
        roster = fence.roster
        # A fenced keeper keeps its mirrors: they get its last acknowledgements.
        if roster != self.roster and (roster is None or roster.role == "primary"):
            self._follow(roster, ticket)  # mutant: mirrors-untold follow-once
        # Set last, so that after an error the next call checks again.
        self._looked_us = now_us

    def _is_old(self) -> bool:
        """Return whether the last look is so old that a mirror may have joined the set and be current since."""
        return self._fence is not None and not 0 <= self._clock.steady_us() - self._looked_us < LOOK_US

    def _look_again(self, ticket: int) -> None:
        """Check the roster after a frame was written, and write the frame to mirrors that have joined the set.

        A keeper does not stop for an error here: its next claim does.
        """
        try:
            self._look(ticket - 1)  # mutant: late-unneeded
        except FilewheelError as exc:
            if self._strict:  # mutant: late-ack-refused
                raise unconfirmed(exc) from exc  # mutant: late-fence-confirmed
        self.appender.write_copies()  # mutant: late-ungiven

    def follow(self, roster: Roster | None) -> None:
        """Write the frames from now on to the mirrors of this roster, and to no others. Free for the same roster.

        A wheel that is no primary has no mirrors. A mirror that cannot be opened is treated as the roster says, now or
        with the next enqueue. Raises Fenced when a mirror shows that another wheel was promoted.
        """
        if roster == self.roster:
            return
        with self.appender.one_call():
            self._follow(roster, self.appender.written)

    def _follow(self, roster: Roster | None, ticket: int) -> None:
        """Write the frames after this one to the mirrors of a roster."""
        copies = self._copies
        if roster is not None and roster.role == "primary" and (roster.mirrors() or roster.copies > 1):
            if copies is None:
                copies = Copies(self._dir, strict=self._strict)
            # Set before `follow`: a mirror that shows a higher epoch leaves nothing that could be written to.
            self._copies = self.appender.copies = copies
            copies.follow(roster, ticket)
        elif copies is not None:
            self._copies = self.appender.copies = None
            copies.release()
        self.roster = roster

    # -- writing ---------------------------------------------------------------------------------------------

    def _append(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> int:
        """Write a frame for which the appender is ready; return its ticket."""
        if drops and self._marks is not None:
            self._marks.make()
        ticket = self.appender.append(body, puts, drops, first, last)
        if drops:
            self._dropped = ticket
        if self._is_old():  # mutant: late-unlooked
            self._look_again(ticket)
        return ticket

    def wait_durable(self, ticket: int, sync: Sync) -> int:
        """Mark the drops, and wait until the frame is as durable as `sync` asks; return how many wheels hold it."""
        self.mark_drops()
        return self.appender.wait_durable(ticket, sync)

    def mark_drops(self) -> bool:
        """Mark the drops that were written, so that no keeper begins a dropped message; return whether that is done."""
        dropped = self._dropped  # before the number: the mark must not be older than its drops
        if self._marks is None or dropped <= self._marks.upto:
            return True
        return self._marks.note(self._lender.name.encode() + self.appender.number.to_bytes(8, "little"), dropped)

    def put(self, due_us: int, enqueued_us: int, tail: bytes, payload: bytes, *, sync: Sync = "always") -> MessageId:
        """Write one new message and return its id. `tail` stands between `enqueued_us` and the payload."""
        appender = self.appender
        size = len(payload) + len(tail) + _ONE_BYTES
        if sync != "always":
            try:
                written = self._lender.put(due_us, enqueued_us, tail, payload)
                if written is None and appender.lend(size):
                    written = self._lender.put(due_us, enqueued_us, tail, payload)
            except OSError as exc:
                raise appender.pen_failed(exc) from exc
            if written is not None:
                if sync != "never":
                    appender.flush_later(float(sync))
                return written
        if self._putting:
            self._let_others_run()
        with appender.one_call():
            self._putting = True
            id_, ticket = appender.append_put(due_us, enqueued_us, tail, payload, size)
            if self._is_old():  # mutant: late-put-unlooked
                self._look_again(ticket)
            copies = self._copies
            self._putting = False
        if sync == "always":
            appender.flush_to(ticket)
        elif sync != "never":
            appender.flush_later(float(sync))
        return id_ if copies is None else receipt(id_, copies.confirm(ticket, durable=sync == "always"))

    def _let_others_run(self) -> None:
        """Wait a moment until no thread is inside `put`.

        A thread that waits for the lock in the kernel gets it on release, before it may run. The running thread then
        stops at its own next put, so each put costs a thread switch. Waiting here avoids that. `_putting` is only a
        hint: an interrupt may leave it set, and the next put clears it.
        """
        for _ in range(_TURNS):
            time.sleep(0)
            if not self._putting:
                return

    def move(self, due_us: int, rest: bytes, drop: bytes) -> tuple[MessageId, int]:
        """Write a packed drop and the put that takes its place; return the put's id, and the ticket to wait with.

        `rest` follows the id in the put. Drop and put are one frame: both or neither (E3).
        """
        with self.appender.one_call():
            ids = self.appender.ready(len(rest) + 64).ids
            id_ = ids.id_at(due_us, ids.take(1))
            dropped = drop[ID]
            first, last = (id_, dropped) if id_ < dropped else (dropped, id_)
            return id_, self._append(drop + PUT_PREFIX + id_ + rest, 1, 1, first, last)  # mutant: two-frames

    def moves(self, due_us: int, rests: Mapping[MessageId, bytes]) -> Iterator[tuple[dict[MessageId, MessageId], int]]:
        """Write many moves to one due, as `move` does, in frames of up to BATCH_BYTES.

        Yields for each frame old id → new id, and the ticket to wait with. A move is whole in one frame.
        """
        olds = list(rests)
        for start, end in portions([len(rests[old]) + _ONE_BYTES for old in olds], BATCH_BYTES):
            some = olds[start:end]
            new = self.new_ids([due_us] * len(some))
            puts = [PUT_PREFIX + id_ + rests[old] for old, id_ in zip(some, new, strict=True)]
            drops = [pack_drop(old, RESCHEDULED) for old in some]
            ticket = self.write([*drops, *puts], len(puts))  # mutant: revived-in-two-frames
            yield dict(zip(some, new, strict=True)), ticket

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

        `middle` has the bytes between id and payload: one for all, or one for each. `size_bytes`: of all payloads.
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
            copies = self.wait_durable(ticket, sync)
        return Ids(ids[0] if len(ids) == 1 else b"".join(ids), copies, least)

    def _put_run(self, run: BatchPart) -> tuple[bytes, bytes, int]:
        """Write puts as one frame; return their joined ids, the smallest id, and the ticket to wait with."""
        with self.appender.one_call():
            count = len(run.payloads)
            ids = self.appender.ready(run.size_bytes, ids=count).ids
            body, made, first, last = pack_puts(ids.low, ids.take(count), run.dues_us, run.middle, run.payloads)
            return made, first, self._append(body, count, 0, first, last)

    def append(self, records: Sequence[bytes], puts: int, *, sync: Sync = "always") -> None:
        """Write records that already have ids (drops, imports) as one frame; `puts` of them are puts."""
        if records:
            self.wait_durable(self.write(records, puts), sync)

    def write(self, records: Sequence[bytes], puts: int) -> int:
        """Write records as one frame without waiting for a flush; return the ticket to wait with."""
        ids = [r[ID] for r in records]
        return self.write_body(b"".join(records), puts, len(records) - puts, min(ids), max(ids))

    def drop(self, ids: list[bytes], reason: int) -> int:
        """Write a drop for each of these ids as one frame, as `write` does."""
        return self.write_body(pack_drops(ids, reason), 0, len(ids), min(ids), max(ids))

    def write_body(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> int:
        """Write packed records as one frame, as `write` does."""
        with self.appender.one_call():
            self.appender.ready(len(body))
            return self._append(body, puts, drops, first, last)

    def reserve(self, size: int) -> None:
        """Make room for frames of this total size. May make a segment. Cost: nothing while enough zeros are ahead.

        Raises WheelFull when there is no room.
        """
        with self.appender.one_call():
            segment = self.appender.ready(size).segment
            assert segment is not None
            segment.reserve(size)

    def new_id(self, due_us: int) -> MessageId:
        """Return an id for a message that the caller writes with `write` or `append`."""
        return self.new_ids([due_us])[0]

    def new_ids(self, dues_us: Sequence[int]) -> list[MessageId]:
        """Return ids for messages with these dues, in order, as `new_id` does."""
        with self.appender.one_call():
            ids = self._lender.writer.ids
            if not ids.has(len(dues_us)):
                ids = self.appender.ready(0, ids=len(dues_us)).ids
            return ids.ids_at(dues_us, ids.take(len(dues_us)))
