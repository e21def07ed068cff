"""A window: the pending messages of a range of ids, in order, out of many files, with bounded memory.

All messages are read back this way: when the keeper loads the next messages, when `inspect list` walks the backlog,
when a lap file is dealt into slots. Each file is a run of frames, and a frame without an id of the window is skipped by
its header. When the range holds more than the budget, the window is cut at the id that fills it, and the caller reads
on from there: a second with a million messages is streamed.

Pending is all puts minus all drops, as sets; an id that was dealt twice counts once.
Cost: about 0.2 µs (0.6 in pure Python) for each record in the window, and a header for each frame outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from filewheel.checks import check_whole, shown
from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile, is_unreadable
from filewheel.errors import BadArgument, Damaged
from filewheel.format.frame import Frame, Gap, scan
from filewheel.format.record import ID, add_puts, records_of
from filewheel.journal.tail import Handles
from filewheel.laps.slot import File, files_of
from filewheel.message import ID_END, ID_MIN, id_after
from filewheel.native.compiled import PutTable, ids_of

MISSING = "the file is missing"
_SLACK = 1.5
"""How far over its budget a window grows before it is cut: the rest is read again, and each cut sorts."""


@dataclass(frozen=True)
class Span:
    """A part of a file to be read, and a lower bound of its ids."""

    name: str
    start: int
    end: int
    floor: bytes
    file: File | None = None
    """The slot or lap file, if this is all of it; None for a part of a journal."""


def span_of(file: File) -> Span:
    """Return the covered part of a slot or lap file."""
    return Span(file.name, 0, file.end, file.floor, file)


def spans_of(directory: Directory, checkpoint: Checkpoint, lo: bytes = ID_MIN, hi: bytes = ID_END) -> list[Span]:
    """Return a checkpoint's files that may hold ids from `lo` to below `hi`, by rising floor."""
    return sorted(map(span_of, files_of(directory.settings, checkpoint, lo, hi)), key=attrgetter("floor"))


def read_file(directory: Directory, handles: Handles, file: File, start: int) -> Iterator[Frame | None]:
    """Yield a file's frames from `start` up to its covered length, and None where a frame cannot be read."""
    disk = directory.disk
    try:
        fd = handles.get(file.name)
        if disk.size(fd) + 7 < file.end:
            yield None
            return
        for item in scan(disk, fd, start, file.end, directory.seed(file.name)):
            yield item if isinstance(item, Frame) else None
    except FileNotFoundError:
        yield None
    except OSError as exc:
        if not is_unreadable(exc):
            raise
        yield None


@dataclass(frozen=True)
class Budget:
    """How much a window may hold in memory."""

    records: int = 1 << 16
    bytes: int = 16 << 20


def check_budget(budget: Budget) -> Budget:
    """Return the budget of a keeper. Raises BadArgument for anything else."""
    if not isinstance(budget, Budget):
        raise BadArgument(f"budget is a filewheel.laps.window.Budget, not {shown(budget)}")
    check_whole("budget.records", budget.records)
    check_whole("budget.bytes", budget.bytes)
    return budget


@dataclass
class Window:
    """The pending messages of a range: `puts` in order, for ids from the window's `lo` to below `hi`."""

    hi: bytes
    found: PutTable = field(default_factory=PutTable, compare=False)
    """The puts, without an object for each."""
    drops: set[bytes] = field(default_factory=set)
    """The dropped ids."""
    loose: set[bytes] = field(default_factory=set)
    """Those of them whose put was not in the window."""
    cut: bool = False
    """The budget was reached: there may be more from `hi` on."""
    has_drops: bool = False
    """Whether there are drops in the window, or in the frames that reach into it."""

    @cached_property
    def puts(self) -> list[bytes]:
        """The packed puts."""
        return self.found.records()


OnGap = Callable[[Span, Gap], None]
"""Called with every range that could not be read; a missing file is a Gap of its whole length."""


