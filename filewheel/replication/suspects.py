"""Suspects: messages that a backup has and its primary seems not to have.

Each was fired in the primary and its drop did not come here (the backup was away, or whoever wrote the drop died), or
it was lost there. They are looked at twice, a second and two passes over the primary's journals apart; then, where the
primary is damaged, they go back to it, and elsewhere they are dropped here, if the primary is seen to be whole.
Invariant: a message is dropped only if it was twice seen here and not in a primary that was whole each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from filewheel.directory import Directory
from filewheel.replication.chunk import pending
from filewheel.replication.whole import covers, damaged_ranges, why_gone

APART_US = 1_000_000
UNEASY_US = 5_000_000
"""How long nothing is decided after something of the primary has vanished that nobody removed."""


@dataclass
class Verdict:
    """What is to be done with suspects."""

    drop: list[bytes] = field(default_factory=list)
    give_back: list[bytes] = field(default_factory=list)


class Suspects:
    """The suspects of one backup. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, epoch: int) -> None:
        self._source = source
        self._target = target
        self._epoch = epoch
        self._new: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._seen_us = 0
        self._seen_pass = 0
        self._uneasy_us: int | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._seen)

    def add(self, ids: Iterable[bytes]) -> None:
        """Suspect messages."""
        self._new.update(ids)

    def be_uneasy(self, now_us: int) -> None:
        """Decide nothing for a while: something of the primary has vanished."""
        self._uneasy_us = now_us

    def judge(self, now_us: int, passes: int, since: str) -> Verdict | None:
        """Return what is to be done now, if it is time to; None when there is nothing to do yet.

        `passes` counts the whole passes over the primary's journals; damage counts from the time `since` on. Raises
        DiskError, Damaged, OSError.
        """
        if self._uneasy_us is not None and 0 <= now_us - self._uneasy_us < UNEASY_US:
            return None
        if not self._seen:
            if self._new:
                self._seen, self._new = self._only_here(self._new), set()
                self._seen_us, self._seen_pass = now_us, passes
                if why_gone(self._source, self._epoch):
                    self._uneasy_us = now_us
            return None
        if not (now_us - self._seen_us >= APART_US and passes >= self._seen_pass + 2):
            return None
        if why_gone(self._source, self._epoch):
            self._uneasy_us = now_us
            return None
        left, self._seen = self._only_here(self._seen), set()
        ranges = damaged_ranges(self._source, since) if left else []
        verdict = Verdict()
        for id_ in sorted(left):
            (verdict.give_back if covers(ranges, id_) else verdict.drop).append(id_)
        return verdict

    def _only_here(self, ids: set[bytes]) -> set[bytes]:
        """Return those that are pending here and not there: looked at here first, so that none is on its way."""
        here = pending(self._target, ids)
        return here - pending(self._source, here)
