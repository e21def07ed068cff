"""Due messages: those that a keeper should have fired, and those that a pause holds.

While nothing is paused the due messages are counted by time alone, and while the whole wheel is paused too; otherwise
each one is read.
Invariant: nothing here writes, or takes a lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.format.pauses import PausedMessages, Pauses
from filewheel.format.record import ID
from filewheel.lookup.snapshot import Snapshot
from filewheel.lookup.stats import histogram_of
from filewheel.message import ID_MIN, due_of, id_floor


@dataclass(frozen=True)
class Overdue:
    """The messages of a wheel that are due at a time, claimed or not."""

    now_us: int
    count: int = 0
    """How many no pause holds: a keeper should have fired them, or has them in hand."""
    first_us: int | None = None
    """When the first of these was due; None when there is none."""
    paused: int = 0
    """How many a pause holds."""

    @property
    def lag_us(self) -> int:
        """How long the first one that no pause holds has been due; 0 when there is none."""
        return 0 if self.first_us is None else max(0, self.now_us - self.first_us)


def overdue_in(directory: Directory, snapshot: Snapshot, pauses: Pauses, now_us: int) -> Overdue:
    """Count the due messages of a snapshot.

    Cost: that of a histogram; while topics or schedules are paused, about 1 µs for each due message.
    """
    if pauses.wheel is not None:
        return Overdue(now_us, paused=histogram_of(directory, snapshot, [now_us + 1]).before)
    if not pauses.entries:
        first = snapshot.first()
        first_us = None if first is None else due_of(first[ID])
        if first_us is None or first_us > now_us:
            return Overdue(now_us)
        return Overdue(now_us, histogram_of(directory, snapshot, [now_us + 1]).before, first_us)
    count = paused = 0
    first_us = None
    held = PausedMessages(pauses)
    for put in snapshot.puts(ID_MIN, id_floor(now_us + 1)):
        if held.holds(put):
            paused += 1
        else:
            count += 1
            first_us = due_of(put[ID]) if first_us is None else first_us
    return Overdue(now_us, count, first_us, paused)
