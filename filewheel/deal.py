"""The deal: what the journals hold is moved into the laps, so that the journals can go.

One deal is one transaction. It reads the journals from what is covered up to a cut, leaves out every put that was
dropped below the same cut, appends the rest to the files of their laps and seconds above their covered lengths,
makes all of it durable, and commits by replacing the checkpoint; only then are covered segments unlinked. A crash
anywhere before the commit leaves bytes that no manifest names; the next deal writes over them. In the same transaction
a lap that has come near is dealt from its one file into seconds, and files of which everything is finished are left
out of the manifest, and unlinked after the commit: whole files, nothing is ever rewritten or compacted.

Runs in the background; one at a time. The rules D0-D6, K1-K4 and X1 of the protocol are named where they are kept.
Invariant: what is pending before a deal is pending after it, and nothing else.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel import layout
from filewheel.disk import Disk
from filewheel.frame import Frame, Scanner
from filewheel.ledger import Ledger
from filewheel.manifest import Manifest, Position, write_manifest
from filewheel.message import ID_END, ID_MIN, US_PER_S, due_of, id_floor
from filewheel.record import ID, pack_drop, sort_out, split
from filewheel.slot import append
from filewheel.tail import Tail
from filewheel.window import Budget, Span, read_window

CHUNK_BYTES = 24 << 20
CHUNK_RECORDS = 200_000
_SYNC_EACH_MAX = 16
_OPEN_BUDGET = Budget(records=1 << 16, bytes=12 << 20)


@dataclass
class _Cut:
    """What one deal covers: where it stops in each journal, and what it found below."""

    positions: dict[str, Position] = field(default_factory=dict)
    puts: list[bytes] = field(default_factory=list)
    drops: dict[bytes, int] = field(default_factory=dict)
    """id → reason, from frames that hold puts too."""
    drop_frames: list[Frame] = field(default_factory=list)
    """Frames of nothing but drops: only those that meet something are taken apart."""
    ended: set[str] = field(default_factory=set)
    bytes: int = 0
    records: int = 0


@dataclass
class Dealt:
    """What a deal did."""

    puts: int = 0
    drops: int = 0
    files: int = 0
    expired: int = 0
    """Files of which everything was finished."""
    left_bytes: int = 0
    """What was read, and is not covered yet."""


Finished = Callable[[], tuple[set[int], set[int]]]
"""() → (seconds, laps) of which nothing is pending any more. Called with the ledger's lock held."""


