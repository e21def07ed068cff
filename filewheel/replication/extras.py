"""Extras: messages that a backup has and its primary does not.

Each was fired in the primary and its drop did not arrive (the backup was unreachable, or the writer of the drop died),
or the primary lost it. `Extras` checks each twice, a second and two passes over the primary's journals apart. Then, if
the primary is intact both times, it decides: an extra from a damaged part of the primary is given back to the primary,
unless the primary has a drop of it; any other is dropped from the backup.

Whole files can be extras too: files of laps and seconds of which the primary has nothing. Usually all their messages
were fired while the backup was unreachable, and a check of each would take as long as writing them. Where the primary
is damaged, their messages are checked one by one.

A promotion follows a fenced primary that may have lost data, so absence there proves nothing. `EndedExtras` drops a
message only if the old primary has a drop of it.
Invariants: a message is dropped only if two checks found it here and not in the intact primary, or if the primary has a
drop of it. A file that `absent` returns overlaps no file in the primary's checkpoint and no put in its journals, at a
time when the checkpoint was beyond doubt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from filewheel.disk.directory import Directory
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, moved, pack_drop, readable_records
from filewheel.journal.journal import Journal
from filewheel.laps.slot import File
from filewheel.laps.window import span_of
from filewheel.lookup.snapshot import Snapshot
from filewheel.native.compiled import ids_of
from filewheel.replication.compare import dropped, look, pending
from filewheel.replication.health import (
    EVERYTHING,
    Range,
    covers,
    damaged_files,
    meets,
    ranges_of,
    why_changed,
    why_not_durable,
)
from filewheel.replication.primary_journals import dropped_among
from filewheel.replication.shipping import Bundle


def absent(directory: Directory, files: Collection[File]) -> tuple[list[File], set[str]]:
    """Return the files of another wheel of which this wheel has nothing, and the names of unreadable files here.

    Cost: reads the checkpoint and the journals. Raises DiskError, Damaged.
    """
    if not files:
        return [], set()
    ordered = sorted(files, key=lambda file: file.range)
    with Snapshot(directory) as snapshot:
        checkpoint = snapshot.checkpoint
        if checkpoint.doubt:
            return [], set()
        met = _met_by_puts(snapshot, [file.range for file in ordered])
        in_seconds = {directory.settings.lap_of(second) for second in checkpoint.slots}
        left = [
            file
            for n, file in enumerate(ordered)
            if n not in met
            and file.lap not in checkpoint.laps
            and (file.lap not in in_seconds if file.is_lap else file.key not in checkpoint.slots)
        ]
        return left, {damage.name for damage in snapshot.damage}


def _met_by_puts(snapshot: Snapshot, ranges: list[Range]) -> set[int]:
    """Return the indexes of the ranges that contain a put of the journals; the ranges are in order."""
    floors = [lo for lo, _ in ranges]
    met: set[int] = set()
    for span in snapshot.journals:
        for frame in snapshot.frames(span):
            if not frame.puts or frame.last < floors[0] or frame.first >= ranges[-1][1]:
                continue
            # The wheel's keeper quarantines a frame with invalid records, which then counts as damage.
            for id_ in ids_of(readable_records(frame)[0]):
                n = bisect_right(floors, id_) - 1
                if n >= 0 and id_ < ranges[n][1]:
                    met.add(n)
    return met


def moved_in(directory: Directory, files: Collection[File]) -> tuple[list[bytes], int]:
    """Return the ids of the moved messages in some files, and the number of all messages in them.

    Cost: about 0.3 µs a message. Raises DiskError.
    """
    ids: list[bytes] = []
    count = 0
    with Snapshot(directory) as snapshot:
        for file in files:
            for frame in snapshot.frames(span_of(file), missing=[]):
                count += frame.puts
                ids += ids_of(moved(readable_records(frame)[0]))  # the keeper quarantines an invalid one
    return ids, count


APART_US = 1_000_000
WAIT_US = 5_000_000
"""After a part of the primary was deleted by hand, no decision is made for this long."""


@dataclass
class Decision:
    """How to handle extras."""

    drop: list[bytes] = field(default_factory=list)
    give_back: list[bytes] = field(default_factory=list)
    delete: list[File] = field(default_factory=list)
    """Files to delete whole."""
    by_id: bool = False
    """Whether the messages of some files must be checked one by one."""


class Extras:
    """The extras of one backup. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, epoch: int) -> None:
        self._source = source
        self._target = target
        self._epoch = epoch
        self._new: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._new_files: set[File] = set()
        self._seen_files: set[File] = set()
        self._seen_us = 0
        self._seen_pass = 0
        self._waits_since_us: int | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._seen) + len(self._new_files) + len(self._seen_files)

    def add(self, ids: Iterable[bytes]) -> None:
        """Add messages, by their ids."""
        self._new.update(ids)

    def add_files(self, files: Iterable[File]) -> None:
        """Add files of the backup."""
        self._new_files.update(files)

    def wait(self, now_us: int) -> None:
        """Decide nothing for a while: a part of the primary was deleted."""
        self._waits_since_us = now_us

    def decide(
        self, now_us: int, passes: int, *, known: Collection[str], has_lost: Callable[[], bool], all_lost: bool
    ) -> Decision | None:
        """Return a decision about the extras that were checked twice; None when there are none yet.

        `passes` counts the whole passes over the primary's journals. `known` items of its quarantine are old.
        `has_lost` checks whether uncovered journals were deleted since the last pass; with `all_lost` some were deleted
        earlier, so any message may be lost. Raises DiskError, Damaged, OSError.
        """
        if self._waits_since_us is not None and 0 <= now_us - self._waits_since_us < WAIT_US:
            return None
        if not self._seen and not self._seen_files:
            if self._new or self._new_files:
                (self._seen, _), self._new = self._only_here(self._new), set()
                self._seen_files, self._new_files = self._new_files, set()
                self._seen_us, self._seen_pass = now_us, passes
                if why_changed(self._source, self._epoch):
                    self._waits_since_us = now_us
            return None
        if not (now_us - self._seen_us >= APART_US and passes >= self._seen_pass + 2):
            return None
        left, unread = self._only_here(self._seen)
        files, unread_too = absent(self._source, self._seen_files)
        some_are_met = len(files) < len(self._seen_files)
        damaged = damaged_files(self._source, known, unread | unread_too) if left or files else set()
        # Checked last: a file that was deleted during the checks above is missing by now.
        # mutant: undurable-believed
        if has_lost() or why_changed(self._source, self._epoch) or ((left or files) and why_not_durable(self._source)):
            self._waits_since_us = now_us
            return None
        self._seen, self._seen_files = set(), set()
        ranges = [EVERYTHING] if all_lost else ranges_of(self._source, damaged)
        decision = self._split(left, ranges)
        decision.delete = [
            f for f in sorted(files, key=lambda f: f.range) if not any(meets(f.range, one) for one in ranges)
        ]
        decision.by_id = some_are_met or len(decision.delete) < len(files)
        return decision

    def _split(self, ids: set[bytes], ranges: list[Range]) -> Decision:
        """Split messages into those that the primary has finished and those that it has lost."""
        lost = {id_ for id_ in ids if covers(ranges, id_)}
        # A message with a drop there has ended: if given back, it would not be pending, but other wheels would copy it.
        lost -= dropped_among(self._source, lost) | dropped(self._source, lost)  # mutant: returned-though-dropped
        return Decision(drop=sorted(ids - lost), give_back=sorted(lost))

    def _only_here(self, ids: set[bytes]) -> tuple[set[bytes], set[str]]:
        """Return the ids that are pending here and not there, and the names of unreadable files there.

        The backup is read first, so a message on its way to it does not count as an extra.
        """
        here = pending(self._target, ids)
        there, unread = look(self._source, here)
        return here - there, unread


