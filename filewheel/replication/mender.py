"""The mender: carries out what was decided about messages that a backup has and its primary has not.

Invariant: nothing is taken from the backup that is not either finished in the primary or there by another id.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, RESCHEDULED, pack_drop, records_of
from filewheel.journal.journal import Journal
from filewheel.laps.slot import File
from filewheel.lookup.snapshot import Snapshot
from filewheel.replication.backupkeeper import BackupKeeper
from filewheel.replication.bundle import Bundle
from filewheel.replication.bygone import absent, moved_in
from filewheel.replication.chunk import pending
from filewheel.replication.giveback import GiveBack
from filewheel.replication.membership import Membership
from filewheel.replication.moves import lost_moves
from filewheel.replication.suspects import Verdict
from filewheel.replication.whole import covers

log = logging.getLogger(__name__)


@dataclass
class Mended:
    """What was done."""

    dropped: int = 0
    """Messages that went from the backup."""
    returned: int = 0
    """Messages that went back to the primary."""
    by_id: bool = False
    """Whether files have to be looked into after all."""


class Mender:
    """Writes to both wheels of a link. Not thread-safe."""

    def __init__(self, source: Directory, keeper: BackupKeeper, journal: Journal, give_back: GiveBack) -> None:
        self._source = source
        self._keeper = keeper
        self._target = keeper.dir
        self._journal = journal
        self._give_back = give_back

    def supply(self, frames: Iterable[Frame], told: Callable[[Frame], None] | None) -> int:
        """Write what a mirror was not given, as one commit; return how many records. Raises DiskError, OSError."""
        puts: list[bytes] = []
        drops: list[bytes] = []
        for frame in frames:
            with contextlib.suppress(Damaged):
                found = records_of(frame)
                puts += found[0]
                drops += found[1]
        # What was fired since may have been dropped here already, and forgotten: it must not come back.
        there = pending(self._source, [p[ID] for p in puts])
        bundle = Bundle(self._journal, told)
        bundle.add_records([p for p in puts if p[ID] in there], drops)
        bundle.write()
        return bundle.records

    def carry_out(self, verdict: Verdict, given: Mapping[bytes, bytes], told: Callable[[Frame], None] | None) -> Mended:
        """Do what a verdict says; `given` as `lost_moves` has it, `told` as `Bundle`. Raises DiskError, OSError."""
        done = Mended(by_id=verdict.by_id)
        drop = self._without_lost_moves(verdict.drop, given)
        if drop:
            bundle = Bundle(self._journal, told)
            bundle.add_records([], [pack_drop(i, CANCELLED) for i in drop])
            bundle.write()
            done.dropped = len(drop)
        if verdict.give_back:
            done.returned = self._return(verdict.give_back)
        if verdict.forget and not done.by_id:
            count = self._forget(verdict.forget, given)
            done.by_id = count is None
            done.dropped += count or 0
        if done.dropped:
            log.info("%s: dropped %d messages that %s has not any more",
                     self._target.path, done.dropped, self._source.path)  # fmt: skip
        return done

    def _without_lost_moves(self, ids: list[bytes], given: Mapping[bytes, bytes]) -> list[bytes]:
        """Make moves again that the primary has lost; return the other ids."""
        if not ids or not (found := lost_moves(self._source, self._target, ids, given)):
            return ids
        self._give_back.write([([put], [pack_drop(old, RESCHEDULED)]) for put, old in found.values()])
        return [i for i in ids if i not in found]

    def _forget(self, files: list[File], given: Mapping[bytes, bytes]) -> int | None:
        """Delete files for what the primary has finished; return how many messages they had, None if that cannot be."""
        # What the journals have for them may have its drop in them, and would come back: first it is dealt to them.
        # So they hold what they did not when they were looked at, and are looked at once more.
        self._keeper.deal_all()
        ranges = [file.range for file in files]
        undealt = self._keeper.undealt(ranges[0][0], ranges[-1][1])
        is_met = len(absent(self._source, files)[0]) < len(files) or any(covers(ranges, id_) for id_ in undealt)
        lap_of, slots = self._target.settings.lap_of, self._keeper.store.checkpoint.slots
        in_seconds = {lap_of(second) for second in slots}
        if is_met or any(file.is_lap and file.lap in in_seconds for file in files):  # or opened since it was seen
            return None
        ids, count = moved_in(self._target, files)
        self._without_lost_moves(ids, given)
        gone = {f.key for f in files if not f.is_lap}, {f.key for f in files if f.is_lap}
        self._keeper.forget_files(*gone, ranges[0][0])
        return count

    def _return(self, ids: list[bytes]) -> int:
        """Give messages back to a primary that has lost them; return how many."""
        with Snapshot(self._target) as snapshot:
            puts = list(snapshot.find(ids).values())
        self._give_back.write([([put], []) for put in puts])
        log.warning("%s: %d messages that it had lost were given back from %s",
                    self._source.path, len(puts), self._target.path)  # fmt: skip
        return len(puts)


def give_up_missing(keeper: BackupKeeper, membership: Membership) -> None:
    """Have the files healed that a backup lacks. Raises Fenced, FilewheelError, OSError.

    Marked stale first: a crash after they are forgotten must not leave a backup that counts as whole. A promotion
    forgets nothing: they may come back, and their wheel is about to fire.
    """
    lacks = keeper.lacks
    if lacks and not membership.fenced:
        membership.mark_stale(f"{lacks} of its files are missing")
        keeper.forget_missing()
