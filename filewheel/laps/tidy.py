"""Deals for a moment when no keeper runs, so that one-shot producers do not leave one file each for ever.

A producer that finds many journal segments and the keeper's lock free takes the lock, deals the journals into lap files
(one for each lap, also near ones), and releases it. It runs the keeper's own protocol. A keeper that starts in between
waits for some milliseconds. Nothing is fired.
Invariant: afterwards the number of files is bounded by the laps with messages, not by the producers that ran.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.threads import started
from filewheel.errors import FilewheelError, Locked
from filewheel.format import layout
from filewheel.laps.deal import deal_all
from filewheel.laps.store import Store
from filewheel.roster.roster import read_roster

log = logging.getLogger(__name__)

TIDY_SEGMENTS = 64


def is_untidy(directory: Directory) -> bool:
    """Return whether there are so many journal segments that they should be dealt."""
    try:
        return len(directory.disk.listdir(layout.JOURNAL)) >= TIDY_SEGMENTS
    except OSError:
        return False  # nothing is lost without a deal: a later producer, or a keeper, deals


def tidy(directory: Directory) -> bool:
    """Deal the journals if no keeper runs; return whether that was done. Never raises for a bad disk.

    Does nothing on a backup, where a replicator is the keeper, or on a fenced wheel.
    """
    keeper_lock = KeeperLock(directory)
    try:
        roster = read_roster(directory.disk, directory.path)
        if roster is not None and roster.role != "primary":  # mutant: backup-tidied
            return False
        keeper_lock.take("tidy", wait=False)  # mutant: tidy-beside-keeper
        with contextlib.closing(Store(directory)) as store:
            store.recover()
            deal_all(store)
    except Locked:
        return False
    except (OSError, FilewheelError) as exc:
        # The enqueue that led here is durable already, and the next producer or keeper deals.
        log.warning("%s: not tidied up: %s", directory.path, exc)
        return False
    finally:
        keeper_lock.release()
    return True


class Tidier:
    """Tidies in a thread of its own when a segment of this handle is full and no keeper deals."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False

    def segment_ended(self, writer: str, position: Position, last: bool) -> None:
        """Start to tidy, or tidy once more."""
        with self._lock:
            self._again = True
            if self._thread is None:
                with contextlib.suppress(OSError):  # no thread: the next segment that ends tries again
                    self._thread = started(threading.Thread(target=self._work, name="filewheel-tidy", daemon=True))

    def _work(self) -> None:
        """Tidy until no segment has ended since the last time."""
        while True:
            with self._lock:
                if not self._again:
                    self._thread = None
                    return
                self._again = False
            tidy(self._dir)

    def join(self) -> None:
        """Wait until the work that was started is done."""
        thread = self._thread
        if thread is not None:
            thread.join()
