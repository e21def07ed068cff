"""The messages of a wheel that are due first, remembered between calls and kept in step with the journals.

A walk finds the first pending messages, and the id above which nothing is known: the horizon. After that, only the
records that journals gain below the horizon are added and removed, as the finder reads them. Another checkpoint makes
all of it void, because a deal may have covered records that the finder never read.
Invariant: below the horizon exactly the pending messages are known.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from filewheel.disk.directory import Directory
from filewheel.disk.threads import one_call
from filewheel.format.record import ID
from filewheel.lookup.finder import Finder
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import id_after

COUNT_MAX = 256
"""More than this is not answered from here."""
PUTS_MAX = 4096
BYTES_MAX = 4 << 20
"""How much is remembered at most, but no fewer than were asked for."""
_TRIES = 4


class Front:
    """The first messages of a wheel. Thread-safe. Needs no closing."""

    def __init__(self, directory: Directory, finder: Finder) -> None:
        self._dir = directory
        self._finder = finder
        self._lock = threading.RLock()
        self._puts: dict[bytes, bytes] = {}
        self._ids: list[bytes] = []
        """The same, in order."""
        self._gone: set[bytes] = set()
        """Dropped ids: the put may be read later, from another journal."""
        self._horizon = b""
        self._epoch = -1

    def first(self, count: int, below: bytes = DEAD_FLOOR) -> list[bytes] | None:
        """Return the first `count` pending puts below an id; None where a walk has to find them.

        Cost: a look of the finder; after a new checkpoint, or when no known message is left, a walk.

        Raises Reentered.
        """
        with one_call(self._lock, self._dir.path):
            for _ in range(_TRIES):
                if not self._finder.follow():
                    return None
                self._catch_up()
                if self._epoch == self._finder.epoch and (len(self._ids) >= count or self._horizon >= DEAD_FLOOR):
                    first = self._ids[:count]
                    return [self._puts[i] for i in first[: bisect_left(first, below)]]
                self._learn(count)
        return None

    def _learn(self, count: int) -> None:
        """Walk to the first messages."""
        self._epoch = self._finder.epoch
        self._finder.watch(DEAD_FLOOR)  # from now on, new records are news, found by the walk, or both
        self._finder.take_news()
        self._puts, self._gone, self._horizon = {}, set(), DEAD_FLOOR
        size = 0
        with Snapshot(self._dir) as snapshot:
            for put in snapshot.puts():
                self._puts[put[ID]] = put
                size += len(put)
                if len(self._puts) >= max(count, PUTS_MAX) or (size > BYTES_MAX and len(self._puts) >= count):
                    self._horizon = id_after(put[ID])
                    break
        self._ids = list(self._puts)
        self._finder.watch(self._horizon)

    def _catch_up(self) -> None:
        """Add the new records of the journals."""
        news = self._finder.take_news()
        if news is None:
            self._epoch = -1  # it was too much to remember
            return
        puts, drops = news
        self._gone.update(drops)
        new = {put[ID]: put for put in puts if put[ID] < self._horizon}
        if not new and not drops:
            return
        self._puts = {i: put for i, put in (self._puts | new).items() if i not in self._gone}
        self._ids = sorted(self._puts)
        if len(self._ids) + len(self._gone) > 4 * PUTS_MAX or sum(map(len, new.values())) > BYTES_MAX:
            self._epoch = -1
