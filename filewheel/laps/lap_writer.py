"""Writes the records of a deal to slot and lap files: which file each belongs to, and which files are dealt anew.

A lap is one file or slots. It keeps the kind that it has; a lap that has neither gets slots when it is near. Nothing
is written to a file that is missing: its puts go to the other kind of file, and the checkpoint carries its drops.
A file is dealt anew when its lap comes near, and when most of it is dropped: what is pending in it goes to new files.
Invariant: a record is appended once, above the covered length of the file that its id belongs to.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set

from filewheel.disk.checkpoint import Checkpoint, Covered
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, Gap, record_bytes, scan
from filewheel.format.record import CANCELLED, DROP_PREFIX, ID, add_puts, pack_drop
from filewheel.laps.additions import Additions
from filewheel.laps.slot import File, files_in, frames, frames_of, lap_file, slot_file
from filewheel.laps.store import Store
from filewheel.laps.window import MISSING, Budget, Span, read_window, span_of
from filewheel.message import ID_END, ID_MIN, US_PER_S, due_of, id_after, id_floor
from filewheel.native.compiled import PutTable, ids_of
from filewheel.native.loops import DROP_BYTES

_ANEW_BUDGET = Budget(records=1 << 16, bytes=12 << 20)


class LapWriter:
    """Writes the records of one deal to the slot and lap files that they belong to. Not thread-safe."""

    def __init__(self, store: Store, new: Checkpoint, near: Set[int], added: Additions) -> None:
        """`new` is the checkpoint of the deal, which names the files that are written; `near` laps go into slots."""
        self._store = store
        self._dir = store.dir
        self._disk = store.disk
        self._new = new
        self._near = near
        self._added = added
        self._lap_slots: set[int] | None = None
        self._looked_at: set[str] = set()
        """The files that were checked."""
        self.held: set[bytes] = set()
        """The ids of drops whose put may be in a missing file."""

    def write(self, puts: PutTable, drops: list[bytes], *, keep_drops: bool = False) -> None:
        """Append sorted records to the files they belong to; only with `keep_drops` a drop makes a file (D4)."""
        at = dropped = 0
        settings = self._dir.settings
        while at < len(puts) or dropped < len(drops):
            head = puts.id(at) if at < len(puts) else ID_END
            if dropped < len(drops):
                head = min(head, drops[dropped][ID])
            second = due_of(head) // US_PER_S
            lap = settings.lap_of(second)
            in_lap_file = self._goes_to_lap_file(lap, second)
            # A lap that has both kinds is written second by second: a drop may belong to a slot.
            is_whole = in_lap_file and not self._has_slots(lap)
            end = id_floor((lap + 1) * settings.slots * US_PER_S if is_whole else (second + 1) * US_PER_S)
            upto = puts.find(end, at)
            drop_upto = bisect_left(drops, DROP_PREFIX + end, dropped) if dropped < len(drops) else dropped
            files, key = (self._new.laps, lap) if in_lap_file else (self._new.slots, second)
            covered = files.get(key, Covered(0, self._new.deal, 0))
            file = lap_file(settings, lap, covered) if in_lap_file else slot_file(settings, second, covered)
            mine = drops[dropped:drop_upto] if covered.end or keep_drops else []  # mutant: drops-left-out
            if file.name in self._store.missing:
                self._refuse(file.name, upto - at)
            elif upto > at or mine:
                if not in_lap_file:
                    self._make_dir(lap)
                files[key] = self._append(file, covered, puts, (at, upto), mine)
            if self._store.missing and drop_upto > dropped:
                # mutant: missing-drops
                self.held.update(filter(self._store.missing.hides, ids_of(drops[dropped:drop_upto])))
            at, dropped = upto, drop_upto

    def _goes_to_lap_file(self, lap: int, second: int) -> bool:
        """Decide whether a lap's records go to its one file. A lap keeps the kind of file that it has.

        But nothing is written to a missing file: beside it, the lap gets the other kind too.
        """
        settings, new = self._dir.settings, self._new
        no_file = lap in new.laps and self._is_missing(lap_file(settings, lap, new.laps[lap]))
        if lap in new.laps and not no_file:
            return True
        if second in new.slots and self._is_missing(slot_file(settings, second, new.slots[second])):
            return True
        if no_file:
            return False
        if second in new.slots or self._has_slots(lap):  # mutant: two-homes
            return False
        return lap not in self._near

    def _is_missing(self, file: File) -> bool:
        """Return whether a named file is missing. Cost: a stat, once a deal."""
        store, name = self._store, file.name
        if name not in self._looked_at:
            self._looked_at.add(name)
            # A file that this deal made is in no checkpoint yet.
            if name in store.missing or (not self._added.has(name) and self._disk.identity(name) is None):
                with store.lock:
                    store.miss(span_of(file))
        return name in store.missing  # mutant: missing-written

    def _has_slots(self, lap: int) -> bool:
        if self._lap_slots is None:
            self._lap_slots = {self._dir.settings.lap_of(s) for s in self._new.slots}
        return lap in self._lap_slots

    def _refuse(self, name: str, puts: int) -> None:
        """Raise if a message would go to a missing file: the other one that could take it is missing too."""
        if puts:
            raise Damaged(
                "missing, and so is the file that would take its messages",
                path=self._dir.place(name),
                hint="restore it, or `filewheel repair`, which accepts the loss",
            )

    def _make_dir(self, lap: int) -> None:
        self._added.make_dir(layout.lap_dir(lap))
        if self._lap_slots is not None:
            self._lap_slots.add(lap)

    def _append(
        self, file: File, covered: Covered, puts: PutTable, part: tuple[int, int], drops: list[bytes]
    ) -> Covered:
        seed, deal = self._dir.seed(file.name), self._new.deal
        data = frames_of(puts, part, seed=seed, offset=covered.end, number=deal)
        live = record_bytes(data)
        if drops:
            if covered.made != deal:
                live -= self._ended_bytes(file, drops)
            data += frames([], drops, seed=seed, offset=covered.end + len(data), number=deal)
            if self._store.repeats:
                live += DROP_BYTES * len(drops)
        self._added.append(file.name, covered.end, data)
        live = max(0, covered.live + live) if covered.live >= 0 else -1
        return covered._replace(end=covered.end + len(data), live=live)

    def _ended_bytes(self, file: File, drops: list[bytes]) -> int:
        """Return the size of those puts in a file that these drops end. Cost: the frames that may have them."""
        ids, size = ids_of(drops), 0
        with contextlib.closing(self._store.new_handles()) as handles:
            fd = handles.get(file.name)
            seed, end = self._dir.seed(file.name), min(file.end, self._disk.size(fd))
            for head in scan(self._disk, fd, 0, end, seed, headers=True, lo=ids[0], hi=id_after(ids[-1])):
                if not isinstance(head, Frame) or not head.puts:
                    continue
                some = ids[bisect_left(ids, head.first) : bisect_right(ids, head.last)]
                for frame in scan(self._disk, fd, head.offset, head.end, seed) if some else ():
                    if isinstance(frame, Frame):
                        size += _size_of(frame, some)
        return size

    def is_there(self, lap: int) -> bool:
        """Return whether no file of a lap is missing: only then its files are dealt anew."""
        # All files are checked first: one found missing later would send its messages to the removed lap file.
        for file in files_in(self._dir.settings, self._new, lap):
            self._is_missing(file)
        return lap not in self._store.missing.near()  # mutant: missing-opened

    def deal_anew(self, files: Sequence[File], drops: list[bytes]) -> None:
        """Deal what is pending in the file of a lap or a second to new files, in the same commit.

        In doubt it may have several files. `drops` are this deal's sorted drops for them. The checkpoint does not name
        the files any more. A drop goes with its put, unless messages may be put twice: then a drop is kept.
        """
        file = files[-1]
        file.among(self._new).pop(file.key)
        known = ids_of(drops)  # mutant: anew-drops-late
        if self._has_slots(file.lap) if file.is_lap else file.lap in self._new.laps:
            self._store.note_repeats()  # records that came while one of them was missing may be in both
        keeps = self._store.repeats
        handles = self._store.new_handles()
        try:
            lo = ID_MIN
            while True:
                window = read_window(
                    self._dir,
                    handles,
                    list(map(span_of, files)),
                    lo,
                    ID_END,
                    on_gap=self._on_gap,
                    dropped=known,
                    budget=_ANEW_BUDGET,
                )
                # mutant: anew-drops-forgotten
                kept = [pack_drop(i, CANCELLED) for i in sorted(window.drops)] if keeps else []
                self.write(window.found, kept, keep_drops=keeps)  # mutant: lap-not-emptied
                if not window.cut:
                    return
                lo = window.hi
        finally:
            handles.close()

    def _on_gap(self, span: Span, gap: Gap) -> None:
        self._store.report_gap(span, gap)
        if gap.reason == MISSING:  # since `is_there`: it stays named
            raise Damaged("it went missing while it was dealt", path=self._dir.place(span.name), hint="restore it")


def _size_of(frame: Frame, ids: list[bytes]) -> int:
    """Return the size of the puts of a frame that have these ids; 0 when it is written wrongly."""
    puts = PutTable()
    try:
        add_puts(puts, frame)
    except Damaged:
        return 0
    size = puts.size_bytes()
    puts.remove(puts.having(ids))
    return size - puts.size_bytes()
