"""A heal: a walk over a primary and its backup, from the first id to the last, that finds every difference.

A lap of which the backup has little is copied whole, and a lap that is the same in both is passed over (lap_copy.py).
The backup's files of laps of which the primary has nothing are reported whole (extras.py). Everything else is compared
in chunks (compare.py). The same walk serves a new backup, one that was unreachable, and one that has lost files. An
interrupted heal starts again, and passes over the laps that it copied.
Invariant: a message that is pending in the primary during the whole walk was returned by `next`, or copied, or was in
the backup; every message that only the backup had was returned as an extra.
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
    """The differences found by one step of the walk."""

    puts: list[bytes]
    """Packed puts to write to the backup."""
    drops: list[bytes]
    """Packed drops to write to the backup."""
    extra: Iterable[bytes]
    """Ids that only the backup seems to have."""
    copied: int = 0
    """The number of messages that were copied into the backup already."""
    absent: list[File] = field(default_factory=list)
    """Files of the backup of which the primary seems to have nothing."""
    damaged: bool = False
    """Whether a part of the primary was unreadable."""


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
        """First id → present id of the moved messages that were copied, up to a limit."""

    @property
    def is_on(self) -> bool:
        """Whether the walk has not ended."""
        return self._at is not None

    def begin(self, *, by_id: bool = False) -> None:
        """Start the walk; with `by_id`, check each message that only the backup has. Raises DiskError."""
        if self._at is None:
            with Snapshot(self._source) as snapshot:
                journals = sum(s.end - s.start for s in snapshot.journals)
                self._total_bytes = snapshot.checkpoint.file_bytes + journals
        self._at = ID_MIN
        self._by_id = by_id
        self._done_bytes = 0
        self.moved.clear()
        self._lap_copy.begin()

    def next(self) -> HealStep:
        """Take the next step. Write its result before any later records of the primary.

        Memory: one chunk, and the primary's undealt records. Raises DiskError, Damaged, Poisoned, OSError.
        """
        assert self._at is not None
        lo = self._at
        plan = self._lap_copy.plan(lo, by_id=self._by_id)
        if plan.copy:
            part = self._take(self._lap_copy.copy(plan.copy, lo, plan.hi))
        elif plan.alike:
            part = self._take(self._lap_copy.pass_over(plan.alike, lo, plan.hi))
        elif plan.absent and len(absent(self._source, plan.absent)[0]) == len(plan.absent):
            # The journals of both wheels may have records between these files.
            part = self._take(self._lap_copy.pass_over([], lo, plan.hi))
            part.absent = plan.absent
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
