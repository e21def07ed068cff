"""Removes files that nothing needs any more: finished slot and lap files, covered segments, empty directories.

Directories in which something was unlinked are remembered until the next checkpoint has flushed them (D6).
Invariant: a file is removed only after a checkpoint without it is durable. A crash in between leaves it for the next
keeper.
"""

from __future__ import annotations

import contextlib
import threading

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.journal.tail import Handles
from filewheel.message import US_PER_S


class Removal:
    """Removes the files of one store. The store's lock guards it."""

    def __init__(self, directory: Directory, handles: Handles, lock: threading.RLock) -> None:
        """`handles` are those of the store; a removed file is closed there."""
        self._dir = directory
        self._disk = directory.disk
        self._handles = handles
        self._lock = lock
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
