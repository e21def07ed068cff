"""Suspects: messages that a backup has and its primary seems not to have.

Each was fired in the primary and its drop did not come here (the backup was away, or whoever wrote the drop died), or
it was lost there. They are looked at twice, a second and two passes over the primary's journals apart; then, where the
primary is damaged, they go back to it, and elsewhere they are dropped here, if the primary is seen to be whole. Nor
does go back what the primary has a drop of.
Whole files may be suspects, too: those for laps and seconds of which the primary has nothing. Where it is damaged their
messages have to be looked into one by one.
Invariant: a message is dropped only if it was twice seen here and not in a primary that was whole each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from filewheel.disk.directory import Directory
from filewheel.laps.slot import File
from filewheel.replication.bygone import absent
from filewheel.replication.chunk import dropped, look, pending
from filewheel.replication.drops import dropped_among
from filewheel.replication.whole import (
    EVERYTHING,
    Range,
    covers,
    damaged_files,
    meets,
    ranges_of,
    why_gone,
    why_not_durable,
)

APART_US = 1_000_000
UNEASY_US = 5_000_000
"""How long nothing is decided after something of the primary has vanished that nobody removed."""


@dataclass
class Verdict:
    """What is to be done with suspects."""

    drop: list[bytes] = field(default_factory=list)
    give_back: list[bytes] = field(default_factory=list)
    forget: list[File] = field(default_factory=list)
    """Files that are to be deleted whole."""
    by_id: bool = False
    """Whether there are files that must be looked into."""


class Suspects:
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
    ) -> Verdict | None:
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
        if not (now_us - self._seen_us >= APART_US and passes >= self._seen_pass + 2):
            return None
        left, unread = self._only_here(self._seen)
        files, unread_too = absent(self._source, self._seen_files)
        some_are_met = len(files) < len(self._seen_files)
        damaged = damaged_files(self._source, known, unread | unread_too) if left or files else set()
        # Last: what had gone while the primary was looked at has gone by now.
        if has_lost() or why_gone(self._source, self._epoch) or ((left or files) and why_not_durable(self._source)):
            self._uneasy_us = now_us
            return None
        self._seen, self._seen_files = set(), set()
        ranges = [EVERYTHING] if all_lost else ranges_of(self._source, damaged)
        verdict = self._part(left, ranges)
        verdict.forget = [
            f for f in sorted(files, key=lambda f: f.range) if not any(meets(f.range, one) for one in ranges)
        ]
        verdict.by_id = some_are_met or len(verdict.forget) < len(files)
        return verdict

    def _part(self, ids: set[bytes], ranges: list[Range]) -> Verdict:
        """Tell what the primary has lost from what it has finished."""
        lost = {id_ for id_ in ids if covers(ranges, id_)}
        # What has its drop there was finished there: given back it would not wait, and others would be given it.
        lost -= dropped_among(self._source, lost) | dropped(self._source, lost)
        return Verdict(drop=sorted(ids - lost), give_back=sorted(lost))

    def _only_here(self, ids: set[bytes]) -> tuple[set[bytes], set[str]]:
        """Return those that are pending here and not there: looked at here first, so that none is on its way.

        Returned too are the files there that could not be read.
        """
        here = pending(self._target, ids)
        there, unread = look(self._source, here)
        return here - there, unread
