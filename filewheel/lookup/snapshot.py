"""A snapshot: the content of a wheel at one instant, read without a lock and without writing.

It takes the journals at one cut (journal/reader.py), under the checkpoint that counts at that instant. From then on
files only grow past the known lengths, or are removed because their messages are finished, so it is safe to walk them
later. A lap that is opened in between is found in its slots.
A `Filter` says which messages a look wants: all looks take this one value.
Invariant: every message that was pending throughout the walk is in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from filewheel.checks import check_flag, shown
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.quarantine import Damage
from filewheel.errors import BadArgument, Damaged, disk_error, disk_errors
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap, scan
from filewheel.format.limits import check_topic, matches
from filewheel.format.record import ID, records_of, topic_of, unpack_put
from filewheel.journal.reader import PINNED_MAX, JournalReader
from filewheel.journal.tail import Handles
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
_TOPICS_KNOWN = 10_000
WALK_BUDGET = Budget(records=1 << 14, bytes=8 << 20)

DEAD_FLOOR = id_floor(DEAD_US)
"""Ids from here on are dead letters."""


At = datetime | float
"""An aware datetime, or seconds since the epoch."""


@dataclass(frozen=True)
class Filter:
    """Which messages a look wants: those with an id from `lo` to below `hi` that fit the rest."""

    lo: bytes = ID_MIN
    hi: bytes = DEAD_FLOOR
    topic: str | None = None
    """A topic or a glob."""
    error: str | None = None
    """A text in the reason of a dead letter, in any case of letters."""
    _topics: dict[bytes, bool] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        error: str | None = None,
        dead: bool = False,
    ) -> Self:
        """Return the filter for messages that are due from `after` to below `before`, or letters that died then.

        Raises BadArgument.
        """
        if topic is not None:
            check_topic(topic)
        if not isinstance(error, str | None):
            raise BadArgument(f"error is a text that the reason contains, not {shown(error)}")
        start, last = (DEAD_US, DUE_LIMIT_US - DEAD_US - 1) if check_flag("dead", dead) else (0, DEAD_US)
        lo, hi = id_floor(start), ID_END if dead else DEAD_FLOOR
        if after is not None:
            lo = id_floor(start + min(max(0, bound_us("after", after)), last))
        if before is not None:
            hi = id_floor(start + min(max(0, bound_us("before", before)), last))
        return cls(lo, hi, topic, None if error is None else error.casefold())

    def fits(self, put: bytes) -> bool:
        """Return whether a packed put, whose id is in the range, fits the rest. Cost: 0.5 µs with a topic."""
        if self.topic is not None:
            topic = topic_of(put)
            fits = self._topics.get(topic)
            if fits is None:
                if len(self._topics) >= _TOPICS_KNOWN:
                    self._topics.clear()
                fits = self._topics[topic] = matches(topic.decode(errors="replace"), self.topic)
            if not fits:
                return False
        return self.error is None or self.error in (unpack_put(put).reason or "").casefold()


class Snapshot:
    """A consistent view of a wheel for one reader. Not thread-safe. Close it, or use it as a context manager."""

    def __init__(
        self, directory: Directory, journals: JournalReader | None = None, handles: Handles | None = None
    ) -> None:
        """Take what `journals` has read, with `handles` of its files; without, read the checkpoint and all journals.

        Cost: that of the undealt part, not of the backlog.
        """
        self._dir = directory
        self.is_overtaken = False
        """Files were dealt anew and removed before they were read: what moved meanwhile may be missing, or be twice."""
        self._is_used = False
        """Something was read, so that the cut must stay."""
        if journals is None or handles is None:
            self._take()
        else:
            self._begin(journals, handles)

    def _take(self) -> None:
        """Read the checkpoint and all journals. Raises DiskError."""
        journals, handles = JournalReader(self._dir), None
        with disk_errors(self._dir.path):
            while handles is None:
                journals.follow()
                handles = journals.pin()
        self._begin(journals, handles)

    def _begin(self, journals: JournalReader, handles: Handles) -> None:
        self.handles = handles
        self.checkpoint = journals.checkpoint
        self.journals = [Span(p.name, p.start, p.end, ID_MIN) for p in journals.parts()]
        self.damage: list[Damage] = journals.damage
        """The ranges that could not be read so far."""
        self._doubt = self.checkpoint.doubt
        self._gone: set[str] = set()
        """Files that were removed by hand: they are noted as damage."""

    def take_again(self) -> None:
        """Be a snapshot of now. Raises DiskError."""
        self.close()
        self._take()
        self.is_overtaken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self.handles.close()

    # -- walking ---------------------------------------------------------------------------------------------

    def puts(self, lo: bytes = ID_MIN, hi: bytes = DEAD_FLOOR) -> Iterator[bytes]:
        """Yield the packed puts that are pending from `lo` to below `hi`, in firing order. Memory: one window.

        The files of the next windows are kept open, PINNED_MAX of them: a deal may remove them before they are read.
        """
        window = self._window(lo, hi, WALK_BUDGET)
        while not self._pin(window.hi, hi) and not self._is_used:
            self.take_again()
            window = self._window(lo, hi, WALK_BUDGET)
        self._is_used = True
        while True:
            yield from window.puts
            if window.hi >= hi:
                return
            window = self._window(window.hi, hi, WALK_BUDGET)
            self._pin(window.hi, hi)

    def window(self, lo: bytes, hi: bytes, budget: Budget) -> Window:
        """Return the pending messages from `lo` to below `hi`, or as many as the budget allows. Raises DiskError."""
        window = self._window(lo, hi, budget)
        self._is_used = True
        return window

    def _pin(self, lo: bytes, hi: bytes) -> bool:
        """Open the files of the next windows, and close those of the last ones; return whether all were there."""
        journals = {span.name for span in self.journals}
        files = self._files(lo, hi) if lo < hi else []
        names = [span.name for span in files[: PINNED_MAX - min(len(journals), PINNED_MAX // 2)]]
        self.handles.keep({*names, *journals})
        try:
            for name in names:
                self.handles.get(name)
        except FileNotFoundError:
            return False
        except OSError:  # too many are open: then only those that are read
            self.handles.keep(journals)
        return True

    def _window(self, lo: bytes, hi: bytes, budget: Budget) -> Window:
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
                    [*self.journals, *self._files(lo, hi)],
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
        """Find out why files are missing: they finished, or were dealt anew. Return whether to read again.

        If the newest checkpoint names one, that is damage: a file is removed only after a checkpoint without it.
        """
        newer = self._dir.checkpoint()
        if newer.deal == self.checkpoint.deal:
            for span in missing:
                self._note(span, Gap(0, span.end, MISSING, at_end=True))
                self._gone.add(span.name)
            self.journals = [span for span in self.journals if span.name not in self._gone]
            return False
        if not self._is_used:
            self.take_again()
        else:  # all records that were dealt since are in the open journals, or newer than this snapshot
            self.checkpoint, self.is_overtaken = newer, True
        return True

    def _files(self, lo: bytes, hi: bytes) -> list[Span]:
        """Return the lap and slot files that may hold ids from `lo` to below `hi`."""
        spans = spans_of(self._dir, self.checkpoint, lo, hi)
        return [span for span in spans if span.name not in self._gone] if self._gone else spans

    def problems(self) -> list[Damage]:
        """Return the damage that was found so far, as `verify` reports it."""
        found = [Damage(layout.SETTINGS, 0, 0, note, proven=True) for note in self._dir.notes]
        if self._doubt:
            found.append(Damage(layout.CHECKPOINT, 0, 0, self._doubt, proven=True))
        return found + self.damage

    def _note(self, span: Span, gap: Gap) -> None:
        is_journal = layout.parse_segment(span.name.rpartition("/")[2]) is not None
        if not is_journal or gap.is_frame:  # the reader of the journals judges their gaps
            self._add(Damage(span.name, gap.offset, gap.end, gap.reason, proven=True))

    def _add(self, damage: Damage) -> None:
        if damage not in self.damage:
            self.damage.append(damage)

    def messages(self, which: Filter | None = None) -> Iterator[Message]:
        """Yield the pending messages, or those that a filter lets through, in firing order; note damaged records."""
        which = which or Filter()
        for put in self.puts(which.lo, which.hi):
            try:
                message = unpack_put(put)
            except Damaged as exc:
                name = second_of(self._dir.settings, put[ID])
                self.damage.append(Damage(name, 0, len(put), f"{MessageId(put[ID])}: {exc.what}", proven=True))
                continue
            if which.fits(put):
                yield message

    def frames(self, span: Span, *, headers: bool = False, missing: list[Span] | None = None) -> Iterator[Frame]:
        """Yield the frames of one file; unreadable ranges are noted. A missing file is added to `missing`."""
        disk, self._is_used = self._dir.disk, True
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
        puts, drops = self._look_for(ids)
        return drops.union(puts) & set(ids)

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
            for span in self._files(low, high):
                files[span.name] = span
        return [*self.journals, *files.values()]
