"""Copies laps that a backup lacks, frame by frame, without parsing their records.

Each message costs two checksums, so a first copy runs at the speed of the disks. A frame is sealed again for its place
in the second wheel, and a copy is committed like a deal: files first, then the checkpoint. Records of these laps that
are only in the first wheel's journals are returned, for the caller to write.

The laps of both wheels are sets of puts and drops, so existing records stay, and a record that is copied twice counts
once. Where the second wheel has a large part of a lap, a comparison is cheaper than a second copy (lap_plan.py).
Rule: before `copy`, the caller has written every drop that it read to the second wheel, and it continues to read only
after it has written the records that `copy` returned. So no drop comes before a put that is copied here.
Invariant: with the records that `copy` returned, the second wheel has every put and drop that the first had in these
laps.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from filewheel.disk.checkpoint import Covered
from filewheel.disk.directory import Directory
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.format.frame import Frame, seal
from filewheel.format.record import CANCELLED, ID, keyed_ids, moved, pack_drop, readable_records, root_of
from filewheel.laps.additions import Additions
from filewheel.laps.slot import File, files_in, lap_floor
from filewheel.laps.window import Budget, read_file
from filewheel.lookup.snapshot import Snapshot
from filewheel.native.compiled import ids_of
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.lap_plan import LapPlanner, Plan

STEP_BYTES = 64 << 20
"""The size of one step, after which the link reads the journals again."""
_WRITE_BYTES = 4 << 20
_ROOM_BYTES = 8 << 20
"""Space that stays free, for the acknowledgements that the link copies."""
_KNOWN = Budget(records=1 << 17, bytes=32 << 20)


@dataclass
class Copied:
    """The remaining differences in a range after its files were copied or passed over."""

    hi: bytes
    """The end of the range; its start when the first lap is not fully copied."""
    puts: list[bytes] = field(default_factory=list)
    """Packed puts that only the first wheel's journals hold."""
    drops: list[bytes] = field(default_factory=list)
    """Packed drops that only the first wheel's journals hold."""
    extra: set[bytes] = field(default_factory=set)
    """Ids that are pending only in the second wheel."""
    moved: dict[bytes, bytes] = field(default_factory=dict)
    """First id → present id of moved messages, copied to laps where the second wheel has drops."""
    copied: int = 0
    """The number of puts in the copied frames."""
    size_bytes: int = 0


@dataclass
class _Unfinished:
    """The state of a lap that is not fully copied."""

    lap: int
    offsets: dict[str, int] = field(default_factory=dict)
    """The offset up to which each file was copied."""
    unseen: set[bytes] = field(default_factory=set)
    """Ids that were pending in the second wheel, and not found in the first so far."""
    has_drops: bool = False
    """Whether the second wheel had drops."""


