"""Carries out what was decided about messages that a backup has and its primary does not (extras.py).

A message that a damaged primary lost is written back to it through a journal, like any producer's. A retry or
reschedule that was not flushed is lost in a power cut, and the backup may have it all the same: then the primary has
the message under its old id and the backup under the new one. The old id cannot be added to the backup, because its
drop is there; without the new one the backup would not have the message at all. So the move is written to the primary
again.
Invariants: a message leaves the backup only if it is finished in the primary or there under another id. A message with
a unique key is listed under it in the primary before it is there again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged, FilewheelError, disk_errors
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, RESCHEDULED, moved, pack_drop, records_of, root_of
from filewheel.journal.journal import Journal
from filewheel.keys.index import Keys
from filewheel.laps.slot import File
from filewheel.lookup.snapshot import Snapshot
from filewheel.replication.backup_keeper import BackupKeeper, enter_keys
from filewheel.replication.compare import pending
from filewheel.replication.extras import Decision, absent, moved_in
from filewheel.replication.health import covers
from filewheel.replication.registration import Registration
from filewheel.replication.shipping import Bundle
from filewheel.roster.repeats import note_repeats


class GiveBack:
    """Writes to one primary. Makes its journal there with the first message. Not thread-safe. Close it."""

    def __init__(self, primary: Directory) -> None:
        self._primary = primary
        self._journal: Journal | None = None

    def write(self, commits: list[tuple[list[bytes], list[bytes]]]) -> None:
        """Write (puts, drops), each pair whole or not at all. On return they are durable. Raises DiskError, Locked."""
        if self._journal is None:
            # What could not be read may turn up again, a disk that was away with all that is on it.
            with disk_errors(self._primary.path):
                note_repeats(self._primary.disk)  # mutant: given-back-unmarked
            self._journal = Journal(self._primary)
        puts = [put for some, _ in commits for put in some]
        # The index may have forgotten a message that was lost: its key is its own again before it is there.
        # mutant: given-back-keyless
        enter_keys(Keys(self._primary), puts, self._primary.env.clock.now_us(), self._primary.path)
        bundle = Bundle(self._journal)
        for some, drops in commits:
            bundle.add_records(some, drops)
        bundle.write()
        self._journal.flush()

    def close(self) -> None:
        """Let go of the journal. Never raises for the disk: what was written is durable."""
        journal, self._journal = self._journal, None
        if journal is not None:
            with contextlib.suppress(FilewheelError, OSError):
                journal.close()


Moves = dict[bytes, tuple[bytes, bytes]]
"""New id → (packed put, old id)."""


def lost_moves(source: Directory, target: Directory, ids: Iterable[bytes], given: Mapping[bytes, bytes]) -> Moves:
    """Return, of ids that only the backup has, those of messages that the primary has under another id.

    `given` has what the backup lacked and was given, of what had moved before: first id → present id. What had not has
    its first id still. Raises DiskError, Damaged.
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
    """What was done."""

    dropped: int = 0
    """Messages that went from the backup."""
    returned: int = 0
    """Messages that went back to the primary."""
    by_id: bool = False
    """Whether files have to be looked into after all."""


class Reconciler:
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

    def carry_out(
        self, verdict: Decision, given: Mapping[bytes, bytes], told: Callable[[Frame], None] | None
    ) -> Reconciled:
        """Do what a verdict says; `given` as `lost_moves` has it, `told` as `Bundle`. Raises DiskError, OSError."""
        done = Reconciled(by_id=verdict.by_id)
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
        if not ids or not (found := lost_moves(self._source, self._target, ids, given)):  # mutant: move-lost
            return ids
        self._give_back.write([([put], [pack_drop(old, RESCHEDULED)]) for put, old in found.values()])
        return [i for i in ids if i not in found]

    def _forget(self, files: list[File], given: Mapping[bytes, bytes]) -> int | None:
        """Delete files for what the primary has finished; return how many messages they had, None if that cannot be."""
        # What the journals have for them may have its drop in them, and would come back: first it is dealt to them.
        # So they hold what they did not when they were looked at, and are looked at once more.
        self._keeper.deal_all()  # mutant: bygone-undealt
        ranges = [file.range for file in files]
        undealt = self._keeper.undealt(ranges[0][0], ranges[-1][1])
        # mutant: bygone-once.2 bygone-undealt.2
        is_met = len(absent(self._source, files)[0]) < len(files) or any(covers(ranges, id_) for id_ in undealt)
        lap_of, slots = self._target.settings.lap_of, self._keeper.store.checkpoint.slots
        in_seconds = {lap_of(second) for second in slots}
        # mutant: bygone-opened
        if is_met or any(file.is_lap and file.lap in in_seconds for file in files):  # or opened since it was seen
            return None
        ids, count = moved_in(self._target, files)
        self._without_lost_moves(ids, given)  # mutant: bygone-moves
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


def give_up_missing(keeper: BackupKeeper, membership: Registration) -> None:
    """Have the files healed that a backup lacks. Raises Fenced, FilewheelError, OSError.

    Marked stale first: a crash after they are forgotten must not leave a backup that counts as whole. A promotion
    forgets nothing: they may come back, and their wheel is about to fire.
    """
    lacks = keeper.lacks
    if lacks and not membership.fenced:
        membership.mark_stale(f"{lacks} of its files are missing")  # mutant: lacking-current
        keeper.forget_missing()  # mutant: lacking-named
