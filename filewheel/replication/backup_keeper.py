"""The keeper of a backup: it deals and deletes finished files, and never fires.

It runs the keeper's protocol on the keeper's lock, with the role "backup" in its note: the same store, head and
housekeeper, but no claims. A message ends when its drop arrives. The head holds the due messages without a drop; a
second without any is finished, and the next deal deletes its file.

Its deals enter the unique keys of what they cover, so that a promoted backup knows which message holds a key. All work
runs in the thread that calls `tick`, so no deal happens between a check of the backup and a write that depends on it.
Invariant: what a `tick` has dealt is durable, as in any wheel.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from filewheel.disk.checkpoint import Checkpoint, place_checkpoint, prepare_checkpoint
from filewheel.disk.directory import open_directory, raise_format
from filewheel.disk.disk import SYSTEM
from filewheel.disk.flush import poisoned_by
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env
from filewheel.errors import FilewheelError, Poisoned, anew, disk_error
from filewheel.firing.head import Head
from filewheel.firing.housekeeper import Housekeeper
from filewheel.firing.ready import READY_BUDGET
from filewheel.format.frame import Frame
from filewheel.keys.index import Keys
from filewheel.laps.additions import Additions
from filewheel.laps.deal import Deal
from filewheel.laps.store import Store
from filewheel.laps.window import Budget, read_window
from filewheel.native.compiled import ids_of

log = logging.getLogger(__name__)

_UNDEALT = Budget(records=1 << 22, bytes=1 << 28)
"""More than a deal leaves in journals."""
OnFrame = Callable[[Frame], None]


class BackupHead(Head):
    """A head without claims: the decisions of the primary's keeper arrive as records."""

    def forget_from(self, floor: bytes) -> None:
        """Forget the due messages from an id on; the next read includes records added since."""
        self.ready.forget_from(floor)


class BackupKeeper:
    """Holds a backup's lock, deals its journals and deletes its finished files. Not thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        role: str = "backup",
        wait: bool = False,
        on_frame: Callable[[Frame], None] | None = None,
        budget: Budget = READY_BUDGET,
        env: Env = SYSTEM,
    ) -> None:
        """Take the lock and recover. `on_frame` is called with each frame that is read from the backup's journals.

        Raises Locked, NoWheel, DiskError.
        """
        self.dir = open_directory(path, write=True, env=env)
        self._clock = env.clock
        self._on_frame = on_frame
        self._broken: FilewheelError | None = None
        self._keeper_lock = KeeperLock(self.dir)
        try:
            self._keeper_lock.take(role, wait=wait)
        except BaseException:
            self.dir.disk.release()
            raise
        self.store = Store(self.dir)
        self._head = BackupHead(self.store, budget)
        self._keys = Keys(self.dir)
        self._take_in = self.store.on_frame
        self.store.on_frame = self._read
        self._housekeeper = Housekeeper(
            self.store,
            self._keys,
            self._head.finished,
            flush_interval_s=0.02,
            on_failure=self._fail,
            check=self._keeper_lock.check,
        )
        try:
            self.store.recover()
        except BaseException as exc:
            self._release()
            if isinstance(exc, OSError):
                raise disk_error(exc, path) from exc
            raise

    def _fail(self, exc: FilewheelError) -> None:
        self._broken = anew(exc)

    def _read(self, frame: Frame, writer: str) -> None:
        if self._take_in is not None:
            self._take_in(frame, writer)
        if self._on_frame is not None:
            self._on_frame(frame)

    def adopt(self, new: Checkpoint, added: Additions, floor: bytes) -> None:
        """Commit records that were added to the laps from `floor` on. They are durable on return.

        A crash before the checkpoint is in place leaves bytes above the covered lengths, which do not count. Raises
        OSError or Locked with the wheel unchanged, Poisoned.
        """
        self._keeper_lock.check()
        raise_format(self.dir)
        store = self.store
        new.keeper = store.own.writer
        try:
            added.sync()
            prepare_checkpoint(self.dir.disk, new, self.dir.seed)
        except (OSError, Poisoned):
            added.undo()
            raise
        with poisoned_by("the checkpoint", self.dir.path):
            place_checkpoint(self.dir.disk)
        with store.lock:
            store.checkpoint = new
            # The new records are not loaded yet, so no second of theirs may count as finished.
            self._head.forget_from(floor)  # mutant: graft-finished

    def deal_all(self) -> None:
        """Deal the journals, as far as space allows. Raises OSError, Poisoned."""
        self._housekeeper.deal_all()

    def undealt(self, lo: bytes, hi: bytes) -> list[bytes]:
        """Return the ids from `lo` to below `hi` that are pending in the journals. Raises DiskError."""
        store = self.store
        with store.lock:
            window = read_window(
                self.dir,
                store.handles,
                store.undealt_spans(),
                lo,
                hi,
                on_gap=store.report_gap,
                dropped=store.checkpoint.unmatched,
                budget=_UNDEALT,
            )
        return ids_of(window.puts)

    def forget_files(self, slots: set[int], laps: set[int], floor: bytes) -> None:
        """Delete whole files with their messages; `floor` is at or below all of them. Durable on return.

        Records for them in the journals stay. Raises OSError, Poisoned, Locked.
        """
        self._keeper_lock.check()
        with self.store.lock:
            self._head.forget_from(floor)
        Deal(self.store, spread=False, finished=lambda: (slots, laps), is_short=True, chunk_bytes=0).run()

    @property
    def lacks(self) -> int:
        """The number of missing files that the checkpoint names."""
        return len(self.store.missing)

    def forget_missing(self) -> None:
        """Accept the loss of the missing files, so that a heal restores their messages. Raises OSError, Poisoned."""
        missing = self.store.missing
        floor = min(span.floor for span in missing.spans())
        self.forget_files(set(missing.slots), set(missing.laps), floor)

    def ingest(self) -> None:
        """Read the new frames in the backup's journals. Raises DiskError."""
        try:
            self.store.ingest()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc

    def tick(self, *, deal: bool = True) -> None:
        """Read new frames, and do the housekeeping; without `deal`, only when many records are undealt.

        Raises DiskError, Poisoned.
        """
        if self._broken is not None:
            raise anew(self._broken)
        try:
            with self.store.lock:
                self._head.refresh(self._clock.now_us())
            if deal or self._housekeeper.much_is_undealt:
                self._housekeeper.step()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc

    def close(self, *, deal: bool = True) -> None:
        """Deal the journals, and release the lock."""
        try:
            if deal and self._broken is None:
                with self.store.lock:
                    self._head.refresh(self._clock.now_us())
                self._housekeeper.deal_all()
        except OSError as exc:
            raise disk_error(exc, self.dir.path) from exc
        finally:
            self._release()

    def _release(self) -> None:
        try:
            with contextlib.suppress(OSError, FilewheelError):
                self.store.close()
        finally:
            self._keeper_lock.release()
            self.dir.disk.release()