class LapCopy:
    """Copies laps from `source` to the wheel of a keeper. Not thread-safe."""

    def __init__(self, source: Directory, keeper: BackupKeeper) -> None:
        self._source = source
        self._keeper = keeper
        self._unfinished: _Unfinished | None = None
        self._refused: set[int] = set()

    def begin(self) -> None:
        """Forget the state of single laps at the start of a walk."""
        self._unfinished = None
        self._refused.clear()

    def plan(self, lo: bytes, *, by_id: bool = False) -> Plan:
        """Return the next step from `lo` on. Cost: reads the first wheel's checkpoint. Raises DiskError."""
        laps = LapPlanner(self._source, self._keeper.dir, self._keeper.store.checkpoint)
        unfinished = self._unfinished
        if unfinished is not None and laps.can_copy(unfinished.lap):
            return Plan(laps.floor(unfinished.lap + 1), [unfinished.lap])
        self._unfinished = None
        return laps.next(lo, STEP_BYTES, self._refused, by_id=by_id)

    def copy(self, laps: list[int], lo: bytes, hi: bytes) -> Copied:
        """Copy laps, up to the size of a step; return the remaining differences in the range.

        On return the copy is durable. A lap with an unreadable part is left for a comparison. Cost: two checksums of
        the copied bytes, and reads the first wheel's journals. Raises DiskError, Poisoned, OSError.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None:
            known = self._keeper.store.window(lo, hi, _KNOWN)
            if known.cut:
                return self._refuse(laps, lo)
            unfinished = _Unfinished(laps[0], unseen=set(ids_of(known.puts)), has_drops=known.has_drops)
        with Snapshot(self._source) as snapshot:
            if snapshot.checkpoint.doubt:
                return self._refuse(laps, lo)
            step = _CopyStep(snapshot, self._source, self._keeper, unfinished)
            lap = step.run(laps)
            if lap is not None:
                return self._refuse([lap], lo)
            done = Copied(hi, moved=step.moved, copied=step.copied, size_bytes=step.size_bytes)
            if step.stopped_in is not None:
                self._unfinished = _Unfinished(step.stopped_in, step.offsets, unfinished.unseen, unfinished.has_drops)
                done.hi = max(lo, lap_floor(self._source.settings, step.stopped_in))
            # The journals' records of a lap are read when all of its files are copied.
            self._read_journals(snapshot, lo, done, unfinished.unseen)
            done.extra = {i for i in unfinished.unseen if i < done.hi}
            unfinished.unseen -= done.extra
            return done

    def pass_over(self, laps: list[int], lo: bytes, hi: bytes) -> Copied:
        """Pass over laps whose files are the same in both wheels; return the remaining differences in the range.

        A lap that is not the same is left for a comparison. Cost: two checksums of its bytes, and reads the first
        wheel's journals. Raises DiskError, OSError.
        """
        here = self._keeper.undealt(lo, hi)
        with Snapshot(self._source) as snapshot:
            others = [lap for lap in laps if snapshot.checkpoint.doubt or not self._is_same(snapshot, lap)]
            if others:
                return self._refuse(others, lo)
            files = [file for lap in laps for file in files_in(self._source.settings, snapshot.checkpoint, lap)]
            done = Copied(hi, size_bytes=sum(file.end for file in files))
            unseen = set(here)
            self._read_journals(snapshot, lo, done, unseen)
            done.extra = unseen
            return done

    def _is_same(self, snapshot: Snapshot, lap: int) -> bool:
        ours, theirs = (
            files_in(wheel.settings, checkpoint, lap)
            for wheel, checkpoint in (
                (self._source, snapshot.checkpoint),
                (self._keeper.dir, self._keeper.store.checkpoint),
            )
        )
        if [(file.key, file.end) for file in ours] != [(file.key, file.end) for file in theirs]:
            return False
        for file, twin in zip(ours, theirs, strict=True):
            frames = read_file(self._source, snapshot.handles, file, 0)
            others = read_file(self._keeper.dir, self._keeper.store.handles, twin, 0)
            for one, other in zip_longest(frames, others):
                if one is None or other is None or one.body != other.body:
                    return False
        return True

    def _refuse(self, laps: list[int], lo: bytes) -> Copied:
        self._refused.update(laps)
        return Copied(lo)

    def _read_journals(self, snapshot: Snapshot, lo: bytes, done: Copied, unseen: set[bytes]) -> None:
        """Add the records of the range that are in the first wheel's journals."""
        hi = done.hi
        puts: dict[bytes, bytes] = {}
        drops = {i: pack_drop(i, CANCELLED) for i in snapshot.checkpoint.unmatched if lo <= i < hi}
        for span in snapshot.journals if lo < hi else ():
            for frame in snapshot.frames(span):
                if frame.first >= hi or frame.last < lo:
                    continue
                some_puts, some_drops = readable_records(frame)  # the wheel's keeper quarantines an invalid one
                puts.update((r[ID], r) for r in some_puts if lo <= r[ID] < hi)
                drops.update((r[ID], r) for r in some_drops if lo <= r[ID] < hi)
        done.puts = sorted(put for id_, put in puts.items() if id_ not in drops and id_ not in unseen)
        done.drops = sorted(drops.values())
        unseen -= puts.keys()