class Deal:
    """One deal. Make it, call `run()` once."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        spread: bool,
        finished: Finished | None = None,
        only_expire: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        """Prepare a deal. `spread` opens near laps into seconds; without, new laps stay in one file.

        `only_expire` leaves the journals alone: a full disk may have room for nothing but the checkpoint.
        """
        self._ledger = ledger
        self._dir = ledger.dir
        self._disk = ledger.disk
        self._spread = spread
        self._finished = finished
        self._only_expire = only_expire
        self._chunk_bytes = chunk_bytes
        self._chunk_records = chunk_records
        self._lap_slots: set[int] | None = None
        self._dirty: dict[str, int] = {}
        self._gone: list[str] = []
        self._new_dirs: set[int] = set()
        self._touched_dirs: set[str] = set()
        self._done = Dealt()

    def run(self) -> Dealt:
        """Deal. On return it is durable and the covered segments are gone.

        Raises OSError with the wheel as it was before.
        """
        ledger = self._ledger
        with ledger.lock:
            limits = {} if self._only_expire else ledger.cut()
            seen = {w: t.seen for w, t in ledger.tails.items()}
            base = ledger.manifest
            finished = self._finished() if self._finished is not None else (set(), set())
        cut = self._take(limits)
        self._flush_journals(seen)
        new = base.copy()
        new.deal = base.deal + 1
        new.keeper = ledger.own.writer
        # K4: the entry of a writer whose segments are gone is left out only now, a flush after they went.
        if not self._only_expire:
            new.positions = {w: p for w, p in new.positions.items() if w in limits} | cut.positions
        try:
            if not self._only_expire:
                self._write(cut, base, new, finished)
                self._sync()
        finally:
            self._close_files()
        self._expire(new, finished)
        # K1: the commit.
        write_manifest(self._disk, new, self._dir.seed)
        with ledger.lock:
            self._commit(new, cut)
        return self._done

    # -- reading: D0 to D3 -----------------------------------------------------------------------------------

    def _take(self, limits: dict[str, Position]) -> _Cut:
        """Read the journals from covered to the cut: everything seen, or as much as one chunk holds."""
        ledger = self._ledger
        cut = _Cut()
        # The keeper's journals come last, its own after the one before it: what they drop was put elsewhere.
        order = sorted(limits, key=lambda w: (w == ledger.own.writer, w == ledger.manifest.keeper, w))
        for writer in order:
            tail = ledger.tails[writer]
            position = tail.covered
            if not self._is_full(cut):
                for end, frame in self._frames(tail, limits[writer]):
                    self._sort_in(cut, frame)
                    position = end
                    if self._is_full(cut):
                        break
                else:
                    position = limits[writer]
            cut.positions[writer] = position
            if position == limits[writer] and tail.ended:
                cut.ended.add(writer)
        return cut

    def _is_full(self, cut: _Cut) -> bool:
        return cut.bytes >= self._chunk_bytes or cut.records >= self._chunk_records

    def _frames(self, tail: Tail, limit: Position, start: Position | None = None) -> Iterator[tuple[Position, Frame]]:
        """Yield a journal's frames from `start` (or what is covered) up to `limit`, and where each ends."""
        for segment, name, low, high in tail.spans(start or tail.covered, limit):
            try:
                fd = self._disk.open(name, "r")
            except FileNotFoundError:
                continue  # taken away by hand: what it held is gone, and the rest must go on
            try:
                scanner = Scanner(
                    lambda size, offset, fd=fd: self._disk.pread(fd, size, offset),  # type: ignore[misc]
                    low,
                    min(high, self._disk.size(fd)),
                    self._dir.seed(name),
                )
                for item in scanner:
                    if isinstance(item, Frame):
                        yield Position(segment, item.end, item.number), item
            finally:
                self._disk.close(fd)

    def _sort_in(self, cut: _Cut, frame: Frame) -> None:
        cut.bytes += frame.end - frame.offset
        cut.records += frame.puts + frame.drops
        if not frame.puts:
            cut.drop_frames.append(frame)
            return
        records = split(frame.body)
        puts, drops = (records, []) if not frame.drops else sort_out(records)
        cut.puts += puts
        for drop in drops:
            cut.drops[drop[ID]] = drop[20]

    def _flush_journals(self, seen: dict[str, Position]) -> None:
        """Make the journals durable as far as they were read.

        D2: what is about to be split over files must first be durable where it is one frame.
        X1: so must be every drop because of which a file counts as finished.
        """
        ledger = self._ledger
        ledger.own.flush()
        names = []
        for writer, position in seen.items():
            tail = ledger.tails[writer]
            if writer != ledger.own.writer:
                names += [n for _, n, _, _ in tail.spans(max(tail.covered, tail.flushed), position)]
        if len(names) > _SYNC_EACH_MAX:
            self._disk.sync_all()
        else:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    flush_file(self._disk, name)
        for writer, position in seen.items():
            tail = ledger.tails[writer]
            tail.flushed = max(tail.flushed, position)

    # -- writing: D4 to D6 -----------------------------------------------------------------------------------

    def _write(self, cut: _Cut, base: Manifest, new: Manifest, finished: tuple[set[int], set[int]]) -> None:
        puts = {r[ID]: r for r in cut.puts}
        self._keep_from_expiry(puts, finished)
        coming = self._coming(cut)
        self._take_apart(cut, base, puts, coming, finished)
        loose: list[bytes] = []
        # D3: a put is left out only for a drop below the same cut.
        for id_, reason in cut.drops.items():
            # D4: in doubt, a file may hold the put already, and needs its drop.
            if puts.pop(id_, None) is None or base.doubt:
                loose.append(pack_drop(id_, reason))
        still = {r[ID] for r in loose}.union(i for i in base.unmatched if puts.pop(i, None) is None)
        # D1: a drop whose put is yet to be dealt goes on to the next deal, or the put would come back.
        new.unmatched = sorted(still if coming is None else still & coming)
        # D5: one reading of the clock for the whole deal.
        near = self._dir.settings.lap_of(self._ledger.clock.now_us() // US_PER_S)
        loose = self._without_finished(loose, new, finished)
        if self._spread:
            for lap in (near, near + 1):
                if lap in new.laps and lap not in finished[1]:
                    self._open_lap(lap, new)
        self._write_records(sorted(puts.values()), sorted(loose), new, near)
        self._done.puts = len(puts)
        self._done.drops = len(loose)

    def _coming(self, cut: _Cut) -> set[bytes] | None:
        """Return the ids of all puts above the cut, after one more pass; None when they are too many to hold.

        A drop is written after its put, so once every drop below the cut is older than a whole pass over the
        journals, its put is below the cut, in a file, among these, or nowhere.
        """
        ledger = self._ledger
        with ledger.lock:
            ledger.ingest()
            above = {w: t.seen for w, t in ledger.tails.items() if not t.gone}
        ids: set[bytes] = set()
        size = 0
        for writer, limit in above.items():
            tail = ledger.tails[writer]
            for _, frame in self._frames(tail, limit, start=cut.positions.get(writer, tail.covered)):
                size += frame.end - frame.offset
                if size > self._chunk_bytes:
                    return None
                if frame.puts:
                    ids.update([r[ID] for r in sort_out(split(frame.body))[0]])
        return ids

    def _keep_from_expiry(self, puts: dict[bytes, bytes], finished: tuple[set[int], set[int]]) -> None:
        """Keep a finished file that this deal may append to: it goes with the next one (X3).

        Comes before any drop is looked at: a file that stays needs its drops.
        """
        if finished[0] or finished[1]:
            seconds = {due_of(i) // US_PER_S for i in puts}
            finished[0].difference_update(seconds)
            finished[1].difference_update({self._dir.settings.lap_of(s) for s in seconds})

    def _without_finished(self, drops: list[bytes], new: Manifest, finished: tuple[set[int], set[int]]) -> list[bytes]:
        """Leave out the drops for files that go: they go with their puts."""
        if not finished[0] and not finished[1]:
            return drops
        lap_of = self._dir.settings.lap_of
        kept = []
        for drop in drops:
            second = due_of(drop[ID]) // US_PER_S
            if second not in finished[0] and lap_of(second) not in finished[1]:
                kept.append(drop)
        return kept

    def _expire(self, new: Manifest, finished: tuple[set[int], set[int]]) -> None:
        """Leave finished files out of the new manifest; the commit unlinks them."""
        for second in finished[0]:
            if new.slots.pop(second, None) is not None:
                self._gone.append(layout.slot(self._dir.settings.lap_of(second), second))
        for lap in finished[1]:
            if new.laps.pop(lap, None) is not None:
                self._gone.append(layout.lap_file(lap))
        self._done.expired = len(self._gone)

    def _take_apart(
        self,
        cut: _Cut,
        base: Manifest,
        puts: dict[bytes, bytes],
        coming: set[bytes] | None,
        finished: tuple[set[int], set[int]],
    ) -> None:
        """Take the drops out of the frames that meet a put or a file.

        Most acknowledgements meet neither: their second has fired and its file is gone. To take each apart would
        cost memory and time for nothing.
        """
        if not cut.drop_frames:
            return
        ids = sorted(puts if coming is None else puts.keys() | coming)
        seconds = sorted(base.slots.keys() - finished[0])
        laps = sorted(base.laps.keys() - finished[1])
        lap_of = self._dir.settings.lap_of
        for frame in cut.drop_frames:
            low, high = due_of(frame.first) // US_PER_S, due_of(frame.last) // US_PER_S
            if (
                coming is None
                or _meets(ids, frame.first, frame.last)
                or _meets(seconds, low, high)
                or _meets(laps, lap_of(low), lap_of(high))
            ):
                for drop in split(frame.body):
                    cut.drops[drop[ID]] = drop[20]

    def _write_records(self, puts: list[bytes], drops: list[bytes], new: Manifest, near: int) -> None:
        """Append sorted records to the files they belong to; a drop never makes a file (D4)."""
        at = dropped = 0
        settings = self._dir.settings
        while at < len(puts) or dropped < len(drops):
            heads = [r[ID] for r in (*puts[at : at + 1], *drops[dropped : dropped + 1])]
            second = due_of(min(heads)) // US_PER_S
            lap = settings.lap_of(second)
            in_lap_file = self._goes_to_lap_file(lap, second, new, near)
            end = id_floor((lap + 1) * settings.slots * US_PER_S if in_lap_file else (second + 1) * US_PER_S)
            upto = bisect_left(puts, end, at, key=_id)
            drop_upto = bisect_left(drops, end, dropped, key=_id)
            lengths, key = (new.laps, lap) if in_lap_file else (new.slots, second)
            length = lengths.get(key, 0)
            mine = drops[dropped:drop_upto] if length else []
            if upto > at or mine:
                name = layout.lap_file(lap) if in_lap_file else layout.slot(lap, second)
                lengths[key] = self._append(name, lap, in_lap_file, length, puts[at:upto], mine, new.deal)
            at, dropped = upto, drop_upto

    def _goes_to_lap_file(self, lap: int, second: int, new: Manifest, near: int) -> bool:
        """Decide where a lap's records go. One state for each lap: whichever it has, it keeps."""
        if lap in new.laps:
            return True
        if second in new.slots or self._has_slots(lap, new):
            return False
        return not (self._spread and lap in (near, near + 1))

    def _has_slots(self, lap: int, new: Manifest) -> bool:
        if self._lap_slots is None:
            self._lap_slots = {self._dir.settings.lap_of(s) for s in new.slots}
        return lap in self._lap_slots

    def _append(
        self,
        name: str,
        lap: int,
        in_lap_file: bool,
        length: int,
        puts: list[bytes],
        drops: list[bytes],
        deal: int,
    ) -> int:
        if not in_lap_file:
            self._make_dir(lap)
            if self._lap_slots is not None:
                self._lap_slots.add(lap)
        new_length, fd = append(self._dir, name, length, puts, drops, deal=deal)
        self._done.files += 1
        old = self._dirty.pop(name, -1)
        if old >= 0:
            self._disk.close(old)
        if len(self._dirty) < _SYNC_EACH_MAX:
            self._dirty[name] = fd
        else:  # too many to keep open: all of them are flushed at once
            self._disk.close(fd)
            self._dirty[name] = -1
        self._touched_dirs.add(layout.LAPS if in_lap_file else layout.lap_dir(lap))
        return new_length

    def _make_dir(self, lap: int) -> None:
        if lap in self._new_dirs:
            return
        with contextlib.suppress(FileExistsError):
            self._disk.mkdir(layout.lap_dir(lap))
        self._new_dirs.add(lap)
        self._touched_dirs.add(layout.LAPS)

    def _open_lap(self, lap: int, new: Manifest) -> None:
        """Deal a lap's one file into seconds. Part of the same commit, so never half (L1-L6)."""
        length = new.laps.pop(lap)
        name = layout.lap_file(lap)
        self._gone.append(name)
        handles = self._ledger.new_handles()
        try:
            lo = ID_MIN
            while True:
                window = read_window(
                    self._dir,
                    handles,
                    [Span(name, 0, length, ID_MIN)],
                    lo,
                    ID_END,
                    on_gap=self._ledger.report_gap,
                    budget=_OPEN_BUDGET,
                )
                self._write_records(window.puts, [], new, lap)
                if not window.cut:
                    return
                lo = window.hi
        finally:
            handles.close()

    def _sync(self) -> None:
        """D6: files, their directories, and the directories in which something was unlinked."""
        if len(self._dirty) > _SYNC_EACH_MAX:
            self._disk.sync_all()
            return
        for fd in self._dirty.values():
            self._disk.fdatasync(fd)
        for name in self._touched_dirs | self._ledger.unlinked_in:
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_dir(name)

    def _close_files(self) -> None:
        for fd in self._dirty.values():
            if fd >= 0:
                self._disk.close(fd)
        self._dirty.clear()

    # -- commit: K2 to K4 ------------------------------------------------------------------------------------

    def _commit(self, new: Manifest, cut: _Cut) -> None:
        """Make the new manifest the ledger's, and remove what it has made needless."""
        ledger = self._ledger
        ledger.manifest = new
        ledger.unlinked_in.clear()
        if not self._only_expire:
            for writer in [w for w, t in ledger.tails.items() if t.gone]:
                del ledger.tails[writer]
        for writer, position in cut.positions.items():
            self._unlink_segments(ledger.tails[writer], position, ended=writer in cut.ended)
        self._disk.sync_dir(layout.JOURNAL)
        for name in self._gone:
            ledger.unlink_file(name)
        ledger.remove_empty_dirs()
        ledger.undealt_bytes = max(0, ledger.undealt_bytes - cut.bytes)
        ledger.undealt_records = max(0, ledger.undealt_records - cut.records)
        self._done.left_bytes = ledger.undealt_bytes

    def _unlink_segments(self, tail: Tail, position: Position, *, ended: bool) -> None:
        for n in range(tail.covered.segment, position.segment):
            self._ledger.unlink_file(layout.segment(tail.writer, n))
            tail.ends.pop(n, None)
        tail.covered = position
        if ended:
            # K3: nobody appends to it (its lock was free when it was read), and nothing valid lies past the cut.
            self._ledger.unlink_file(layout.segment(tail.writer, position.segment))
            tail.gone = True


def flush_file(disk: Disk, name: str) -> None:
    """Make a file durable that another process wrote."""
    fd = disk.open(name, "r")
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def _meets(numbers: Sequence[Any], low: Any, high: Any) -> bool:
    """Tell whether a sorted list holds something from low to high."""
    at = bisect_left(numbers, low)
    return at < len(numbers) and bool(numbers[at] <= high)


def _id(record: bytes) -> bytes:
    return record[ID]