def read_window(
    directory: Directory,
    handles: Handles,
    spans: Iterable[Span],
    lo: bytes,
    hi: bytes,
    *,
    on_gap: OnGap,
    dropped: Iterable[bytes] = (),
    budget: Budget = Budget(),
) -> Window:
    """Read what is pending from `lo` to below `hi`. `spans` come by rising floor; `dropped` are drops known already."""
    reader = _Reader(lo, hi, budget, dropped)
    for span in spans:
        if reader.grown and reader.is_over(1):
            reader.shrink()
        if span.floor >= reader.hi:
            break
        try:
            fd = handles.get(span.name)
            size = directory.disk.size(fd)
            if size + 7 < span.end:
                # If it was restored from a copy, the open file no longer has the name.
                handles.drop(span.name)
                fd = handles.get(span.name)
                size = directory.disk.size(fd)
        except FileNotFoundError:
            on_gap(span, Gap(span.start, span.end, MISSING, at_end=True))
            continue
        except ForeignFile as exc:
            on_gap(span, Gap(span.start, span.end, f"cannot be read: {exc.strerror}", at_end=True))
            continue
        _read_span(directory, fd, size, span, reader, on_gap)
    return reader.finish()


def _read_span(directory: Directory, fd: int, size: int, span: Span, reader: _Reader, on_gap: OnGap) -> None:
    if size + 7 < span.end:
        on_gap(span, Gap(max(size, span.start), span.end, "the file is too short", at_end=True))
    seed = directory.seed(span.name)
    scanner = scan(directory.disk, fd, span.start, min(span.end, size), seed, lo=reader.lo, hi=reader.hi)
    for item in scanner:
        if isinstance(item, Gap):
            on_gap(span, item)
            continue
        try:
            reader.take(item)
        except Damaged as exc:
            on_gap(span, Gap(item.offset, item.end, exc.what, is_frame=True))
        scanner.narrow(reader.hi)


class _Reader:
    """Collects the smallest ids of a window, never holding more than `_SLACK` times the budget."""

    def __init__(self, lo: bytes, hi: bytes, budget: Budget, dropped: Iterable[bytes]) -> None:
        self.lo = lo
        self.hi = hi
        self._budget = budget
        self._puts = PutTable()
        self._drops = {i for i in dropped if lo <= i < hi}
        self._spent: set[bytes] = set()
        self._cut = False
        self._has_drops = bool(self._drops)
        self.grown = False
        """Whether anything was added since it was last netted."""

    def is_over(self, times: float) -> bool:
        records = len(self._puts) + len(self._drops)
        return records >= times * self._budget.records or self._puts.size_bytes() >= times * self._budget.bytes

    def take(self, frame: Frame) -> None:
        """Add the records of a frame that are in the window."""
        lo, hi = self.lo, self.hi
        if frame.first < lo or frame.last >= hi:
            # Unpacked: a few records must not keep the whole frame in memory.
            puts, drops = records_of(frame)
            self._puts.extend([r for r in puts if lo <= r[ID] < hi])
            drops = [r for r in drops if lo <= r[ID] < hi]
        else:
            drops = add_puts(self._puts, frame)
        self.grown = True
        if drops:
            self._has_drops = True
            self._drops.update(ids_of(drops))
        if self.is_over(_SLACK):
            self.shrink()

    def shrink(self) -> None:
        """Keep the smallest ids that fit in the budget, and lower `hi` to just above the last of them."""
        self._net()
        if not self.is_over(1):
            # Dropped puts are still in memory, together with the rest of their frames.
            self._puts.keep(len(self._puts))  # mutant: dropped-held
            return
        puts, budget = self._puts, self._budget
        bounds = []
        last = puts.full_at(budget.records, budget.bytes)
        if last < len(puts):
            bounds.append(puts.id(last))
        if self._drops:
            ids = sorted([*puts.ids(), *self._drops])
            bounds.append(ids[min(len(ids), budget.records) - 1])
        self.hi = hi = id_after(min(bounds))
        self._cut = True
        puts.keep(puts.find(hi, 0))
        self._drops = {i for i in self._drops if i < hi}
        self._spent = {i for i in self._spent if i < hi}

    def _net(self) -> None:
        """Sort the puts, count each once, and take out those that are dropped."""
        self.grown = False
        self._puts.sort()
        self._puts.unique()  # mutant: twice-in-window
        if self._drops:
            spent = self._puts.having(self._drops)
            self._spent |= spent
            self._puts.remove(spent)

    def finish(self) -> Window:
        if self.is_over(1):
            self.shrink()
        else:
            self._net()
        return Window(self.hi, self._puts, self._drops, self._drops - self._spent, self._cut, self._has_drops)
