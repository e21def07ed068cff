"""Due messages: those that wait to begin, those that run, and those that a pause holds.

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
    """The messages of a wheel that are due at a time."""

    now_us: int
    count: int = 0
    """How many no pause holds and that have not begun: a keeper should have fired them."""
    first_us: int | None = None
    """When the first of these was due; None when there is none."""
    paused: int = 0
    """How many a pause holds."""
    running: int = 0
    """How many have begun: what runs is not late, however long it takes."""

    @property
    def lag_us(self) -> int:
        """How long the first one that no pause holds and that has not begun has been due; 0 when there is none."""
        return 0 if self.first_us is None else max(0, self.now_us - self.first_us)


def overdue_in(
    directory: Directory, snapshot: Snapshot, pauses: Pauses, now_us: int, begun: frozenset[bytes] = frozenset()
) -> Overdue:
    """Count the due messages of a snapshot; `begun` has the ids of those that run, and may have others.

    Cost: that of a histogram, and of finding what has begun; while topics or schedules are paused, about 1 µs for each
    due message.
    """
    if now_us < 0:  # nothing is due before 1970
        return Overdue(now_us)
    runs = sum(due_of(id_) <= now_us for id_ in snapshot.find(begun)) if begun else 0
    if pauses.wheel is not None:
        before = histogram_of(directory, snapshot, [now_us + 1]).before
        return Overdue(now_us, paused=max(0, before - runs), running=runs)
    held = PausedMessages(pauses)
    count = paused = 0
    first_us = None
    for put in snapshot.puts(ID_MIN, id_floor(now_us + 1)):
        if put[ID] in begun:
            continue
        if held.holds(put):
            paused += 1
            continue
        count += 1
        first_us = due_of(put[ID]) if first_us is None else first_us
        if not pauses.entries:  # all the others are counted by time alone
            before = histogram_of(directory, snapshot, [now_us + 1]).before
            return Overdue(now_us, max(1, before - runs), first_us, running=runs)
    return Overdue(now_us, count, first_us, paused, runs)
