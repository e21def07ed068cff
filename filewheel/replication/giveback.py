"""Giving back: what a damaged primary has lost is written to it from a backup, through a journal like any producer's.

Invariant: a message with a unique key is listed under it in the primary before it is there again.
"""

from __future__ import annotations

import contextlib

from filewheel.clock import Clock
from filewheel.disk.directory import Directory
from filewheel.errors import FilewheelError, disk_errors
from filewheel.format.id_source import Entropy
from filewheel.journal.journal import Journal
from filewheel.keys.index import Keys
from filewheel.replication.backupkeeper import enter_keys
from filewheel.replication.bundle import Bundle
from filewheel.roster.repeats import note_repeats


class GiveBack:
    """Writes to one primary. Makes its journal there with the first message. Not thread-safe. Close it."""

    def __init__(self, primary: Directory, clock: Clock, entropy: Entropy) -> None:
        self._primary = primary
        self._clock = clock
        self._entropy = entropy
        self._journal: Journal | None = None

    def write(self, commits: list[tuple[list[bytes], list[bytes]]]) -> None:
        """Write (puts, drops), each pair whole or not at all. On return they are durable. Raises DiskError, Locked."""
        if self._journal is None:
            # What could not be read may turn up again, a disk that was away with all that is on it.
            with disk_errors(self._primary.path):
                note_repeats(self._primary.disk)
            self._journal = Journal(self._primary, entropy=self._entropy)
        puts = [put for some, _ in commits for put in some]
        # The index may have forgotten a message that was lost: its key is its own again before it is there.
        enter_keys(Keys(self._primary), puts, self._clock.now_us(), self._primary.path)
        bundle = Bundle(self._journal)
        for some, drops in commits:
            bundle.add_records(some, drops)
        bundle.write()
        self._journal.flush()

    def close(self) -> None:
        """Let go of the journal. Never raises for the disk: what was written is durable."""
        journal, self._journal = self._journal, None
        if journal is not None:
            with contextlib.suppress(FilewheelError, OSError):
                journal.close()