_BATCH = 200_000


class EndedExtras:
    """Messages that only a wheel in promotion has. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, journal: Journal) -> None:
        self._source = source
        self._target = target
        self._journal = journal
        self._extra: set[bytes] = set()
        self.undecided = 0
        """The number of messages that only this wheel has, without a drop in the primary."""

    def __len__(self) -> int:
        return len(self._extra)

    def add(self, ids: Iterable[bytes]) -> None:
        """Add messages, by their ids."""
        self._extra.update(ids)

    def is_due(self, *, at_end: bool) -> bool:
        """Return whether to check now: at the end of a heal, or when many are held."""
        return bool(self._extra) and (at_end or len(self._extra) >= _BATCH)

    def drop(self, on_frame: Callable[[Frame], None] | None) -> None:
        """Drop the messages that the primary has finished. `on_frame` as in `Bundle`.

        Cost: reads the primary's journals. Raises OSError, DiskError, Damaged.
        """
        ids = pending(self._target, self._extra)
        ended = ids & (dropped_among(self._source, ids) | dropped(self._source, ids))  # mutant: promote-undoes
        bundle = Bundle(self._journal, on_frame)
        bundle.add_drops([pack_drop(i, CANCELLED) for i in sorted(ended)])
        bundle.write()
        left = ids - ended
        self.undecided += len(left - pending(self._source, left))
        self._extra.clear()
