"""A window: what is pending from one id to below another, in order, out of many files, with bounded memory.

This is the one way that anything is read back: the keeper loading what is due next, `inspect list` walking the
backlog, a lap file being dealt into slots. Each file is a bag of frames over a range of ids; frames that hold no id
of the window are stepped over by their header. When more lies in the window than the budget allows, the window is
cut at the id that fills it, and whoever reads goes on from there: a second with a million messages streams.

Pending is all puts minus all drops, as sets (set difference over the window; an id dealt twice counts once).
Cost: about 0.2 µs (0.6 in pure Python) for each record in the window, and a header for each frame outside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from filewheel.directory import Directory
from filewheel.disk import SCARCE, ForeignFile
from filewheel.errors import Damaged
from filewheel.frame import Frame, Gap, scan
from filewheel.message import id_after
from filewheel.record import ID, PUT_PREFIX, records_of
from filewheel.speed import ids_of, repeats, sort
from filewheel.tail import Handles

MISSING = "the file is missing"
_SLACK = 1.5
"""How far over its budget a window grows before it is cut: what is cut off is read again, and each cut sorts."""


@dataclass(frozen=True)
class Span:
    """A part of a file to be read, and an id that none in it is below."""

    name: str
    start: int
    end: int
    floor: bytes


@dataclass(frozen=True)
class Budget:
    """How much a window may hold in memory."""

    records: int = 1 << 16
    bytes: int = 16 << 20


@dataclass
class Window:
    """What was found: `puts` sorted and pending, for ids from the window's `lo` to below `hi`."""

    hi: bytes
    puts: list[bytes] = field(default_factory=list)
    loose: set[bytes] = field(default_factory=set)
    """Drops whose put was not in the window."""
    cut: bool = False
    """The budget was reached: more may lie from `hi` on."""
    has_drops: bool = False
    """Whether drops lie in the window, or in the frames that reach into it."""


OnGap = Callable[[Span, Gap], None]
"""Told of every range that could not be read; a file that is not there is a Gap of its whole length."""


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
        if reader.grown and reader.is_full():
            reader.shrink()
        if span.floor >= reader.hi:
            break
        try:
            fd = handles.get(span.name)
        except FileNotFoundError:
            on_gap(span, Gap(span.start, span.end, MISSING, at_end=True))
            continue
        except OSError as exc:
            if exc.errno in SCARCE:
                raise
            error = None if isinstance(exc, ForeignFile) else exc
            on_gap(span, Gap(span.start, span.end, f"cannot be read: {exc.strerror or exc}", at_end=True, error=error))
            continue
        _read_span(directory, fd, span, reader, on_gap)
    return reader.finish()


def _read_span(directory: Directory, fd: int, span: Span, reader: _Reader, on_gap: OnGap) -> None:
    disk = directory.disk
    size = disk.size(fd)
    if size + 7 < span.end:
        on_gap(span, Gap(max(size, span.start), span.end, "the file is too short", at_end=True))
    seed = directory.seed(span.name)
    scanner = scan(disk, fd, span.start, min(span.end, size), seed, lo=reader.lo, hi=reader.hi)
    for item in scanner:
        if isinstance(item, Gap):
            on_gap(span, item)
            continue
        try:
            reader.take(item)
        except Damaged as exc:
            on_gap(span, Gap(item.offset, item.end, exc.what))
        scanner.narrow(reader.hi)


class _Reader:
    """Collects the smallest ids of a window, never holding more than `_SLACK` times the budget."""

    def __init__(self, lo: bytes, hi: bytes, budget: Budget, dropped: Iterable[bytes]) -> None:
        self.lo = lo
        self.hi = hi
        self._budget = budget
        self._puts: list[bytes] = []
        self._drops = {i for i in dropped if lo <= i < hi}
        self._spent: set[bytes] = set()
        self._bytes = 0
        self._cut = False
        self._has_drops = bool(self._drops)
        self.grown = False
        """Whether anything was added since it was last netted."""

    def is_full(self) -> bool:
        return self._is_over(1)

    def _is_over(self, times: float) -> bool:
        records = len(self._puts) + len(self._drops)
        return records >= times * self._budget.records or self._bytes >= times * self._budget.bytes

    def take(self, frame: Frame) -> None:
        """Add a frame's records, those that lie in the window."""
        puts, drops = records_of(frame)
        lo, hi = self.lo, self.hi
        if frame.first < lo or frame.last >= hi:
            puts = [r for r in puts if lo <= r[ID] < hi]
            drops = [r for r in drops if lo <= r[ID] < hi]
        self.grown = True
        self._puts += puts
        self._bytes += sum(map(len, puts))
        if drops:
            self._has_drops = True
            self._drops.update(ids_of(drops))
        if self._is_over(_SLACK):
            self.shrink()

    def shrink(self) -> None:
        """Keep the smallest ids that fit in the budget, and lower `hi` to just above the last of them."""
        self._net()
        ends = list(accumulate(map(len, self._puts)))
        self._bytes = ends[-1] if ends else 0
        if not self.is_full():
            return
        bounds = []
        kept = min(bisect_left(ends, self._budget.bytes), self._budget.records - 1)
        if kept < len(ends):
            bounds.append(self._puts[kept][ID])
        if self._drops:
            ids = sorted([*ids_of(self._puts), *self._drops])
            bounds.append(ids[min(len(ids), self._budget.records) - 1])
        self.hi = hi = id_after(min(bounds))
        self._cut = True
        upto = bisect_left(self._puts, PUT_PREFIX + hi)
        del self._puts[upto:]
        self._drops = {i for i in self._drops if i < hi}
        self._spent = {i for i in self._spent if i < hi}
        self._bytes = ends[upto - 1] if upto else 0

    def _net(self) -> None:
        """Sort the puts, count each once, and take out those that are dropped."""
        self.grown = False
        sort(self._puts)
        if not self._drops and not repeats(self._puts):
            return
        by_id = dict(zip(ids_of(self._puts), self._puts, strict=True))
        spent = self._drops & by_id.keys()
        self._spent |= spent
        for id_ in spent:
            del by_id[id_]
        self._puts = list(by_id.values())

    def finish(self) -> Window:
        if self.is_full():
            self.shrink()
        else:
            self._net()
        return Window(self.hi, self._puts, self._drops - self._spent, self._cut, self._has_drops)
