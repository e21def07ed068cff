"""Carries out the decisions about messages that only a backup has (extras.py).

A message that a damaged primary lost is written back to it through a journal, like a producer's. A power cut may lose
an unflushed retry or reschedule in the primary only: then the primary has the message under its old id and the backup
under the new one. The old id cannot be added to the backup, because its drop is there; without the new one the backup
would lack the message. So the move is written to the primary again.
Invariants: a message is dropped from the backup only if the primary has finished it or has it under another id. The
primary's index lists a unique key before its message is written back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.errors import FilewheelError, disk_errors
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, RESCHEDULED, moved, pack_drop, readable_records, root_of
from filewheel.journal.journal import Journal
from filewheel.laps.slot import File
from filewheel.lookup.snapshot import Snapshot
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.compare import pending
from filewheel.replication.extras import Decision, absent, moved_in
from filewheel.replication.health import covers
from filewheel.replication.registration import Registration
from filewheel.replication.shipping import Bundle
from filewheel.roster.repeats import note_repeats


class GiveBack:
    """Writes lost messages to one primary; the first one creates the journal. Not thread-safe. Close it."""

    def __init__(self, primary: Directory) -> None:
        self._primary = primary
        self._journal: Journal | None = None

    def write(self, commits: list[tuple[list[bytes], list[bytes]]]) -> None:
        """Write commits of (puts, drops). On return they are durable. Raises DiskError, Locked."""
        if self._journal is None:
            # If the lost files return with their disk, a message is there twice.
            with disk_errors(self._primary.path):
                note_repeats(self._primary.disk)  # mutant: given-back-unmarked
            self._journal = Journal(self._primary)
        bundle = Bundle(self._journal)
        for some, drops in commits:
            bundle.add_records(some, drops)
        bundle.write()
        self._journal.flush()

    def close(self) -> None:
        """Close the journal. Raises no disk error: all writes are durable."""
        journal, self._journal = self._journal, None
        if journal is not None:
            with contextlib.suppress(FilewheelError, OSError):
                journal.close()


Moves = dict[bytes, tuple[bytes, bytes]]
"""New id → (packed put, old id)."""


def lost_moves(source: Directory, target: Directory, ids: Iterable[bytes], given: Mapping[bytes, bytes]) -> Moves:
    """Return the backup's extras that the primary has under the id before the move.

    `given` maps first id → present id of the moved messages that were copied to the backup. All others have their first
    id there. Raises DiskError, Damaged.
    """
    with Snapshot(target) as snapshot:
        puts = moved(list(snapshot.find(ids).values()))
    found = {put[ID]: (put, given.get(root_of(put), root_of(put))) for put in puts}
    olds = [old for _, old in found.values()]
    swallowed = pending(source, olds) - pending(target, olds)  # mutant: move-of-nothing
    return {id_: move for id_, move in found.items() if move[1] in swallowed}


log = logging.getLogger(__name__)


@dataclass
class Reconciled:
    """The result of a decision."""

    dropped: int = 0
    """Messages dropped from the backup."""
    returned: int = 0
    """Messages given back to the primary."""
    by_id: bool = False
    """Whether the messages in some files must be checked one by one after all."""


class Reconciler:
    """Writes to both wheels of a link. Not thread-safe."""

    def __init__(self, source: Directory, keeper: BackupKeeper, journal: Journal, give_back: GiveBack) -> None:
        self._source = source
        self._keeper = keeper
        self._target = keeper.dir
        self._journal = journal
        self._give_back = give_back

    def supply(self, frames: Iterable[Frame], on_frame: Callable[[Frame], None] | None) -> int:
        """Write the frames that a mirror lacks as one commit; return the number of records.

        Raises DiskError, OSError.
        """
        puts: list[bytes] = []
        drops: list[bytes] = []
        for frame in frames:
            some_puts, some_drops = readable_records(frame)
            puts += some_puts
            drops += some_drops
        # A message that was fired since may have been dropped and forgotten here: it must not be added again.
        there = pending(self._source, [p[ID] for p in puts])
        bundle = Bundle(self._journal, on_frame)
        bundle.add_records([p for p in puts if p[ID] in there], drops)
        bundle.write()
        return bundle.records

    def carry_out(
        self, decision: Decision, given: Mapping[bytes, bytes], on_frame: Callable[[Frame], None] | None
    ) -> Reconciled:
        """Carry out a decision; `given` as in `lost_moves`, `on_frame` as in `Bundle`. Raises DiskError, OSError."""
        done = Reconciled(by_id=decision.by_id)
        drop = self._without_lost_moves(decision.drop, given)
        if drop:
            bundle = Bundle(self._journal, on_frame)
            bundle.add_records([], [pack_drop(i, CANCELLED) for i in drop])
            bundle.write()
            done.dropped = len(drop)
        if decision.give_back:
            done.returned = self._return(decision.give_back)
        if decision.delete and not done.by_id:
            count = self._delete(decision.delete, given)
            done.by_id = count is None
            done.dropped += count or 0
        if done.dropped:
            log.info(
                "%s: dropped %d messages that are no longer in %s", self._target.path, done.dropped, self._source.path
            )
        return done

    def _without_lost_moves(self, ids: list[bytes], given: Mapping[bytes, bytes]) -> list[bytes]:
        """Write the moves that the primary has lost again; return the other ids."""
        if not ids or not (found := lost_moves(self._source, self._target, ids, given)):  # mutant: move-lost
            return ids
        self._give_back.write([([put], [pack_drop(old, RESCHEDULED)]) for put, old in found.values()])
        return [i for i in ids if i not in found]

    def _delete(self, files: list[File], given: Mapping[bytes, bytes]) -> int | None:
        """Delete files of finished messages; return the number of messages in them, None if they must stay."""
        # A put in the backup's journals may have its drop in one of these files, and would be pending without it. So
        # the journals are dealt first; that may add to the files, so they are checked once more.
        self._keeper.deal_all()  # mutant: bygone-undealt
        ranges = [file.range for file in files]
        undealt = self._keeper.undealt(ranges[0][0], ranges[-1][1])
        # mutant: bygone-undealt.2
        is_met = len(absent(self._source, files)[0]) < len(files) or any(covers(ranges, id_) for id_ in undealt)
        lap_of, slots = self._target.settings.lap_of, self._keeper.store.checkpoint.slots
        in_seconds = {lap_of(second) for second in slots}
        # mutant: bygone-opened
        if is_met or any(file.is_lap and file.lap in in_seconds for file in files):  # or was opened since
            return None
        ids, count = moved_in(self._target, files)
        self._without_lost_moves(ids, given)
        gone = {f.key for f in files if not f.is_lap}, {f.key for f in files if f.is_lap}
        self._keeper.forget_files(*gone, ranges[0][0])
        return count

    def _return(self, ids: list[bytes]) -> int:
        """Give messages back to a primary that has lost them; return their number."""
        with Snapshot(self._target) as snapshot:
            puts = list(snapshot.find(ids).values())
        self._give_back.write([([put], []) for put in puts])
        log.warning("%s: %d lost messages were given back from %s", self._source.path, len(puts), self._target.path)
        return len(puts)


def give_up_missing(keeper: BackupKeeper, membership: Registration) -> None:
    """Accept the loss of a backup's missing files, so that they are healed. Raises Fenced, FilewheelError, OSError.

    The backup is marked stale first: a crash after the checkpoint forgets the files must not leave a backup that counts
    as complete. A promotion accepts no loss: the files may return, and this wheel is about to fire.
    """
    lacks = keeper.lacks
    if lacks and not membership.fenced:
        membership.mark_stale(f"{lacks} of its files are missing")  # mutant: lacking-current
        keeper.forget_missing()  # mutant: lacking-named
