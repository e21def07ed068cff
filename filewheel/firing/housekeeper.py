"""The keeper's background work: it flushes acknowledgements, deals, removes finished files and keeps a ballast.

It decides by the present state, not by notes of past events (X3): a second is finished when it is below the frontier
and none of its messages waits. Finished files go with the next deal.
Invariant: nothing here decides which messages fire, and stopping it at any point loses nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.threads import started
from filewheel.env import Event
from filewheel.errors import FULL, Damaged, DiskError, FilewheelError, disk_error
from filewheel.firing.old_dead import Dropped, OldDead
from filewheel.firing.purge import requests, take_out
from filewheel.firing.reserve import Reserve
from filewheel.keys.index import Keys
from filewheel.keys.upkeep import Compactor
from filewheel.laps.deal import (
    CHUNK_BYTES,
    OPEN_AHEAD_S,
    ROOM_BYTES,
    Deal,
    Finished,
    deal_all,
    is_worn,
    near_laps,
    needs_deal,
)
from filewheel.laps.store import Store
from filewheel.message import US_PER_S

log = logging.getLogger(__name__)

DEAL_BYTES = 16 << 20
DEAL_PUTS = 100_000
"""Drops count in DEAL_BYTES only: a drop is a seventh as large as a put, and a deal leaves most of them out."""
DEAL_SEGMENTS = 64
DEAL_AGE_US = 30 * US_PER_S
DEAL_FINISHED = 512
LITTLE_BYTES = 256 << 10
"""A look reads as much in a millisecond, and a deal is about 200 calls and ten flushes."""
LITTLE_FILES = 8
LOOK_US = 250_000
RETRY_US = 5 * US_PER_S
_SHORT_CHUNKS = (34 << 20, 4 << 20, 512 << 10, 64 << 10, 0)
"""How much of the journals a deal covers where room is short: a whole segment, or less, or nothing."""
_SHORT_RECORDS = 500_000
TIDY_KEYS_US = 2 * US_PER_S


class Housekeeper:
    """The keeper's background work. `start` runs it in a thread; without, a test calls the steps."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        finished: Finished,
        *,
        flush_interval_s: float,
        on_failure: Callable[[FilewheelError], None],
        check: Callable[[], None],
        look: Callable[[], None] = lambda: None,
        publish: Callable[[], None] = lambda: None,
        moving: AbstractContextManager[object] | None = None,
        keep_dead_s: float | None = None,
        on_dead_dropped: Dropped | None = None,
    ) -> None:
        """`check` raises if another process may deal. `look` is called in its thread, first and after each step.

        `publish` writes the ends of runs so far to the history, for a purge. With `keep_dead_s` it drops dead letters
        that are older, under the lock `moving` (see OldDead).
        """
        self._store = store
        self._keys = Compactor(keys)
        self._finished = finished
        self._disk = store.disk
        self._clock = store.clock
        self._interval_s = flush_interval_s
        self._on_failure = on_failure
        self._check = check
        self._look = look
        self._publish = publish
        self._purging: Iterator[bool] | None = None
        self._thread: threading.Thread | None = None
        self._wake = Event()
        self._stopping = False
        self._dirty = False
        self._looked_us = 0
        self._behind = False
        """The last deal left enough for another, which starts at once."""
        self._looked_at: Checkpoint | None = None
        self._worn = False
        """Whether that checkpoint names a file that should be dealt anew."""
        self._dealt_us = self._clock.steady_us()
        self._keys_tidied_us = self._dealt_us
        self._retry_us = 0
        self.reserve = Reserve(store, self.flush_soon)
        self._old_dead: OldDead | None = None
        """Drops old dead letters; None where they are kept for ever."""
        if keep_dead_s is not None and moving is not None:
            self._old_dead = OldDead(store, keys, moving, keep_dead_s, self.flush_soon, on_dead_dropped)

    # -- the thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a thread of its own. Raises OSError when no thread can be started."""
        self.reserve.ballast.keep()  # before the first claim: claimed messages need room for their acknowledgements
        # Known before it runs: Ctrl-C during the start closes the keeper, and `stop` has to wait for it.
        self._thread = threading.Thread(target=self._loop, name="filewheel-housekeeper", daemon=True)
        started(self._thread)

    def stop(self) -> None:
        """End the thread, after its present step."""
        self._stopping = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()

    def _loop(self) -> None:
        if not self._stopping:
            self._look()  # the first step may be the one that hangs
        while not self._stopping:
            if not self._behind:
                self._wake.wait(self._interval_s if self._dirty else LOOK_US / US_PER_S)
            self._wake.clear()
            if not self.try_step():
                return
            self._look()

    def try_step(self) -> bool:
        """Do the work that is due now; after an error end the keeper, and return False."""
        try:
            self.step()
            return True
        except FilewheelError as exc:
            self._on_failure(exc)
        except OSError as exc:
            self._on_failure(disk_error(exc, self._store.dir.path))
        except Exception as exc:
            self._on_failure(
                FilewheelError(
                    f"housekeeping failed: {exc!r}",
                    path=self._store.dir.path,
                    hint="`filewheel verify`, then open it again",
                )
            )
            log.exception("housekeeping failed")
        return False

    def step(self) -> None:
        """Do the work that is due now."""
        if self._dirty:
            self._dirty = False
            self._store.own.flush()  # mutant: acks-unflushed
        now = self._clock.steady_us()
        if self._behind or now - self._looked_us >= LOOK_US:
            self._looked_us, self._behind = now, False
            self._check()
            # The consumer may be busy for hours; new frames must not pile up.
            self._store.ingest()
            self._store.look_for_missing()
            self.reserve.ballast.keep()
            self._tidy_keys(now)  # mutant: key-file-grows
            if self._old_dead is not None:
                self._old_dead.step(now)
            if now >= self._retry_us and self._deal_is_due(now):
                self._deal(now)
            if now >= self._retry_us:
                self._purge(now)

    def _purge(self, now: int) -> None:
        """Do a part of what purges ask for."""
        if self._purging is None and requests(self._store.dir):
            self._purging = take_out(
                self._store, self._keys, spread=True, finished=self._finished, publish=self._publish
            )
        if self._purging is None:
            return
        try:
            if next(self._purging, False):
                self._behind = True
            else:
                self._purging = None
        except (OSError, DiskError) as exc:
            if exc.errno not in FULL:
                raise
            self._purging, self._retry_us = None, now + RETRY_US
            log.warning("%s: no space to take out what has ended: %s", self._store.dir.path, exc)

    def idle_us(self) -> int | None:
        """Return after how many microseconds `step` may have work; None: not before something is written."""
        if self._dirty:
            return round(self._interval_s * US_PER_S)
        if self._behind:
            return 0
        store, now, now_us = self._store, self._clock.steady_us(), self._clock.now_us()
        with store.lock:
            slots, laps = self._finished()
            open_us = store.dir.settings.slots * US_PER_S
            comes_us = [lap * open_us - OPEN_AHEAD_S * US_PER_S - now_us for lap in store.checkpoint.laps.keys() - laps]
            # A lap that is past, or runs, is opened no more.
            waits = [us for us in comes_us if us > -OPEN_AHEAD_S * US_PER_S]
            if store.undealt_records or slots or laps or self._has_worn():
                waits.append(max(self._dealt_us + DEAL_AGE_US, self._retry_us) - now)
        return max(LOOK_US, min(waits)) if waits else None

    def flush_soon(self) -> None:
        """Flush the own journal within the interval: something was written to it."""
        if not self._dirty:
            self._dirty = True
            self._wake.set()

    def _tidy_keys(self, now: int) -> None:
        """Compact the index of keys where it has grown, a part of it at a time."""
        if now - self._keys_tidied_us < TIDY_KEYS_US:
            return
        self._keys_tidied_us = now
        try:
            self._keys.tidy(self._clock.now_us())
        except Damaged as exc:
            log.critical("%s", exc)
        except (OSError, DiskError) as exc:
            # An index that was not compacted is complete. But F0: a flush that failed ends this keeper.
            if exc.errno == errno.EIO:
                raise
            log.warning("%s: the index of keys was not compacted: %s", self._store.dir.path, exc)

    # -- deals and expiry ------------------------------------------------------------------------------------

    def _deal_is_due(self, now: int) -> bool:
        store = self._store
        if self._behind or self.much_is_undealt:
            return True
        with store.lock:
            ended = sum(t.ended and not t.gone for t in store.tails.values())
            now_us = self._clock.now_us()
            coming = near_laps(store.dir.settings, now_us) - {store.dir.settings.lap_of(now_us // US_PER_S)}
            coming -= store.missing.near()  # mutant: missing-near
            if ended >= DEAL_SEGMENTS or coming & store.checkpoint.laps.keys():
                return True
            slots, laps = self._finished()
            if len(slots) + len(laps) >= DEAL_FINISHED:
                return True
        is_old = now - self._dealt_us >= DEAL_AGE_US
        return is_old and (store.undealt_records > 0 or bool(slots) or bool(laps) or self._has_worn())

    def _has_worn(self) -> bool:
        """Return whether a file should be dealt anew. Cost: a look at each file that the checkpoint names, once."""
        checkpoint, missing = self._store.checkpoint, self._store.missing
        if self._looked_at is not checkpoint:
            self._looked_at = checkpoint
            covered = (c for files in (checkpoint.slots, checkpoint.laps) for c in files.values())
            self._worn = bool(checkpoint.doubt) or any(map(is_worn, covered))
        return self._worn and not missing

    @property
    def much_is_undealt(self) -> bool:
        """Whether the journals hold so much that they must be dealt now."""
        return self._store.undealt_bytes >= DEAL_BYTES or self._store.undealt_puts >= DEAL_PUTS

    def _deal(self, now: int) -> None:
        need = min(self._store.undealt_bytes, CHUNK_BYTES) * 2 + ROOM_BYTES
        self._behind = False
        try:
            if self._disk.free_bytes() < need:
                # Not even started: the little room left is for acknowledgements.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            Deal(self._store, spread=True, finished=self._finished).run()
            self._dealt_us = now
            self._behind = self.much_is_undealt
        except (OSError, DiskError) as exc:
            if exc.errno not in FULL:
                raise
            self._behind = self._deal_what_frees()
            if self._behind:
                return
            self._retry_us = now + RETRY_US
            log.critical("%s: no space to deal; trying again in %d s", self._store.dir.path, RETRY_US // US_PER_S)

    def _deal_what_frees(self) -> bool:
        """On a full disk, deal as much as frees more room than it takes; return whether anything was freed.

        The ballast has the room for the checkpoint, where there is no other, if a removal follows.
        """
        store = self._store
        for chunk_bytes in _SHORT_CHUNKS:
            for may_free in (True, False):
                deal = Deal(
                    store, spread=False, finished=self._finished, is_short=True,
                    chunk_bytes=chunk_bytes, chunk_records=_SHORT_RECORDS,
                )  # fmt: skip
                try:
                    deal.run()
                except (OSError, DiskError) as exc:
                    if exc.errno not in FULL:
                        raise
                    if not (may_free and deal.frees_bytes and self.reserve.ballast.give_up()):
                        break
                else:
                    return self._free_own() or deal.frees_bytes > 0
        return False

    def _is_much(self) -> bool:
        """Return whether a keeper that was open for a moment has to deal, or may leave it to a later one."""
        store = self._store
        with store.lock:
            journals = sum(not tail.gone for tail in store.tails.values())
            files = max(journals, sum(map(len, self._finished())))
            return bool(store.checkpoint.doubt) or store.undealt_bytes > LITTLE_BYTES or files > LITTLE_FILES

    def _free_own(self) -> bool:
        """End the own segment when all of it is covered, so that the next deal removes it; return whether it was."""
        store = self._store
        with store.lock:
            tail = store.tails.get(store.own.writer)
            if tail is None or tail.covered != tail.seen or tail.seen.offset < ROOM_BYTES:
                return False
            store.end_own_segment()
            return True

    def deal_all(self, *, even_little: bool = True) -> None:
        """Deal everything that was read, into lap files where no slots exist; on a full disk, as much as fits."""
        self._check()
        if self._old_dead is not None:
            self._old_dead.finish(self._clock.steady_us())
        if not needs_deal(self._store, self._finished) or not (even_little or self._is_much()):
            return
        try:
            deal_all(self._store, self._finished)
        except (OSError, DiskError) as exc:
            if exc.errno not in FULL:
                raise
            while self._deal_what_frees():
                pass
            if self._store.has_undealt():
                # Nothing is lost: undealt messages stay in the journals, which are durable.
                log.warning("%s: no space to deal at the end; the next keeper does it", self._store.dir.path)
