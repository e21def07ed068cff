"""What the keeper does off the firing path: flush acknowledgements, delete what is finished, deal, keep a ballast.

One thread, so that a deal and a deletion never meet in one file (X2). It looks at what is, not at notes of what
happened (X3): a second is finished when it lies below the frontier and nothing of it waits.
Invariant: a file is deleted only after every drop that finished it is durable (X1).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Sequence

from filewheel import layout
from filewheel.deal import Deal, flush_file
from filewheel.errors import DiskError, FilewheelError, WheelFull, disk_error
from filewheel.ledger import Ledger
from filewheel.message import US_PER_S, id_floor
from filewheel.ready import Ready

log = logging.getLogger(__name__)

DEAL_BYTES = 16 << 20
DEAL_RECORDS = 120_000
DEAL_SEGMENTS = 64
DEAL_AGE_US = 60 * US_PER_S
EXPIRE_EVERY_US = 250_000
RETRY_US = 5 * US_PER_S
BALLAST_BYTES = 2 << 20
_BALLAST_FREE_FACTOR = 16


class Housekeeper:
    """The keeper's background work. `start` runs it in a thread; without, a test calls the steps."""

    def __init__(
        self,
        ledger: Ledger,
        ready: Ready,
        *,
        flush_interval_s: float,
        on_failure: Callable[[FilewheelError], None],
    ) -> None:
        self._ledger = ledger
        self._ready = ready
        self._disk = ledger.disk
        self._clock = ledger.clock
        self._interval_s = flush_interval_s
        self._on_failure = on_failure
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._dirty = False
        self._expired_us = 0
        self._dealt_us = self._clock.steady_us()
        self._retry_us = 0
        self._ballast = False

    # -- the thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread = threading.Thread(target=self._loop, name="filewheel-housekeeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what it has begun is finished."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping:
            self._wake.wait(self._interval_s if self._dirty else EXPIRE_EVERY_US / US_PER_S)
            self._wake.clear()
            try:
                self.step()
            except FilewheelError as exc:
                self._on_failure(exc)
                return
            except OSError as exc:
                self._on_failure(disk_error(exc, self._ledger.dir.path))
                return
            except Exception as exc:
                self._on_failure(FilewheelError(f"housekeeping failed: {exc!r}", path=self._ledger.dir.path))
                log.exception("housekeeping failed")
                return

    def step(self) -> None:
        """Do what is to be done now."""
        if self._dirty:
            self._dirty = False
            self._ledger.own.flush()
        now = self._clock.steady_us()
        if now - self._expired_us >= EXPIRE_EVERY_US:
            self._expired_us = now
            self.expire()
            self._keep_ballast()
        if now >= self._retry_us and self._deal_is_due(now):
            self._deal(now)

    # -- acknowledgements ------------------------------------------------------------------------------------

    def write(self, records: Sequence[bytes], puts: int) -> None:
        """Write to the keeper's own journal, giving up the ballast when the disk is full."""
        try:
            self._ledger.write(records, puts)
        except WheelFull:
            if not self._give_ballast():
                raise
            log.critical("%s: the disk is full; the ballast is given up for acknowledgements", self._ledger.dir.path)
            self._ledger.write(records, puts)
        if not self._dirty:
            self._dirty = True
            self._wake.set()

    def _give_ballast(self) -> bool:
        self._ballast = False
        known = self._disk.identity(layout.BALLAST)
        if known is None or known[1] == 0:
            return False
        with contextlib.suppress(OSError):
            self._disk.unlink(layout.BALLAST)
            return True
        return False

    def _keep_ballast(self) -> None:
        """Reserve the ballast when there is plenty of room."""
        if self._ballast:
            return
        try:
            if self._disk.free_bytes() < BALLAST_BYTES * _BALLAST_FREE_FACTOR:
                return
            fd = self._disk.open(layout.BALLAST, "rw")
            try:
                if self._disk.size(fd) < BALLAST_BYTES:
                    self._disk.allocate(fd, BALLAST_BYTES)
            finally:
                self._disk.close(fd)
            self._ballast = True
        except OSError as exc:
            log.warning("%s: no ballast: %s", self._ledger.dir.path, exc)
            self._ballast = True  # not asked again in this life

    # -- expiry ----------------------------------------------------------------------------------------------

    def expire(self) -> int:
        """Delete the files of which nothing is pending any more; return how many."""
        ledger = self._ledger
        with ledger.lock:
            slots, laps = self._finished()
            if not slots and not laps:
                return 0
            foreign = [
                (tail, [name for _, name, _, _ in tail.spans(tail.flushed, tail.seen)], tail.seen)
                for tail in ledger.tails.values()
                if tail.drops_unflushed
            ]
            for tail, _, _ in foreign:
                tail.drops_unflushed = False
        # X1: the drops that finished them, the keeper's and everyone's, are durable before anything goes.
        ledger.own.flush()
        for tail, names, seen in foreign:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    flush_file(self._disk, name)
            tail.flushed = max(tail.flushed, seen)
        return self._delete(slots, laps)

    def _finished(self) -> tuple[list[int], list[int]]:
        """List the seconds and laps whose files hold nothing that is pending."""
        frontier, waiting = self._ready.frontier, self._ready.waiting
        manifest, settings = self._ledger.manifest, self._ledger.dir.settings
        slots = [s for s in manifest.slots if id_floor((s + 1) * US_PER_S) <= frontier and s not in waiting]
        laps = []
        if manifest.laps:
            busy = {settings.lap_of(s) for s in waiting}
            laps = [
                lap
                for lap in manifest.laps
                if id_floor((lap + 1) * settings.slots * US_PER_S) <= frontier and lap not in busy
            ]
        return slots, laps

    def _delete(self, slots: list[int], laps: list[int]) -> int:
        ledger = self._ledger
        settings = ledger.dir.settings
        deleted = 0
        for numbers, lengths in ((slots, ledger.manifest.slots), (laps, ledger.manifest.laps)):
            for number in numbers:
                with ledger.lock:  # for each file anew: firing goes on in between
                    again_slots, again_laps = (number in self._ready.waiting, False)
                    if lengths is ledger.manifest.laps:
                        again_slots = False
                        again_laps = any(settings.lap_of(s) == number for s in self._ready.waiting)
                    if again_slots or again_laps:
                        continue
                    name = (
                        layout.slot(settings.lap_of(number), number)
                        if lengths is ledger.manifest.slots
                        else layout.lap_file(number)
                    )
                    lengths.pop(number, None)
                    ledger.unlink_file(name)
                    deleted += 1
        self._remove_dirs({settings.lap_of(s) for s in slots})
        return deleted

    def _remove_dirs(self, laps: set[int]) -> None:
        """X4: remove the directories of past laps that are empty now."""
        ledger = self._ledger
        settings = ledger.dir.settings
        present = {settings.lap_of(s) for s in ledger.manifest.slots}
        now_lap = settings.lap_of(self._clock.now_us() // US_PER_S)
        for lap in laps - present:
            if lap < now_lap:
                ledger.remove_dir(lap)
                ledger.unlinked_in.discard(layout.lap_dir(lap))
                ledger.unlinked_in.add(layout.LAPS)

    # -- deals -----------------------------------------------------------------------------------------------

    def _deal_is_due(self, now: int) -> bool:
        ledger = self._ledger
        settings = ledger.dir.settings
        next_lap = settings.lap_of(self._clock.now_us() // US_PER_S) + 1
        return (
            ledger.undealt_bytes >= DEAL_BYTES
            or ledger.undealt_records >= DEAL_RECORDS
            or next_lap in ledger.manifest.laps
            or (now - self._dealt_us >= DEAL_AGE_US and (ledger.undealt_records > 0 or bool(ledger.manifest.doubt)))
            or sum(t.ended and not t.gone for t in list(ledger.tails.values())) >= DEAL_SEGMENTS
        )

    def _deal(self, now: int) -> None:
        try:
            Deal(self._ledger, spread=True).run()
            self._dealt_us = now
        except (OSError, DiskError) as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # Nothing was committed: the wheel is as before. Room may come from expiry, or from people.
            self._retry_us = now + RETRY_US
            log.critical("%s: no space to deal; trying again in %d s", self._ledger.dir.path, RETRY_US // US_PER_S)
