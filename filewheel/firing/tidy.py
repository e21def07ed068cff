"""Tidying up when no keeper runs, so that one-shot producers do not leave a file each for ever.

A producer that finds many journal segments and nobody holding the keeper's lock takes the lock for a moment, deals
what the journals hold into lap files (one a lap, whatever is near), and lets go. It is the keeper's own protocol, not
a second one; a keeper that starts meanwhile waits for some milliseconds. Nothing is fired.
Invariant: afterwards the number of files is bounded by laps that hold something, not by the producers that ran.
"""

from __future__ import annotations

import contextlib
import logging
import threading

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.started import started
from filewheel.errors import FilewheelError, Locked
from filewheel.format import layout
from filewheel.keys.lost import Relisted
from filewheel.laps.deal import deal_all
from filewheel.laps.store import Store
from filewheel.roster.roster import read_roster

log = logging.getLogger(__name__)

TIDY_SEGMENTS = 64


def is_untidy(directory: Directory) -> bool:
    """Tell whether so many journal segments lie about that someone should deal them."""
    try:
        return len(directory.disk.listdir(layout.JOURNAL)) >= TIDY_SEGMENTS
    except OSError:
        return False  # nothing is lost by not dealing: a later producer, or a keeper, does


def tidy(directory: Directory) -> bool:
    """Deal what the journals hold if no keeper runs; tell whether that was done. Never raises for a bad disk.

    Nothing on a backup, which has a replicator for its keeper, nor on a wheel that was fenced.
    """
    keeper_lock = KeeperLock(directory)
    try:
        roster = read_roster(directory.disk, directory.path)
        if roster is not None and roster.role != "primary":  # mutant: backup-tidied
            return False
        keeper_lock.take("tidy", wait=False)  # mutant: tidy-beside-keeper
        with contextlib.closing(Store(directory, Relisted(directory))) as store:
            store.recover()
            deal_all(store)
    except Locked:
        return False
    except (OSError, FilewheelError) as exc:
        # The enqueue that led here is durable already. Dealing is for whoever comes next.
        log.warning("%s: not tidied up: %s", directory.path, exc)
        return False
    finally:
        keeper_lock.release()
    return True


class Tidier:
    """Tidies in a thread of its own whenever a segment of this handle is full, where no keeper deals."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._again = False

    def segment_ended(self, writer: str, position: Position, last: bool) -> None:
        """Begin to tidy up, or go on for another time."""
        with self._lock:
            self._again = True
            if self._thread is None:
                with contextlib.suppress(OSError):  # no thread: the next segment that ends tries again
                    self._thread = started(threading.Thread(target=self._work, name="filewheel-tidy", daemon=True))

    def _work(self) -> None:
        """Tidy until no segment has ended meanwhile."""
        while True:
            with self._lock:
                if not self._again:
                    self._thread = None
                    return
                self._again = False
            tidy(self._dir)

    def join(self) -> None:
        """Wait for what has begun."""
        thread = self._thread
        if thread is not None:
            thread.join()
