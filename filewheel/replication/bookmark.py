"""The bookmark: how far a backup has come in its primary's journals, written down now and then.

What is written down must be in the backup. In a mirror some of what was read may not have arrived there yet, so a place
is kept back until everything below it has.
Invariant: every position that was written down is covered by records that are in the backup.
"""

from __future__ import annotations

from filewheel.clock import Clock
from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.replication.follows import Follows, read_follows, write_follows

NOTE_US = 250_000
UNKNOWN = -2
NEVER = -1
"""No primary's retained segments have overflown so often: such a note says only when the backup was in step last."""


class Bookmark:
    """Writes follows.json for one backup and one primary. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, epoch: int, boot: str, clock: Clock) -> None:
        """Read what is written down. Raises OSError."""
        self._source = source
        self._target = target
        self._epoch = epoch
        self._boot = boot
        self._clock = clock
        self.positions: dict[str, Position] = {}
        """What was written down last."""
        self.in_step_us = clock.now_us()
        """When the backup was in step last, as far as that is known."""
        self._next: tuple[dict[str, Position], int] | None = None
        self._wrote_us = clock.steady_us()
        self.found = read_follows(target.disk, target.path)
        if self.found is not None and self.found.primary_wheel == source.settings.id:
            self.in_step_us = self.found.in_step_us

    def go_on(self, overflow: int, *, clean: bool = False) -> bool:
        """Take up the place that was written down; tell whether it can be gone on from.

        With `clean`, only if whoever wrote it stopped in order; from here on it is not said any more that this is so.
        """
        found = self.found
        if (
            found is None
            or not self.has_all(overflow)
            or not found.boot
            or found.boot != self._boot
            or (clean and not found.clean)
        ):
            return False
        self.positions = dict(found.positions)
        if found.clean:
            self._write(self.positions, overflow, clean=False)
        return True

    def has_all(self, overflow: int) -> bool:
        """Tell whether this primary has kept every journal since the place that was written down, by its counter."""
        found = self.found
        if found is None or found.primary_wheel != self._source.settings.id:
            return False
        return 0 <= found.overflow == overflow

    def forget(self) -> None:
        """Write down that no place can be gone on from: whoever dies now begins to heal anew."""
        self._next = None
        self._write({}, NEVER, clean=False)

    def note(
        self,
        positions: dict[str, Position],
        overflow: int,
        now_us: int,
        *,
        owed_us: int | None,
        in_step_us: int | None,
        at_once: bool,
        clean: bool,
    ) -> None:
        """Write down a place if it is time to, or `at_once`.

        `owed_us` is since when something read is not in the backup; `in_step_us` the time at which it was in step, if
        it is; `clean` that this is the last word of whoever stops in order.
        """
        if self._next is None or (at_once and owed_us is None):
            self._next = positions, now_us
        positions, at_us = self._next
        if owed_us is not None and owed_us <= at_us:
            return
        if not at_once and 0 <= now_us - self._wrote_us < NOTE_US:
            return
        self._next = None
        self._wrote_us = now_us
        if in_step_us is not None:
            self.in_step_us = in_step_us
        self._write(positions, overflow, clean=clean)
        self.positions = positions

    def _write(self, positions: dict[str, Position], overflow: int, *, clean: bool) -> None:
        write_follows(
            self._target.disk,
            Follows(
                primary_wheel=self._source.settings.id,
                epoch=self._epoch,
                overflow=overflow,
                boot=self._boot,
                positions=positions,
                at_us=self._clock.now_us(),
                in_step_us=self.in_step_us,
                clean=clean,
            ),
        )
