"""A snapshot: the content of a wheel at about the present time, read without a lock and without writing.

It reads the checkpoint, then every journal from its covered position, then the checkpoint once more. If a deal was
committed in between it starts again, so that no message is missed between a journal and the file it was dealt to. From
then on files only grow past the known lengths, or are removed because their messages are finished, so it is safe to
walk them later. A lap that is opened in between is found in its slots.
Invariant: every message that was pending throughout the walk is in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from filewheel.checks import shown
from filewheel.disk.checkpoint import adopt, find_files
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.quarantine import Damage
from filewheel.errors import BadArgument, Damaged, disk_error
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap, scan
from filewheel.format.limits import matches
from filewheel.format.record import ID, readable_records, records_of, unpack_put
from filewheel.journal.gaps import UNKNOWN, confirmed, missing_in, number_before
from filewheel.journal.tail import Handles
from filewheel.journal.walk import Part, list_segments, parts_above, read_part
from filewheel.laps.slot import second_of
from filewheel.laps.window import MISSING, Budget, Span, Window, read_window, spans_of
from filewheel.message import (
    DEAD_US,
    DUE_LIMIT_US,
    ID_END,
    ID_LIMIT,
    ID_MIN,
    US_PER_S,
    Message,
    MessageId,
    due_of,
    id_floor,
)
from filewheel.timespec import bound_us

_TRIES = 20
WALK_BUDGET = Budget(records=1 << 14, bytes=8 << 20)

DEAD_FLOOR = id_floor(DEAD_US)
"""Ids from here on are dead letters."""


@dataclass
class _Uncovered:
    """The part of one writer's journal that is not covered."""

    before: int
    """The number of the last frame that is covered."""
    number: int
    """The number of the last frame that was read."""
    parts: list[Part] = field(default_factory=list)
    is_suspect: bool = False
    is_judged: bool = False


At = datetime | float
"""An aware datetime, or seconds since the epoch."""


def bounds(after: At | None, before: At | None, *, dead: bool) -> tuple[bytes, bytes]:
    """Return the range of ids (from, below) that are due in a time; with `dead`, that of dead letters.

    Raises BadArgument.
    """
    if dead:
        return DEAD_FLOOR, ID_END
    lo = ID_MIN if after is None else id_floor(max(0, bound_us("after", after)))
    return lo, DEAD_FLOOR if before is None else min(DEAD_FLOOR, id_floor(max(0, bound_us("before", before))))


def check_death(after: At | None, before: At | None, error: str | None) -> tuple[bytes, bytes]:
    """Return the range of ids (from, below) of the dead letters that died in a time. Raises BadArgument."""
    if not isinstance(error, str | None):
        raise BadArgument(f"error is a text that the reason contains, not {shown(error)}")
    last_us = DUE_LIMIT_US - DEAD_US - 1
    lo = DEAD_FLOOR if after is None else id_floor(DEAD_US + min(max(0, bound_us("after", after)), last_us))
    return lo, ID_END if before is None else id_floor(DEAD_US + min(max(0, bound_us("before", before)), last_us))


def with_topic(messages: Iterator[Message], topic: str | None) -> Iterator[Message]:
    """Return the messages of a topic or a glob; all of them without one."""
    return messages if topic is None else (m for m in messages if matches(m.topic, topic))


