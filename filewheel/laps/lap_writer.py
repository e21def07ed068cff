"""Writes the records of a deal to slot and lap files: which file each belongs to, and a near lap's move into slots.

A lap is one file or slots. It keeps the kind that it has; a lap that has neither gets slots when it is near. Nothing
is written to a file that is missing: its puts go to the other kind of file, and the checkpoint carries its drops.
Invariant: a record is appended once, above the covered length of the file that its id belongs to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set

from filewheel.disk.checkpoint import Checkpoint
from filewheel.errors import Damaged
from filewheel.format.record import CANCELLED, DROP_PREFIX, ID, pack_drop
from filewheel.laps.additions import Additions
from filewheel.laps.slot import File, files_in, frames, frames_of, lap_file, slot_file
from filewheel.laps.store import Store
from filewheel.laps.window import Budget, read_window, span_of
from filewheel.message import ID_END, ID_MIN, US_PER_S, due_of, id_floor
from filewheel.native.compiled import PutTable, ids_of
from filewheel.roster.repeats import note_repeats

_OPEN_BUDGET = Budget(records=1 << 16, bytes=12 << 20)


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
        self.files = 0
        """How often a file was appended to."""

    def write(self, puts: PutTable, drops: list[bytes]) -> None:
        """Append sorted records to the files they belong to; a drop never makes a file (D4)."""
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
            file = lap_file(settings, lap) if in_lap_file else slot_file(settings, second)
            lengths, name = file.among(self._new), file.name
            length = lengths.get(file.key, 0)
            mine = drops[dropped:drop_upto] if length else []  # mutant: drops-left-out
            if name in self._store.missing:
                self._refuse(name, upto - at)
            elif upto > at or mine:
                if not in_lap_file:
                    self._make_dir(lap)
                lengths[file.key] = self._append(name, length, puts, (at, upto), mine)
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
        self._added.make_dir(lap)
        if self._lap_slots is not None:
            self._lap_slots.add(lap)

    def _append(self, name: str, length: int, puts: PutTable, part: tuple[int, int], drops: list[bytes]) -> int:
        seed, deal = self._dir.seed(name), self._new.deal
        data = frames_of(puts, part, seed=seed, offset=length, number=deal)
        if drops:
            data += frames([], drops, seed=seed, offset=length + len(data), number=deal)
        self._added.append(name, length, data)
        self.files += 1
        return length + len(data)

    def can_open(self, lap: int) -> bool:
        """Return whether a lap can be dealt into slots: none of its files is missing."""
        # All files are checked first: one found missing later would send its messages to the removed lap file.
        for file in files_in(self._dir.settings, self._new, lap):
            self._is_missing(file)
        return lap not in self._store.missing.near()  # mutant: missing-opened

    def open(self, lap: int) -> None:
        """Deal a lap's one file into slots, in the same commit."""
        if self._has_slots(lap):  # records that came while one of them was missing may be in both
            note_repeats(self._disk)
        file = lap_file(self._dir.settings, lap, self._new.laps.pop(lap))
        handles = self._store.new_handles()
        try:
            lo = ID_MIN
            while True:
                window = read_window(
                    self._dir,
                    handles,
                    [span_of(file)],
                    lo,
                    ID_END,
                    on_gap=self._store.report_gap,
                    budget=_OPEN_BUDGET,
                )
                # Drops of messages in slots: the lap has both kinds since one of its files was missing for a while.
                loose = [pack_drop(i, CANCELLED) for i in sorted(window.loose)]
                self.write(window.found, loose)  # mutant: lap-not-emptied
                if not window.cut:
                    return
                lo = window.hi
        finally:
            handles.close()
