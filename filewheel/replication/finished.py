"""Finished: messages that a wheel which is being promoted still holds, and the primary before has written a drop of.

A promotion follows a primary that was fenced, and perhaps struck: what that does not have it may have lost, so nothing
is dropped for being absent there. A drop in its journals or files is proof enough. Where every journal since the backup
was in step has been retained, what has no drop has not ended; elsewhere it may have, and that is said.
Invariant: a message is dropped only if the primary before has a drop of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from filewheel.disk.directory import Directory
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.replication.bundle import Bundle
from filewheel.replication.chunk import dropped, pending
from filewheel.replication.drops import dropped_among

_BATCH = 200_000


class Finished:
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
        ended = ids & (dropped_among(self._source, ids) | dropped(self._source, ids))
        bundle = Bundle(self._journal, told)
        bundle.add_drops([pack_drop(i, CANCELLED) for i in sorted(ended)])
        bundle.write()
        left = ids - ended
        self.undecided += len(left - pending(self._source, left))
        self._extra.clear()
