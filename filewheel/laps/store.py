"""The store: the state of a wheel on disk, for the one process that may change it.

It has the checkpoint (which slot and lap files exist and how much of them is covered), one tail for each writer's
journal (how far it was read), and the keeper's own journal. Records between `covered` and `seen` are undealt: they are
read again whenever they are needed and never kept. So the store's memory does not grow with the number of messages.

The keeper uses it to fire, and a producer uses it to tidy when no keeper runs. Both hold the lock of keeper.lock;
the store's own lock serialises the keeper's threads.
Invariant: pending = (files up to their covered length + journals from covered to seen), puts minus drops.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence, Set

from filewheel.disk.checkpoint import Checkpoint, Found, Position, adopt, find_files, next_era, unnamed
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage, Quarantine
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap
from filewheel.journal.journal import Journal
from filewheel.journal.tail import Handles, Tail
from filewheel.journal.walk import Listing, listing_of
from filewheel.laps.missing import MissingFiles, find_vanished, vanished
from filewheel.laps.removal import Removal
from filewheel.laps.window import MISSING, Budget, Span, Window, read_window, spans_of
from filewheel.message import ID_MIN
from filewheel.native.loops import DROP_BYTES
from filewheel.roster.fence import Fence
from filewheel.roster.repeats import may_repeat, note_repeats
from filewheel.roster.roster import Roster

log = logging.getLogger(__name__)

LOCK_TEST_US = 200_000
"""So many deals are passed over where the last one is not known."""

OnFrame = Callable[[Frame, str], None]
"""Called with each frame of another writer, and the writer."""


class Store:
    """Positions, lengths and the keeper's own journal. `lock` guards everything in it."""

    def __init__(
        self,
        directory: Directory,
        *,
        fence: Fence | None = None,
        on_frame: OnFrame | None = None,
        on_return: Callable[[bytes], None] | None = None,
        on_flush: Callable[[int], None] | None = None,
    ) -> None:
        """`fence` and `on_flush` are for the keeper's own journal (see Journal).

        `on_return` is called with the floor of a missing file that is back.
        """
        self.dir, self.disk = directory, directory.disk
        self.clock = directory.env.clock
        self.lock = threading.RLock()
        self.handles = Handles(directory)
        self.quarantine = Quarantine(directory)
        self.removal = Removal(directory, self.handles, self.lock)
        self.checkpoint = Checkpoint()
        self.tails: dict[str, Tail] = {}
        # mutant: keeper-needs-copies
        self.own = Journal(
            directory, on_copies="ignore", fence=fence, on_segment_end=self._own_segment_ended, on_flush=on_flush
        )
        self._on_frame = on_frame
        self._on_return = on_return
        self.over: Set[bytes] = frozenset()
        """Claimed messages that are done for good, and whose drops found no room: a deal on a full disk omits them."""
        self.repeats = False
        """A message may be put twice: the mark `repeats` says so."""
        self.undealt_bytes = 0
        self.undealt_records = 0
        self.undealt_puts = 0
        self.missing = MissingFiles(directory)
        self.owes_drops = True
        """A missing file may be back since its drops were put into the checkpoint: the next deal writes them."""
        self.passes = 0
        """Whole passes over the journals so far."""
        self.notes: list[str] = list(directory.notes)
        self._locks_tested_us = 0
        self._foreign: set[str] = set()
        self._names: list[str] | None = None
        self._listing: dict[str, set[int]] = {}

    # -- start ---------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the state from disk, in the same way after a clean end and after a crash (R1-R5)."""
        with self.lock:
            # R1: bytes that a dead keeper left in the page cache only must not be relied on.
            self.disk.sync_all()  # mutant: no-sync-first
            self.checkpoint = self.dir.checkpoint()
            self.removal.remove(layout.CHECKPOINT_TMP)
            self.repeats = may_repeat(self.dir)  # mutant: mark-unread
            for writer, covered in self.checkpoint.positions.items():
                self.tails[writer] = Tail(self.dir, self.handles, writer, covered, doubt=bool(self.checkpoint.doubt))
            self._sweep_journal()
            found = find_files(self.disk, self.dir.settings.lap_of)
            if self.checkpoint.doubt:  # mutant: doubt-ignored
                self.notes.append(f"{self.checkpoint.doubt}; every slot and lap file counts as covered to its end")
                adopt(self.checkpoint, self.disk, found, self.dir.settings.lap_of)
                # The next deal must make no file under the name of another, also of one that is gone by now.
                used = [made for _, made in found.laps | found.slots]
                self.checkpoint.deal = next_era(max([self.checkpoint.deal, *used]))  # mutant: doubt-reuses-names
            else:
                self._sweep_laps(found)  # mutant: unnamed-stays
                self._miss_laps(found)  # mutant: missing-unreported
            self.ingest(test_locks=True)
            # K4: removals of the last keeper are durable (R1), and those of this one are before the next checkpoint
            # (D6). Otherwise keepers that deal once, as `run --once` and tidying, would never forget a writer.
            for writer in self.checkpoint.positions.keys() - self._listing.keys():
                self.tails[writer].gone = True  # mutant: writers-kept

    def follow(self, roster: Roster | None) -> None:
        """Write for this set; None is a wheel that stands alone."""
        with self.lock:
            self.own.follow(roster)

    def _sweep_journal(self) -> None:
        """Remove temporary files of dead writers (K5), and covered segments that came back (R5).

        A segment whose unlink a power cut undid must be removed before its writer's entry is forgotten (K4), or
        everything in it would be read again.
        """
        for last in self.disk.listdir(layout.JOURNAL):
            name = f"{layout.JOURNAL}/{last}"
            parsed = layout.parse_segment(last)
            if parsed is not None:
                covered = self.checkpoint.positions.get(parsed[0])
                if covered is not None and parsed[1] < covered.segment:  # mutant: covered-stays
                    self.removal.unlink(name)
                continue
            if not layout.is_segment_tmp(last):  # mutant: tmp-stays
                continue
            with contextlib.suppress(OSError):  # it stays: the next keeper tries again
                fd = self.disk.open(name, "r")
                try:
                    if self.disk.lock(fd, wait=False):
                        self.removal.remove(name)
                finally:
                    self.disk.close(fd)

    def _sweep_laps(self, found: Found) -> None:
        """Remove the files that the checkpoint does not name, and empty directories."""
        lap_of = self.dir.settings.lap_of
        for name in unnamed(found, self.checkpoint, lap_of):
            self.removal.remove(name)
        for lap in found.dirs - {lap_of(s) for s in self.checkpoint.slots}:
            self.removal.remove_dir(lap)

    def _miss_laps(self, found: Found) -> None:
        """Report named files that are missing: a file is removed only after a checkpoint without it."""
        for span in spans_of(self.dir, self.checkpoint):
            file = span.file
            if file is not None and (file.key, file.made) not in (found.laps if file.is_lap else found.slots):
                self.miss(span)

    def miss(self, span: Span) -> None:
        """Note once that a named file is missing; it stays named."""
        if self.missing.add(span):  # mutant: missing-forgotten
            self.quarantine.note(Damage(span.name, 0, span.end, MISSING, proven=True))

    def look_for_missing(self) -> None:
        """Use missing files again that have come back. Cost: a stat of each that is missing."""
        with self.lock:
            for span in self.missing.found() if self.missing else ():
                self.handles.drop(span.name)
                self.owes_drops = True
                if self._on_return is not None:
                    self._on_return(span.floor)  # mutant: missing-unused

    def note_repeats(self) -> None:
        """Mark that a message may be put twice from here on. Durable on return. Raises OSError."""
        note_repeats(self.disk)
        self.repeats = True  # mutant: doubt-drops

    # -- ingest --------------------------------------------------------------------------------------------

    def ingest(self, *, test_locks: bool = False) -> None:
        """Read the new frames of all journals: one whole pass (I1-I3). Cost: a listing, and one read a live writer.

        Raises OSError, and Damaged when an undealt journal is missing.
        """
        with self.lock:
            now = self.clock.steady_us()
            if now - self._locks_tested_us >= LOCK_TEST_US:
                test_locks = True
            if test_locks:
                self._locks_tested_us = now
            listing, own = self._list_journal(), self.own.writer
            new = [writer for writer in listing if writer not in self.tails and writer != own]
            if new:
                # A writer that gives messages again has set the mark before its first segment.
                self.repeats = self.repeats or may_repeat(self.dir)
                self.tails |= {writer: Tail(self.dir, self.handles, writer) for writer in new}
            # A copy: a frame may make the keeper write, and so start its own journal.
            for tail in list(self.tails.values()):
                if not tail.ended and tail.writer != own:
                    self._poll(tail, listing, test_locks)
            self.passes += 1

    def _list_journal(self) -> Listing:
        """Return writer → its segments. Do not change it: while the names stay, it is the last one again.

        Raises Damaged when a needed one is missing.
        """
        names = self.disk.listdir(layout.JOURNAL)
        if names == self._names:
            return self._listing
        listing = {w: segments for w, segments in listing_of(names).items() if w not in self._foreign}
        lost = find_vanished(self.dir, self.tails, self._listing, listing)
        if lost is not None:  # mutant: vanished-unlisted
            raise vanished(self.dir, self.quarantine, lost)
        self._names, self._listing = names, listing
        return listing

    def _poll(self, tail: Tail, listing: dict[str, set[int]], test_lock: bool) -> None:
        def relist() -> set[int]:
            return self._list_journal().get(tail.writer, set())

        def take(frame: Frame) -> None:
            if self._on_frame is not None:
                try:
                    self._on_frame(frame, tail.writer)
                except Damaged as exc:
                    # Its checksums hold, so it was written like this: it goes to quarantine/, and the rest goes on.
                    self.quarantine.keep(Damage(tail.name, frame.offset, frame.end, exc.what, proven=True))
            self.undealt_bytes += frame.end - frame.offset
            self.undealt_records += frame.puts + frame.drops
            self.undealt_puts += frame.puts

        def foreign(name: str) -> None:
            """Ignore a writer whose segment is no regular file; its earlier segments are dealt as usual."""
            log.warning("%s: not a regular file; it is left alone", self.dir.place(name))
            self._foreign.add(tail.writer)
            self._names = None
            if tail.seen == tail.covered:
                self.tails.pop(tail.writer, None)

        segments, on_damage = listing.get(tail.writer, set()), self.quarantine.keep  # mutant: damage-unreported
        tail.poll(segments, relist, take, test_lock=test_lock, on_damage=on_damage, on_foreign=foreign)

    # -- the keeper's own journal --------------------------------------------------------------------------

    def write(self, records: Sequence[bytes], puts: int) -> None:
        """Write records to the keeper's own journal, without a flush: append and advance are one step (E3)."""
        with self.lock:
            self.own.write(records, puts)
            self.note_own()
            self.undealt_bytes += sum(map(len, records)) + 80
            self.undealt_records += len(records)
            self.undealt_puts += puts

    def write_body(self, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        """Write packed records as one frame, as `write` does. All their ids are from `first` to `last`."""
        with self.lock:
            self.own.write_body(body, puts, drops, first, last)
            self.note_own()
            self.undealt_bytes += len(body) + 80
            self.undealt_records += puts + drops
            self.undealt_puts += puts

    def drop(self, ids: list[bytes], reason: int) -> None:
        """Write a drop for each of these ids, as `write` does."""
        with self.lock:
            self.own.drop(ids, reason)
            self.note_own()
            self.undealt_bytes += len(ids) * DROP_BYTES + 80
            self.undealt_records += len(ids)

    def note_own(self) -> None:
        """Count what the own journal holds as read. An interrupt (Ctrl-C) behind a write has left this out."""
        position = self.own.position
        if position.segment:
            self._own_tail(self.own.writer).seen = position

    def _own_tail(self, writer: str) -> Tail:
        tail = self.tails.get(writer)
        if tail is None:
            tail = self.tails[writer] = Tail(self.dir, self.handles, writer)
        return tail

    def _own_segment_ended(self, writer: str, position: Position, last: bool) -> None:
        """Follow the own journal over a rotation, or over the end of a writer whose write failed."""
        tail = self._own_tail(writer)
        tail.ends[position.segment] = position.offset
        tail.seen = position
        if last:
            tail.ended = True

    # -- reading back --------------------------------------------------------------------------------------

    def spans(self, lo: bytes, hi: bytes) -> list[Span]:
        """Return the parts of files that may hold ids from `lo` to below `hi`: undealt journals, then laps in order."""
        return self.undealt_spans() + spans_of(self.dir, self.checkpoint, lo, hi)

    def undealt_spans(self) -> list[Span]:
        """Return the parts of journals that were read and are not covered yet."""
        found = []
        for tail in self.tails.values():
            for part in tail.parts(tail.covered, tail.seen):
                found.append(Span(part.name, part.start, part.end, ID_MIN))
        return found

    def window(self, lo: bytes, hi: bytes, budget: Budget) -> Window:
        """Read what is pending from `lo` to below `hi`, within the budget."""
        with self.lock:
            return read_window(
                self.dir,
                self.handles,
                self.spans(lo, hi),
                lo,
                hi,
                on_gap=self.report_gap,
                dropped=self.checkpoint.unmatched,
                budget=budget,
            )

    def report_gap(self, span: Span, gap: Gap) -> None:
        """Copy unreadable bytes to quarantine/: below a covered length everything was durable, so they are damage.

        Raises Damaged when a journal is missing.
        """
        if gap.reason == MISSING:
            if span.file is None:  # mutant: vanished-window
                raise vanished(self.dir, self.quarantine, span)
            self.miss(span)
        elif not span.name.startswith(layout.JOURNAL):
            self.quarantine.keep(Damage(span.name, gap.offset, gap.end, gap.reason, proven=True))

    # -- what the deal needs -------------------------------------------------------------------------------

    def cut(self, *, ends_own: bool = True) -> dict[str, Position]:
        """Read new frames, end the own segment (D0), and return how far each journal has been read."""
        with self.lock:
            self.ingest()
            if ends_own:
                self.end_own_segment()
            return {w: t.seen for w, t in self.tails.items() if not t.gone}

    def end_own_segment(self) -> None:
        """Continue in another segment of the own journal, so that this one can be removed when it is covered."""
        with self.lock:
            if self.own.position.offset:
                self.own.rotate()
                self.note_own()

    def has_undealt(self) -> bool:
        """Return whether a deal would cover anything, or remove the journal of an ended writer."""
        return self.undealt_bytes > 0 or any(t.ended and not t.gone for t in self.tails.values())

    def new_handles(self) -> Handles:
        """Return handles for a thread of its own."""
        return Handles(self.dir)

    # -- end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the journal and the files. Deals nothing."""
        try:
            self.own.close()
        finally:
            self.handles.close()