class Snapshot:
    """A consistent view of a wheel for one reader. Not thread-safe. Close it, or use it as a context manager."""

    def __init__(self, directory: Directory) -> None:
        """Read the checkpoint and the journals. Cost: that of the undealt part, not of the backlog."""
        self._dir = directory
        self.damage: list[Damage] = []
        """The ranges that could not be read so far."""
        self.handles = Handles(directory)
        try:
            self._take()
        except OSError as exc:
            self.handles.close()
            raise disk_error(exc, directory.path) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self.handles.close()

    def _take(self) -> None:
        for left in reversed(range(_TRIES)):
            before = self._dir.disk.identity(layout.CHECKPOINT)
            self.checkpoint = self._dir.checkpoint()
            try:
                self._uncovered: dict[str, _Uncovered] = {}
                self.journals = list(self._journal_spans())
            except FileNotFoundError:
                if not left:
                    raise  # not a segment but journal/ itself: the wheel is being deleted
                continue  # a segment was covered and removed: there is a newer checkpoint
            if self._dir.disk.identity(layout.CHECKPOINT) == before:  # mutant: snapshot-once
                break
        self._doubt = self.checkpoint.doubt
        if self._doubt:
            lap_of = self._dir.settings.lap_of
            adopt(self.checkpoint, self._dir.disk, find_files(self._dir.disk, lap_of), lap_of)
        for journal in self._uncovered.values():
            if journal.is_suspect:
                self._judge(journal)

    def _journal_spans(self) -> Iterator[Span]:
        """Yield the undealt part of each journal; opening each now keeps it readable after it is unlinked."""
        for part in parts_above(list_segments(self._dir), self.checkpoint.positions):
            try:
                fd = self.handles.get(part.name)
            except ForeignFile:
                continue
            journal = self._uncovered.get(part.writer)
            if journal is None:
                before = number_before(self.checkpoint, part.writer, part.segment)
                journal = self._uncovered[part.writer] = _Uncovered(before, before)
            journal.parts.append(part)
            end = self._used(fd, part, journal)
            if end > part.start:
                yield Span(part.name, part.start, end, ID_MIN)

    def _used(self, fd: int, part: Part, journal: _Uncovered) -> int:
        """Return the end of the last frame whose header verifies; note whether headers show that one is missing."""
        scanner = read_part(self._dir, fd, part, headers=True)
        for item in scanner:
            if isinstance(item, Frame):
                journal.is_suspect |= journal.number != UNKNOWN and item.missing_after(journal.number) > 0
                journal.number = item.number
            elif item.at_end:
                return item.offset
        return scanner.pos

    def _judge(self, journal: _Uncovered) -> None:
        """Note the missing frames of a writer's journal, once. Cost: all of it that is not covered."""
        if journal.is_judged:
            return
        journal.is_judged = True
        looked = (self._dir, self.handles.get, journal.parts, journal.before)
        for missing in confirmed(missing_in(*looked), *looked):
            if missing.is_proven:
                self.damage += missing.damages()

    # -- walking ---------------------------------------------------------------------------------------------

    def puts(self, lo: bytes = ID_MIN, hi: bytes = DEAD_FLOOR) -> Iterator[bytes]:
        """Yield the packed puts that are pending from `lo` to below `hi`, in firing order. Memory: one window."""
        while lo < hi:
            window = self.window(lo, hi, WALK_BUDGET)
            yield from window.puts
            lo = window.hi

    def window(self, lo: bytes, hi: bytes, budget: Budget) -> Window:
        """Return the pending messages from `lo` to below `hi`, or as many as the budget allows. Raises DiskError."""
        for _ in range(_TRIES):
            missing: list[Span] = []

            def on_gap(span: Span, gap: Gap, missing: list[Span] = missing) -> None:
                if gap.reason == MISSING:
                    missing.append(span)
                else:
                    self._note(span, gap)

            try:
                window = read_window(
                    self._dir,
                    self.handles,
                    [*self.journals, *spans_of(self._dir, self.checkpoint, lo, hi)],
                    lo,
                    hi,
                    on_gap=on_gap,
                    dropped=self.checkpoint.unmatched,
                    budget=budget,
                )
                if not missing or not self._reread(missing):
                    break
            except OSError as exc:
                raise disk_error(exc, self._dir.path) from exc
        return window

    def _reread(self, missing: list[Span]) -> bool:
        """Find out why files are missing: they finished, or a lap was opened into its slots.

        If the newest checkpoint names one, that is damage: a file is removed only after a checkpoint without it.
        """
        newer = self._dir.checkpoint()
        if newer.deal == self.checkpoint.deal:
            for span in missing:
                self._note(span, Gap(0, span.end, MISSING, at_end=True))
                self._forget(span)
            return False
        # All records that were dealt since are in the open journals, or newer than this snapshot.
        self.checkpoint = newer
        return True

    def _forget(self, span: Span) -> None:
        if span.file is not None:
            span.file.among(self.checkpoint).pop(span.file.key, None)
        if span in self.journals:
            self.journals.remove(span)

    def problems(self) -> list[Damage]:
        """Return the damage that was found so far, as `verify` reports it."""
        found = [Damage(layout.SETTINGS, 0, 0, note, proven=True) for note in self._dir.notes]
        if self._doubt:
            found.append(Damage(layout.CHECKPOINT, 0, 0, self._doubt, proven=True))
        return found + self.damage

    def _note(self, span: Span, gap: Gap) -> None:
        segment = layout.parse_segment(span.name.rpartition("/")[2])
        if segment is not None and not gap.is_frame and gap.error is None:
            self._judge(self._uncovered[segment[0]])
            return
        self._add(Damage(span.name, gap.offset, gap.end, gap.reason, proven=True))

    def _add(self, damage: Damage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)

    def messages(self, lo: bytes = ID_MIN, hi: bytes = DEAD_FLOOR) -> Iterator[Message]:
        """Yield the messages that are pending from `lo` to below `hi`, in firing order; note damaged records."""
        for put in self.puts(lo, hi):
            try:
                yield unpack_put(put)
            except Damaged as exc:
                name = second_of(self._dir.settings, put[ID])
                self.damage.append(Damage(name, 0, len(put), f"{MessageId(put[ID])}: {exc.what}", proven=True))

    def walk(
        self, *, after: At | None = None, before: At | None = None, topic: str | None = None, dead: bool = False
    ) -> Iterator[Message]:
        """Yield the pending messages in firing order, or the dead letters, as `Wheel.list` does; note damage."""
        return with_topic(self.messages(*bounds(after, before, dead=dead)), topic)

    def dead(
        self,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        error: str | None = None,
    ) -> Iterator[Message]:
        """Yield dead letters by the time of their death, as `Wheel.dead` does; note damage."""
        found = with_topic(self.messages(*check_death(after, before, error)), topic)
        if error is None:
            return found
        text = error.casefold()
        return (message for message in found if text in (message.reason or "").casefold())

    def frames(self, span: Span, *, headers: bool = False, missing: list[Span] | None = None) -> Iterator[Frame]:
        """Yield the frames of one file; unreadable ranges are noted. A missing file is added to `missing`."""
        disk = self._dir.disk
        try:
            fd = self.handles.get(span.name)
            end = min(span.end, disk.size(fd))
            for item in scan(disk, fd, span.start, end, self._dir.seed(span.name), headers=headers):
                if isinstance(item, Frame):
                    yield item
                else:
                    self._note(span, item)
        except FileNotFoundError:
            if missing is not None:
                missing.append(span)
            else:
                self._reread([span])
        except ForeignFile as exc:  # what the file held is as unreadable as that of a damaged one
            self._add(Damage(span.name, span.start, span.end, f"cannot be read: {exc.strerror}", proven=True))
        except OSError as exc:
            raise disk_error(exc, self._dir.place(span.name)) from exc

    def headers(self, span: Span) -> Iterator[Frame]:
        """Yield the headers of one file's frames, with empty bodies."""
        return self.frames(span, headers=True)

    def find(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return, of these ids, those that are pending, with their packed puts.

        Cost: one reading of the undealt journals, and of the frames that may hold one of the ids.
        """
        puts, drops = self._look_for(ids)
        return {i: r for i, r in puts.items() if i not in drops}

    def dropped(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those with a drop: a put that was added now would not be pending.

        Cost: as `find`.
        """
        wanted = set(ids)
        return wanted & self._look_for(wanted)[1]

    def named(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those with a put or a drop. Cost: as `find`."""
        wanted = set(ids)
        puts, drops = self._look_for(wanted)
        return puts.keys() | (wanted & drops)

    def journal_puts(self) -> set[bytes]:
        """Return the ids of all puts in the undealt journals. Cost: a reading of these."""
        found: set[bytes] = set()
        for span in self.journals:
            for frame in self.frames(span):
                found.update(r[ID] for r in readable_records(frame)[0])
        return found

    def _look_for(self, ids: Iterable[bytes]) -> tuple[dict[bytes, bytes], set[bytes]]:
        """Return the packed puts of these ids, and the dropped ids."""
        wanted = sorted(i for i in set(ids) if i < ID_LIMIT)
        puts: dict[bytes, bytes] = {}
        drops: set[bytes] = set()
        for _ in range(_TRIES):
            puts, drops = {}, set(self.checkpoint.unmatched)
            missing: list[Span] = []
            for span in self._spans_for(wanted):
                self._find_in(span, wanted, puts, drops, missing)
            # A lap that was opened in between is found in its slots.
            if not missing or not self._reread(missing):
                break
        return puts, drops

    def _find_in(
        self, span: Span, wanted: list[bytes], puts: dict[bytes, bytes], drops: set[bytes], missing: list[Span]
    ) -> None:
        """Add one file's records of the wanted ids."""
        for frame in self.frames(span, missing=missing):
            at = bisect_left(wanted, frame.first)
            if at == len(wanted) or wanted[at] > frame.last:
                continue
            try:
                found, dropped = records_of(frame)
            except Damaged as exc:
                self._note(span, Gap(frame.offset, frame.end, exc.what, is_frame=True))
                continue
            among = set(wanted[at : bisect_right(wanted, frame.last)])
            puts.update((r[ID], r) for r in found if r[ID] in among)
            drops.update(r[ID] for r in dropped if r[ID] in among)

    def _spans_for(self, wanted: list[bytes]) -> list[Span]:
        """List the journals, and the files that may hold one of these ids, each once."""
        files: dict[str, Span] = {}
        for second in sorted({due_of(i) // US_PER_S for i in wanted}):
            low, high = id_floor(second * US_PER_S), id_floor((second + 1) * US_PER_S)
            for span in spans_of(self._dir, self.checkpoint, low, high):
                files[span.name] = span
        return [*self.journals, *files.values()]

    def first(self) -> bytes | None:
        """Return the packed put that is due first, dead letters left out."""
        return next(self.puts(), None)
