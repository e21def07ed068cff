"""A heal: a walk over a primary and its backup, from the first id to the last, that finds what the backup lacks.

Where the backup has little the primary's laps are copied whole, and where both have the same they are passed over
(graft.py); files for laps of which the primary has nothing are told whole (bygone.py); elsewhere both wheels are
compared in chunks (chunk.py). It is one mechanism for a first copy, for a backup that was away, and for one that has
lost files; one that is cut short begins anew, and what was copied before is passed over then.
Invariant: everything that waited in the primary when the walk began, and waits when it ends, was told by `next`, or
copied, or was in the backup; everything that only the backup had was told as extra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from filewheel.disk.directory import Directory
from filewheel.format.record import ID, moved, root_of
from filewheel.laps.slot import File
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_END, ID_MIN
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.compare import compare
from filewheel.replication.extras import absent
from filewheel.replication.lap_copy import Copied, LapCopy
from filewheel.replication.status import Progress

_MOVED_MAX = 200_000


@dataclass
class HealStep:
    """What one step of the walk has found."""

    puts: list[bytes]
    """Packed puts that are to be written to the backup."""
    drops: list[bytes]
    """Packed drops that are."""
    extra: Iterable[bytes]
    """Ids that only the backup seems to have."""
    copied: int = 0
    """How many messages were copied into it already."""
    bygone: list[File] = field(default_factory=list)
    """Files of the backup for what the primary seems to have nothing of."""
    damaged: bool = False
    """Something of the primary could not be read."""


class Heal:
    """The walk of one link. Not thread-safe."""

    def __init__(self, source: Directory, keeper: BackupKeeper, progress: Progress | None) -> None:
        self._source = source
        self._keeper = keeper
        self._progress = progress
        self._lap_copy = LapCopy(source, keeper)
        self._at: bytes | None = None
        self._done_bytes = self._total_bytes = 0
        self._by_id = False
        self.moved: dict[bytes, bytes] = {}
        """First id → present id of the moved messages that the backup was given, as far as there is room."""

    @property
    def is_on(self) -> bool:
        """Whether the walk has not come to its end."""
        return self._at is not None

    def begin(self, *, by_id: bool = False) -> None:
        """Walk from the start; with `by_id`, look into each message that only the backup has. Raises DiskError."""
        if self._at is None:
            with Snapshot(self._source) as snapshot:
                lengths = (*snapshot.checkpoint.slots.values(), *snapshot.checkpoint.laps.values())
                self._total_bytes = sum(lengths) + sum(s.end - s.start for s in snapshot.journals)
        self._at = ID_MIN
        self._by_id = by_id
        self._done_bytes = 0
        self.moved.clear()
        self._lap_copy.begin()

    def next(self) -> HealStep:
        """Take the next step. What it tells is to be written before anything that is read in the primary later.

        Memory: one chunk, and what the primary's journals hold. Raises DiskError, Damaged, Poisoned, OSError.
        """
        assert self._at is not None
        lo = self._at
        plan = self._lap_copy.plan(lo, by_id=self._by_id)
        if plan.copy:
            part = self._take(self._lap_copy.copy(plan.copy, lo, plan.hi))
        elif plan.alike:
            part = self._take(self._lap_copy.pass_over(plan.alike, lo, plan.hi))
        elif plan.bygone and len(absent(self._source, plan.bygone)[0]) == len(plan.bygone):
            # Between these files the journals may hold what belongs to none: the primary's, and the backup's.
            part = self._take(self._lap_copy.pass_over([], lo, plan.hi))  # mutant: bygone-between
            part.bygone = plan.bygone
        else:
            part = self._compare(lo, plan.hi)
        self._remember({root_of(put): put[ID] for put in moved(part.puts)})
        if self._progress is not None:
            self._progress(self._keeper.dir.path, self._done_bytes, self._total_bytes)
        return part

    def _take(self, done: Copied) -> HealStep:
        self._go_to(done.hi)
        self._done_bytes += done.size_bytes
        self._remember(done.moved)
        return HealStep(done.puts, done.drops, done.extra, copied=done.copied)

    def _compare(self, lo: bytes, hi: bytes) -> HealStep:
        chunk = compare(self._source, self._keeper.dir, lo, hi)
        self._go_to(chunk.hi)
        self._done_bytes += chunk.size_bytes
        return HealStep(chunk.missing, [], chunk.extra, damaged=chunk.damaged)

    def _go_to(self, hi: bytes) -> None:
        self._at = None if hi == ID_END else hi

    def _remember(self, found: dict[bytes, bytes]) -> None:
        if len(self.moved) < _MOVED_MAX:
            self.moved.update(found)
