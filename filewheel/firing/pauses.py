"""The pauses as the keeper knows them: which messages it must not begin.

The keeper looks at paused.json when the mark in the file `begun` has changed since its last look: before a claim, and
before a begin. A pause changes that mark after it is durable, as a cancel does, so once it has returned nothing that it
holds begins. Claims also look ten times a second, in case the mark could not be written. A damaged file leaves the
pauses as they were: damage must not let a message go. A read that fails is an error of the claim: what is paused is not
known, and nothing begins.
Invariant: `holds` answers by the newest file that could be read.
"""

from __future__ import annotations

import contextlib
import logging

from filewheel.disk.directory import Directory
from filewheel.disk.paused import read_pauses
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.pauses import PausedMessages

log = logging.getLogger(__name__)

_LOOK_US = 100_000


class KnownPauses:
    """One keeper's view of paused.json. The store's lock guards `look`; any thread may ask `held`."""

    def __init__(self, directory: Directory) -> None:
        """Read the file. Raises Damaged, DiskError."""
        self._dir = directory
        self._looked_us = directory.env.clock.steady_us()
        self._failed: object = None
        """The file that could not be read, and the error that was logged."""
        try:
            self._identity = directory.disk.identity(layout.PAUSED)
            self.held = PausedMessages(read_pauses(directory.disk, directory.path))
            """What is paused now; replaced as a whole."""
        except OSError as exc:
            raise disk_error(exc, directory.place(layout.PAUSED)) from exc

    def drains(self) -> int:
        """Return how often the wheel was drained, as the file says now; as last read while that fails. Never raises."""
        with contextlib.suppress(OSError):
            self.look()
        return self.held.pauses.drains

    def look(self, *, is_marked: bool = True) -> bool:
        """Read the file if it was replaced; return whether a pause has ended. Cost: one stat.

        While the mark has not changed it looks ten times a second at most. The pauses stay as they were where the file
        is damaged, which is logged once. Raises OSError.
        """
        now_us = self._dir.env.clock.steady_us()
        if not is_marked and 0 <= now_us - self._looked_us < _LOOK_US:
            return False
        disk, before = self._dir.disk, self.held.pauses
        identity = disk.identity(layout.PAUSED)
        if identity == self._identity:
            self._looked_us = now_us
            return False
        try:
            self.held = PausedMessages(read_pauses(disk, self._dir.path))
        except Damaged as exc:
            self._looked_us = now_us
            if self._failed != (identity, str(exc)):
                log.error("%s; paused as before: %s", exc, before)
            self._failed = identity, str(exc)
            return False
        self._identity, self._looked_us = identity, now_us
        return any(self.held.pauses.find(pause) is None for pause in before)
