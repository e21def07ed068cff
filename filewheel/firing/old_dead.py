"""Removes dead letters that are older than their keeper keeps them. A part of the housekeeper's work.

It looks once a minute, and drops a thousand at a time, each portion as one frame in the keeper's own journal. A
producer may revive or drop a dead letter at the same time: the lock of its id decides (V1), and an id whose lock is
busy is left for the next look (V2).
Invariant: only a dead letter that is pending under the lock of its id is dropped, and the ballast is not spent on it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import islice

from filewheel.disk import locks
from filewheel.errors import Damaged, DiskError
from filewheel.format.record import CANCELLED, ID, topic_of
from filewheel.keys.index import Keys
from filewheel.laps.store import Store
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import DEAD_US, US_PER_S, MessageId, id_floor
from filewheel.timespec import span

log = logging.getLogger(__name__)

AT_ONCE = 1000
LOOK_US = 60 * US_PER_S
LAST_PORTIONS = 20
"""The most portions that a keeper drops when it closes without having looked."""

Dropped = Callable[[Mapping[MessageId, str]], object]


class OldDead:
    """Drops old dead letters. `step` belongs to the housekeeper's thread."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        alone: AbstractContextManager[object],
        keep_s: float,
        on_written: Callable[[], None],
        on_dropped: Dropped | None,
    ) -> None:
        """`alone` is held while locks of ids are: another thread of the keeper would find them busy.

        `on_dropped` is called with id → topic of each portion that was dropped. It must not raise.
        """
        self._store = store
        self._alone = alone
        self._keep_us = round(keep_s * US_PER_S)
        self._on_written = on_written
        self._keys = keys
        self._ahead_us = store.clock.now_us() - store.clock.steady_us()
        self._next_us: int | None = None
        """When the next look is due, by the steady clock; None before the first."""
        self._on_dropped = on_dropped

    def step(self, now_us: int) -> bool:
        """Drop a portion if a look is due, by the steady clock; return whether more may be old enough."""
        if self._next_us is not None and now_us < self._next_us:
            return False
        self._next_us = now_us + LOOK_US
        try:
            more = self._drop_some()
        except Damaged as exc:
            log.error("%s; old dead letters stay", exc)
            return False
        except (OSError, DiskError) as exc:
            if exc.errno == errno.EIO:  # F0: a flush that failed ends this keeper
                raise
            log.warning("%s: old dead letters stay: %s", self._store.dir.path, exc)
            return False
        if more:
            self._next_us = now_us
        return more

    def finish(self, now_us: int) -> None:
        """Drop what is old enough, in a bounded number of portions, if no look was made yet."""
        if self._next_us is None:
            for _ in range(LAST_PORTIONS):
                if not self.step(now_us):
                    return

    def _drop_some(self) -> bool:
        """Drop a portion, those that died first; return whether there may be more."""
        store = self._store
        # A clock that is put forward by mistake makes nothing old: the time since the opening has really passed.
        now_us = min(store.clock.now_us(), store.clock.steady_us() + self._ahead_us)
        end = id_floor(DEAD_US + max(0, now_us - self._keep_us))
        with Snapshot(store.dir) as snapshot:
            old = {put[ID]: topic_of(put) for put in islice(snapshot.puts(DEAD_FLOOR, end), AT_ONCE)}
        if not old:
            return False
        with self._alone, locks.HeldLocks(store.dir) as held:
            busy = locks.take_ids(held, old, 0)
            free = [id_ for id_ in old if locks.bucket_of(id_) not in busy]  # mutant: old-dead-unlocked
            there = self._keys.pending(free)  # mutant: old-dead-unlooked
            ids = [id_ for id_ in free if id_ in there]
            if ids:
                with store.lock:
                    store.drop(ids, CANCELLED)
        if ids:
            self._on_written()
            log.info(
                "%s: dropped %d dead letters that were older than %s", store.dir.path, len(ids), span(self._keep_us)
            )
            if self._on_dropped is not None:
                self._on_dropped({MessageId(id_): old[id_].decode("utf-8", "replace") for id_ in ids})
        return len(old) == AT_ONCE and bool(ids)
