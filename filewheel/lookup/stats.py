"""Counts of pending messages: in total, by topic and by time, with as little reading as possible.

A file without drops, for which no journal has drops either, is counted by the headers of its frames. Only the others
are counted id by id. So the totals of ten million messages cost a header for each frame. Where a wheel may have a
message twice (repeats.py), a file whose frames overlap is counted id by id too.
Invariant: the counts are those of the snapshot: all puts minus all drops, each id once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.keeper_lock import holder
from filewheel.disk.paused import read_pauses
from filewheel.disk.quarantine import bytes_in, items
from filewheel.errors import Damaged
from filewheel.format.pauses import Pauses
from filewheel.format.record import ID, readable_records
from filewheel.laps.window import Span, spans_of
from filewheel.lookup.front import Front
from filewheel.lookup.snapshot import DEAD_FLOOR, WALK_BUDGET, Filter, Snapshot
from filewheel.message import DEAD_US, ID_END, US_PER_S, due_of, to_datetime
from filewheel.roster.repeats import may_repeat

Progress = Callable[[int], None]
"""Called with the number of messages counted so far."""
_TRIES = 20
Known = dict[str, tuple[object, int]]
"""File name → its identity up to the covered length, and its number of messages."""


@dataclass
class Stats:
    """The counts and sizes of a wheel."""

    pending: int = 0
    dead: int = 0
    quarantined: int = 0
    """Items in quarantine."""
    quarantined_bytes: int = 0
    next_due: datetime | None = None
    journal_bytes: int = 0
    journal_files: int = 0
    slot_files: int = 0
    lap_files: int = 0
    file_bytes: int = 0
    """Bytes in lap and slot files."""
    keeper_up: bool = False
    """Whether a process holds the lock as the keeper, also in another container."""
    keeper_pid: int | None = None
    """Its number in its own pid namespace; None when that is not known."""
    keeper_namespace: str = ""
    """Its pid namespace; nothing when it is that of this process."""
    paused: Pauses | None = field(default_factory=Pauses)
    """What is paused; None when that cannot be read, which counts as damage."""
    damaged: int = 0
    """Damaged places among those read to count: `verify` reads everything."""


@dataclass
class Histogram:
    """Pending messages by due time: `counts[i]` are due from `edges_us[i]` to below `edges_us[i + 1]`."""

    edges_us: list[int]
    counts: list[int] = field(default_factory=list)
    before: int = 0
    """Due before the first edge."""
    after: int = 0
    """Due at or after the last edge; dead letters are not counted."""


class Counter:
    """Counts the pending ids of a snapshot, file by file, with the memory of the undealt journals and one window."""

    def __init__(self, directory: Directory, snapshot: Snapshot, known: Known | None = None) -> None:
        """`known` saves the reading of unchanged files, and is updated by `count`."""
        self._dir = directory
        self._snapshot = snapshot
        self._known: Known = {} if known is None else known
        self.learnt: Known = {}
        """Files that were counted id by id although no journal has records for them."""
        # Read after the snapshot: the mark is durable before the wheel holds anything twice.
        self._repeats = may_repeat(directory)
        puts: set[bytes] = set()
        drops: set[bytes] = set(snapshot.checkpoint.unmatched)
        for span in snapshot.journals:
            for frame in snapshot.frames(span):
                found, dropped = readable_records(frame)
                puts.update([r[ID] for r in found])
                drops.update([r[ID] for r in dropped])
        self._loose = sorted(puts - drops)
        """Pending ids in the journals; those of a file's time are counted with a file that is read."""
        self.drops = drops
        """The ids that a journal or the checkpoint drops."""
        self._drops = sorted(drops)
        checkpoint, lap_of = snapshot.checkpoint, directory.settings.lap_of
        self._both = checkpoint.laps.keys() & {lap_of(second) for second in checkpoint.slots}
        """Laps with a file and slots, because one of them was missing: counted as one."""
        self.spans = [s for s in spans_of(directory, checkpoint) if not self._is_counted_with_lap(s)]

    def count(self) -> tuple[int, int]:
        """Count the pending messages, and the dead letters. Keep what was learnt for the next count."""
        pending = dead = 0
        for span in self.spans:
            if span.floor < DEAD_FLOOR < self.ceil(span):
                for id_ in self.ids(span):
                    pending += id_ < DEAD_FLOOR
                    dead += id_ >= DEAD_FLOOR
                continue
            count = self.simple(span)
            if count is None:
                count = self.read(span)
            if span.floor >= DEAD_FLOOR:
                dead += count
            else:
                pending += count
        self._known.clear()
        self._known.update(self.learnt)
        rest = self.rest()
        at = bisect_left(rest, DEAD_FLOOR)
        return pending + at, dead + len(rest) - at

    def simple(self, span: Span) -> int | None:
        """Count a file's messages by its headers; None when it must be read."""
        if not self._is_alone(span):
            return None
        count = 0
        ranges: list[tuple[bytes, bytes]] = []
        missing: list[Span] = []
        for frame in self._snapshot.frames(span, headers=True, missing=missing):
            if frame.drops:
                return None
            count += frame.puts
            if self._repeats and frame.puts:
                ranges.append((frame.first, frame.last))
        # A deal writes an id only once in a frame. A file that is missing was dealt anew since, or removed by hand.
        return None if missing or _overlap(ranges) else count  # mutant: counted-twice

    def read(self, span: Span) -> int:
        """Count the pending messages of one file's time, id by id. Cost: about 0.2 µs for each message."""
        which = (self._dir.disk.identity(span.name), span.end)
        low, high = self._between(self._loose, span)
        is_alone = low == high and self._is_alone(span)
        if is_alone and self._known.get(span.name, (None, 0))[0] == which:
            self.learnt[span.name] = self._known[span.name]
            return self._known[span.name][1]
        del self._loose[low:high]
        lo, hi, count = span.floor, self.ceil(span), 0
        while lo < hi:
            window = self._snapshot.window(lo, hi, WALK_BUDGET)
            count += len(window.found)
            lo = window.hi
        if is_alone and all(damage.name != span.name for damage in self._snapshot.damage):
            self.learnt[span.name] = which, count
        return count

    def _is_alone(self, span: Span) -> bool:
        """Return whether a file's frames alone give its messages: no journal or other file concerns them."""
        if self._snapshot.checkpoint.doubt or self._lap_of(span) in self._both:
            return False
        low, high = self._between(self._drops, span)
        if self._repeats and low == high:  # mutant: loose-counted-twice
            low, high = self._between(self._loose, span)
        return low == high

    def _lap_of(self, span: Span) -> int:
        return self._dir.settings.lap_of(due_of(span.floor) // US_PER_S) if span.file is None else span.file.lap

    def _is_counted_with_lap(self, span: Span) -> bool:
        return span.file is not None and not span.file.is_lap and span.file.lap in self._both

    def ids(self, span: Span) -> Iterator[bytes]:
        """Yield the pending ids of one file's time, those in the journals too."""
        low, high = self._between(self._loose, span)
        del self._loose[low:high]
        for put in self._snapshot.puts(span.floor, self.ceil(span)):
            yield put[ID]

    def rest(self) -> list[bytes]:
        """Return the pending ids that only the journals hold, and that were counted with no file."""
        return self._loose

    def _between(self, ids: list[bytes], span: Span) -> tuple[int, int]:
        return bisect_left(ids, span.floor), bisect_left(ids, self.ceil(span))

    def ceil(self, span: Span) -> bytes:
        """Return the smallest id after a file's range."""
        return ID_END if span.file is None else span.file.range[1]


def _overlap(ranges: list[tuple[bytes, bytes]]) -> bool:
    """Return whether two of these ranges of ids have one in common."""
    ranges.sort()
    return any(one[1] >= next_[0] for one, next_ in pairwise(ranges))


def stats_of(directory: Directory, snapshot: Snapshot) -> Stats:
    """Count a snapshot. Cost: a header for each frame of the laps, and the undealt journals whole."""
    for _ in range(_TRIES):
        counts = Counter(directory, snapshot).count()
        first = Front.of(snapshot, 1).first(Filter(), 1)
        if not snapshot.is_overtaken:
            break
        snapshot.take_again()
    stats = sizes_of(directory, snapshot.checkpoint, [(s.name, s.end - s.start) for s in snapshot.journals])
    stats.pending, stats.dead = counts
    stats.next_due = to_datetime(due_of(first[0][ID])) if first else None
    stats.damaged += len(snapshot.problems())
    return stats


def sizes_of(directory: Directory, checkpoint: Checkpoint, journals: Sequence[tuple[str, int]]) -> Stats:
    """Return the sizes of a wheel on disk, and its keeper; `journals` are names and numbers of uncovered bytes."""
    keeper = holder(directory)
    try:
        paused = read_pauses(directory.disk, directory.path)
    except Damaged:
        paused = None
    return Stats(
        paused=paused,
        damaged=int(paused is None),
        quarantined=len(items(directory)),
        quarantined_bytes=bytes_in(directory),
        journal_bytes=sum(size for _, size in journals),
        journal_files=len({name for name, _ in journals}),
        slot_files=len(checkpoint.slots),
        lap_files=len(checkpoint.laps),
        file_bytes=checkpoint.file_bytes,
        keeper_up=keeper is not None,
        keeper_pid=None if keeper is None else keeper.pid,
        keeper_namespace="" if keeper is None else keeper.namespace,
    )


def histogram_of(directory: Directory, snapshot: Snapshot, edges_us: Sequence[int]) -> Histogram:
    """Count a snapshot by due time. A file between two edges is counted whole."""
    edges = list(edges_us)
    counts = [0] * (len(edges) + 1)  # before, between, after
    counter = Counter(directory, snapshot)
    for span in counter.spans:
        if span.floor >= DEAD_FLOOR:
            continue
        low = bisect_right(edges, due_of(span.floor))
        high = bisect_right(edges, due_of(counter.ceil(span)) - 1)
        count = counter.simple(span) if low == high else None
        if count is not None:
            counts[low] += count
            continue
        for id_ in counter.ids(span):
            if id_ < DEAD_FLOOR:
                counts[bisect_right(edges, due_of(id_))] += 1
    for id_ in counter.rest():
        if due_of(id_) < DEAD_US:
            counts[bisect_right(edges, due_of(id_))] += 1
    return Histogram(edges, counts[1:-1], counts[0], counts[-1])


def topics_of(snapshot: Snapshot, progress: Progress | None = None) -> dict[str, int]:
    """Count a snapshot by topic. Reads every message; the snapshot notes damaged records."""
    counts: dict[str, int] = {}
    for n, message in enumerate(snapshot.messages()):
        counts[message.topic] = counts.get(message.topic, 0) + 1
        if progress is not None and n % 4096 == 0:
            progress(n)
    return counts
