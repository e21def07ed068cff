"""Extras: messages that a backup has and its primary does not.

Each was fired in the primary and its drop did not arrive (the backup was away, or the writer of the drop died), or the
primary lost it. `Extras` looks at each twice, a second and two passes over the primary's journals apart. Then, if the
primary is intact both times, it decides: an extra from a damaged part of the primary goes back to the primary, unless
the primary has a drop of it; any other is dropped from the backup.

Whole files can be extras too: those of laps and seconds of which the primary has nothing. Usually all their messages
were fired while the backup was away, and a look at each would take as long as writing them. Where the primary is
damaged, their messages are looked at one by one.

A promotion follows a fenced primary that may have lost data, so there absence proves nothing. `EndedExtras` drops a
message only if the old primary has a drop of it.
Invariants: a message is dropped only if it was twice seen here and not in a primary that was intact each time, or if
the primary has a drop of it. A file that `absent` returns overlaps no file in the primary's checkpoint and no put in
its journals, at a time when the checkpoint was beyond doubt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, moved, pack_drop, records_of
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
    why_gone,
    why_not_durable,
)
from filewheel.replication.primary_journals import dropped_among
from filewheel.replication.shipping import Bundle


def absent(directory: Directory, files: Collection[File]) -> tuple[list[File], set[str]]:
    """Return, of another wheel's files, those of which this one has nothing; and the names of what it cannot read.

    Cost: a reading of the checkpoint and the journals. Raises DiskError, Damaged.
    """
    if not files:
        return [], set()
    ordered = sorted(files, key=lambda file: file.range)
    with Snapshot(directory) as snapshot:
        checkpoint = snapshot.checkpoint
        if checkpoint.doubt:  # mutant: bygone-doubt
            return [], set()
        met = _met_by_puts(snapshot, [file.range for file in ordered])
        in_seconds = {directory.settings.lap_of(second) for second in checkpoint.slots}
        left = [  # mutant: bygone-journals
            file
            for n, file in enumerate(ordered)
            if n not in met
            and file.lap not in checkpoint.laps
            and (file.lap not in in_seconds if file.is_lap else file.key not in checkpoint.slots)
        ]
        return left, {damage.name for damage in snapshot.damage}


def _met_by_puts(snapshot: Snapshot, ranges: list[Range]) -> set[int]:
    """Return which of these ranges, which are in order, hold a put of the journals."""
    floors = [lo for lo, _ in ranges]
    met: set[int] = set()
    for span in snapshot.journals:
        for frame in snapshot.frames(span):
            if not frame.puts or frame.last < floors[0] or frame.first >= ranges[-1][1]:
                continue
            try:
                ids = ids_of(records_of(frame)[0])
            except Damaged:
                ids = []  # its keeper puts it aside, and then it is damage
            for id_ in ids:
                n = bisect_right(floors, id_) - 1
                if n >= 0 and id_ < ranges[n][1]:
                    met.add(n)
    return met


def moved_in(directory: Directory, files: Collection[File]) -> tuple[list[bytes], int]:
    """Return the ids of the messages in files that had moved before, and how many messages there are in all.

    Cost: about 0.3 µs a message. Raises DiskError.
    """
    ids: list[bytes] = []
    count = 0
    with Snapshot(directory) as snapshot:
        for file in files:
            for frame in snapshot.frames(span_of(file), missing=[]):
                count += frame.puts
                try:
                    ids += ids_of(moved(records_of(frame)[0]))
                except Damaged:
                    continue  # it makes no sense: the keeper puts it aside
    return ids, count


APART_US = 1_000_000
UNEASY_US = 5_000_000
"""How long nothing is decided after something of the primary has vanished that nobody removed."""


@dataclass
class Decision:
    """What is to be done with suspects."""

    drop: list[bytes] = field(default_factory=list)
    give_back: list[bytes] = field(default_factory=list)
    forget: list[File] = field(default_factory=list)
    """Files that are to be deleted whole."""
    by_id: bool = False
    """Whether there are files that must be looked into."""


class Extras:
    """The suspects of one backup. Not thread-safe."""

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
        self._uneasy_us: int | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._seen) + len(self._new_files) + len(self._seen_files)

    def add(self, ids: Iterable[bytes]) -> None:
        """Suspect messages."""
        self._new.update(ids)

    def add_files(self, files: Iterable[File]) -> None:
        """Suspect files of the backup."""
        self._new_files.update(files)

    def be_uneasy(self, now_us: int) -> None:
        """Decide nothing for a while: something of the primary has vanished."""
        self._uneasy_us = now_us

    def judge(
        self, now_us: int, passes: int, *, known: Collection[str], has_lost: Callable[[], bool], all_lost: bool
    ) -> Decision | None:
        """Return what is to be done now, if it is time to; None when there is nothing to do yet.

        `passes` counts the whole passes over the primary's journals. Items of its quarantine that are `known` are old.
        `has_lost` looks whether journals of it have gone that nobody removed; `all_lost` tells that some had before, so
        anything may be lost. Raises DiskError, Damaged, OSError.
        """
        if self._uneasy_us is not None and 0 <= now_us - self._uneasy_us < UNEASY_US:
            return None
        if not self._seen and not self._seen_files:
            if self._new or self._new_files:
                (self._seen, _), self._new = self._only_here(self._new), set()
                self._seen_files, self._new_files = self._new_files, set()
                self._seen_us, self._seen_pass = now_us, passes
                if why_gone(self._source, self._epoch):
                    self._uneasy_us = now_us
            return None
        if not (now_us - self._seen_us >= APART_US and passes >= self._seen_pass + 2):  # mutant: suspects-at-once
            return None
        left, unread = self._only_here(self._seen)
        files, unread_too = absent(self._source, self._seen_files)  # mutant: bygone-once
        some_are_met = len(files) < len(self._seen_files)
        damaged = damaged_files(self._source, known, unread | unread_too) if left or files else set()
        # Last: what had gone while the primary was looked at has gone by now.
        # mutant: why-gone-ignored undurable-believed
        if has_lost() or why_gone(self._source, self._epoch) or ((left or files) and why_not_durable(self._source)):
            self._uneasy_us = now_us
            return None
        self._seen, self._seen_files = set(), set()
        ranges = [EVERYTHING] if all_lost else ranges_of(self._source, damaged)
        verdict = self._part(left, ranges)
        verdict.forget = [  # mutant: bygone-damaged
            f for f in sorted(files, key=lambda f: f.range) if not any(meets(f.range, one) for one in ranges)
        ]
        verdict.by_id = some_are_met or len(verdict.forget) < len(files)
        return verdict

    def _part(self, ids: set[bytes], ranges: list[Range]) -> Decision:
        """Tell what the primary has lost from what it has finished."""
        lost = {id_ for id_ in ids if covers(ranges, id_)}
        # What has its drop there was finished there: given back it would not wait, and others would be given it.
        lost -= dropped_among(self._source, lost) | dropped(self._source, lost)  # mutant: returned-though-dropped
        return Decision(drop=sorted(ids - lost), give_back=sorted(lost))  # mutant: damage-ignored

    def _only_here(self, ids: set[bytes]) -> tuple[set[bytes], set[str]]:
        """Return those that are pending here and not there: looked at here first, so that none is on its way.

        Returned too are the files there that could not be read.
        """
        here = pending(self._target, ids)
        there, unread = look(self._source, here)
        return here - there, unread


_BATCH = 200_000


class EndedExtras:
    """What only the promoted wheel has. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, journal: Journal) -> None:
        self._source = source
        self._target = target
        self._journal = journal
        self._extra: set[bytes] = set()
        self.undecided = 0
        """Messages that only the promoted wheel has, and the primary has no drop of."""

    def __len__(self) -> int:
        return len(self._extra)

    def add(self, ids: Iterable[bytes]) -> None:
        """Have these looked at."""
        self._extra.update(ids)

    def is_due(self, *, at_end: bool) -> bool:
        """Tell whether to look now: at the end of a heal, or before too many are held."""
        return bool(self._extra) and (at_end or len(self._extra) >= _BATCH)

    def drop(self, told: Callable[[Frame], None] | None) -> None:
        """Drop what the primary has finished. `told` as in `Bundle`.

        Cost: a reading of the primary's journals. Raises OSError, DiskError, Damaged.
        """
        ids = pending(self._target, self._extra)
        ended = ids & (dropped_among(self._source, ids) | dropped(self._source, ids))  # mutant: promote-undoes
        bundle = Bundle(self._journal, told)
        bundle.add_drops([pack_drop(i, CANCELLED) for i in sorted(ended)])
        bundle.write()
        left = ids - ended
        self.undecided += len(left - pending(self._source, left))
        self._extra.clear()
