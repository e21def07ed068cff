"""Removes files that nothing needs any more: finished slot and lap files, covered segments, empty directories.

In a primary with backups a covered segment is moved to retained/ instead, until every backup has read it (B1).
Directories in which something was unlinked are remembered until the next checkpoint has flushed them (D6).
Invariant: a file is removed only after a checkpoint without it is durable. A crash in between leaves it for the next
keeper.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.journal.tail import Handles
from filewheel.message import US_PER_S
from filewheel.roster.retention import Retention, discard_retained
from filewheel.roster.roster import Roster, read_roster, was_in_set
from filewheel.roster.stale import mark_stale

log = logging.getLogger(__name__)


class Removal:
    """Removes the files of one store. The store's lock guards it."""

    def __init__(self, directory: Directory, handles: Handles, lock: threading.RLock) -> None:
        """`handles` are those of the store; a removed file is closed there."""
        self._dir = directory
        self._disk = directory.disk
        self._handles = handles
        self._lock = lock
        self.retention: Retention | None = None
        """The covered segments kept for backups; None unless the wheel is a primary with backups."""
        self.unlinked_in: set[str] = set()
        """Directories in which something was unlinked since the last checkpoint (D6)."""

    # -- lap and slot files, directories ---------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Unlink a file if it exists and is regular; anything else is not the wheel's."""
        if self._disk.identity(name) is not None:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(name)

    def unlink(self, name: str) -> None:
        """Remove a file that nothing needs any more."""
        with self._lock:
            self._handles.drop(name)
            self.remove(name)
            self.unlinked_in.add(name.rpartition("/")[0])

    def remove_dir(self, lap: int) -> None:
        """Remove a lap's directory if it is empty."""
        with contextlib.suppress(OSError):  # it is not empty; or it stays, and the next keeper removes it
            self._disk.rmdir(layout.lap_dir(lap))
            self.unlinked_in.discard(layout.lap_dir(lap))
            self.unlinked_in.add(layout.LAPS)

    def remove_empty_dirs(self, checkpoint: Checkpoint) -> None:
        """Remove the directories of past laps that unlinks have emptied (X4)."""
        lap_of = self._dir.settings.lap_of
        now_lap = lap_of(self._dir.env.clock.now_us() // US_PER_S)
        kept = {lap_of(s) for s in checkpoint.slots}
        for name in list(self.unlinked_in):
            lap = layout.parse_lap_dir(name.rpartition("/")[2])
            if lap is not None and lap < now_lap and lap not in kept:
                self.remove_dir(lap)

    # -- covered segments ------------------------------------------------------------------------------------

    def keep_for(self, roster: Roster | None) -> None:
        """Keep covered segments for the backups of a set, if this wheel is its primary. Never raises OSError."""
        if roster is not None and roster.role == "primary" and roster.members:
            self.retain(roster.retain_bytes)
            return
        self.retention = None
        # A primary that was fenced leaves the segments in retained/: its backups may still have to read them.
        if roster is None or not roster.members or roster.role == "backup":
            try:
                discard_retained(self._dir)
            except OSError as exc:
                log.warning("%s: not removed: %s", self._dir.place(layout.RETAINED), exc)

    def retain(self, limit_bytes: int) -> None:
        """Keep covered segments up to so many bytes."""
        if self.retention is None:
            self.retention = Retention(self._dir, limit_bytes=limit_bytes)
            self.retention.on_overflow = self._mark_behind  # mutant: behind-unmarked
        self.retention.limit_bytes = limit_bytes

    def retire_segment(self, name: str) -> bool:
        """Take a covered segment out of journal/: keep it for backups, if there are any, else unlink it.

        Returns False when it could be neither kept nor counted. Then it stays, and so must its writer's position, or
        the next keeper would read the segment again.
        """
        with self._lock:
            if self.retention is None:  # mutant: retained-removed
                self.unlink(name)
                return True
            self._handles.drop(name)
            try:
                self.retention.keep(name)
            except OSError as exc:
                log.warning("%s: not kept for backups: %s", self._dir.place(name), exc)
                if not self.retention.forgo():  # mutant: unkept-goes
                    return False
                self.remove(name)  # mutant: retained-stops
            self.unlinked_in |= {layout.JOURNAL, layout.RETAINED}
            return True

    def give_up_retained(self) -> bool:
        """Delete the segments that are kept for backups, which then heal. Returns whether there were any.

        Never raises OSError.
        """
        with self._lock:
            if self.retention is None:
                return False
            try:
                freed = bool(self.retention.names())
                self.retention.give_up()
            except OSError as exc:
                log.critical("%s: the segments that are kept for backups cannot be deleted: %s", self._dir.path, exc)
                return False
            return freed

    def _mark_behind(self) -> bool:
        """Mark in the roster the backups that may not have read the deleted segments; return whether it records that.

        Never raises.
        """
        why = "journals that it may not have read were removed: too much had been kept for it"
        try:
            roster = read_roster(self._disk, self._dir.path)
            if roster is None:
                return not was_in_set(self._disk)
            return None is not mark_stale(
                self._dir,
                lambda m: m.mode == "ship" or m.state != "current",
                why,
                epoch=roster.epoch,
                now_us=self._dir.env.clock.now_us(),
                unkept=True,
            )
        except (OSError, FilewheelError) as exc:
            log.critical("%s: backups that are behind could not be marked stale: %s", self._dir.path, exc)
            return False