class _CopyStep:
    """One step of copying: one transaction in the second wheel."""

    def __init__(self, snapshot: Snapshot, source: Directory, keeper: BackupKeeper, unfinished: _Unfinished) -> None:
        self._snapshot = snapshot
        self._source = source
        self._keeper = keeper
        self._unfinished = unfinished
        self._added = Additions(keeper.dir)
        self._new = keeper.store.checkpoint.copy()
        self._new.deal += 1
        self.offsets: dict[str, int] = {}
        """The offsets up to which the files of the last lap were copied."""
        self.stopped_in: int | None = None
        self.moved: dict[bytes, bytes] = {}
        self.copied = 0
        self.size_bytes = 0

    def run(self, laps: list[int]) -> int | None:
        """Copy, and commit; if a lap cannot be copied, copy nothing and return it."""
        try:
            lap = self._copy(laps)
            if lap is None:
                self._keeper.adopt(self._new, self._added, lap_floor(self._source.settings, laps[0]))
            return lap
        finally:
            self._added.close()

    def _copy(self, laps: list[int]) -> int | None:
        try:
            self._must_fit(laps)
            for lap in laps:
                if not self._copy_lap(lap):
                    self._added.undo()
                    return lap
                if self.stopped_in is not None:
                    break
        except (OSError, FilewheelError):
            self._added.undo()
            raise
        return None

    def _must_fit(self, laps: list[int]) -> None:
        files = (f for lap in laps for f in files_in(self._source.settings, self._snapshot.checkpoint, lap))
        need = min(sum(f.end for f in files), 2 * STEP_BYTES)
        if self._keeper.dir.disk.free_bytes() < need + _ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _copy_lap(self, lap: int) -> bool:
        """Copy the rest of a lap; return whether it could be read."""
        files = files_in(self._source.settings, self._snapshot.checkpoint, lap)
        theirs = files_in(self._keeper.dir.settings, self._new, lap)
        if files and theirs and files[0].is_lap != theirs[0].is_lap:  # mutant: graft-opened
            return False  # it was split into seconds after the plan
        self.offsets = dict(self._unfinished.offsets) if lap == self._unfinished.lap else {}
        for file in files:
            if self.size_bytes >= STEP_BYTES:
                self.stopped_in = lap
                break
            if not self._copy_file(file):
                return False
        return True

    def _copy_file(self, file: File) -> bool:
        files = file.among(self._new)
        if not file.is_lap:
            self._added.make_dir(layout.lap_dir(file.lap))
        covered = files.get(file.key, Covered(0, self._new.deal, 0))
        name, length = replace(file, made=covered.made).name, covered.end
        seed = self._keeper.dir.seed(name)
        gathered: list[bytes] = []
        size = 0
        start = self.offsets.get(file.name, 0)
        for frame in read_file(self._source, self._snapshot.handles, file, start):
            if frame is None:
                return False
            self._look_at(frame)
            sealed = seal(
                frame.body,
                seed=seed,
                offset=length + size,
                number=self._new.deal,
                synced=0,
                puts=frame.puts,
                drops=frame.drops,
                first=frame.first,
                last=frame.last,
            )
            gathered.append(sealed)
            size += len(sealed)
            self.copied += frame.puts
            self.offsets[file.name] = frame.end
            if size >= _WRITE_BYTES:
                self._added.append(name, length, b"".join(gathered))
                length, size = length + size, 0
                gathered.clear()
            if self.size_bytes + frame.end - start >= STEP_BYTES and frame.end < file.end:
                self.stopped_in = file.lap
                break
        if size:
            self._added.append(name, length, b"".join(gathered))
        if length + size:
            live = covered.live + length + size - covered.end if covered.live >= 0 else -1
            files[file.key] = covered._replace(end=length + size, live=live)
        self.size_bytes += self.offsets.get(file.name, start) - start
        return True

    def _look_at(self, frame: Frame) -> None:
        """Note the keys, ids and moves of a copied frame, if they are needed."""
        # mutant: graft-keyless
        self._added.enter_keys(keyed_ids(frame, self._keeper.dir.settings.key_hash))
        if self._unfinished.unseen or self._unfinished.has_drops:
            puts = readable_records(frame)[0]  # an invalid frame is copied unchanged
            self._unfinished.unseen.difference_update(ids_of(puts))
            if self._unfinished.has_drops:
                self.moved.update((root_of(put), put[ID]) for put in moved(puts))
