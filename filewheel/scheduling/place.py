"""Where a scheduler's wheel is: made there when it is first needed, unless that was forbidden, and said in the log.

A path is easily wrong: another working directory, a directory that was moved, a disk that is not mounted. A wheel that
is made there takes what is enqueued, and the program that fires looks elsewhere. So the first enqueue warns.
Invariant: nobody is warned of a wheel that was there before.
"""

from __future__ import annotations

import logging

from filewheel.clock import Clock
from filewheel.disk.directory import DiskFactory, Sync
from filewheel.wheel import Wheel

log = logging.getLogger("filewheel.scheduling")


class Place:
    """The path of a scheduler's wheel. Its calls may be repeated, in any thread."""

    def __init__(self, path: str, *, create: bool, sync: Sync | None, clock: Clock, disk: DiskFactory) -> None:
        self.path = path
        self._create = create
        self._sync = sync
        self._clock = clock
        self._disk = disk
        self._made = False
        """The wheel was made here, and nobody was warned yet."""

    def prepare(self) -> None:
        """Make the wheel if it is not there and may be made. Where it may not, opening it raises NoWheel."""
        if self._create:
            self.open().close()

    def open(self) -> Wheel:
        """Open the wheel, made if need be. Raises NoWheel when it is not there and may not be made."""
        opened = Wheel.open_or_create if self._create else Wheel
        made = opened(self.path, sync=self._sync, clock=self._clock, disk=self._disk)
        self._made = self._made or made.is_new
        return made

    def warn_if_made(self) -> None:
        """Warn, once, before something is enqueued into a wheel that this very process made."""
        if self._made:
            self._made = False
            log.warning(
                "%s was not there: this process made a new wheel, and enqueues into it; if it should have been there, "
                "check the working directory and what is mounted, and pass create=False", self.path,
            )  # fmt: skip
