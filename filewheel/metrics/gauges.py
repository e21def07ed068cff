"""The gauges of a wheel on disk, counted on request; no process needs to run.

Invariant: nothing here writes, or takes a lock.
"""

from __future__ import annotations

from typing import Protocol

from filewheel.lookup.overdue import Overdue
from filewheel.lookup.stats import Stats
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import PREFIX
from filewheel.metrics.prometheus import Family, gauge
from filewheel.timespec import at_us


class Counted(Protocol):
    """The part of a wheel that `overdue_of` needs."""

    def overdue(self, at: float | None = None) -> Overdue:
        """Count the messages that are due at a time."""


def overdue_of(wheel: Counted, stats: Stats, now_us: int) -> Overdue:
    """Count the messages that are due, and those of them that a pause holds. Free when nothing is due."""
    if stats.next_due is None or at_us(stats.next_due) > now_us:
        return Overdue(now_us)
    return wheel.overdue(now_us / US_PER_S)


def disk_gauges(stats: Stats, overdue: Overdue, now_us: int) -> list[Family]:
    """Return the counts of a wheel as families of gauges."""
    next_us = None if stats.next_due is None else at_us(stats.next_due)
    pauses = stats.paused
    values: list[tuple[str, str, float | None]] = [
        ("pending", "Pending messages.", stats.pending),
        ("overdue", "Pending messages that are due and have not begun, without those that are paused.", overdue.count),
        ("overdue_paused", "Pending messages that are due and paused.", overdue.paused),
        ("dead_letters", "Dead letters.", stats.dead),
        ("quarantined", "Items in quarantine: bytes that could not be read.", stats.quarantined),
        ("quarantined_bytes", "Bytes in quarantine.", stats.quarantined_bytes),
        ("damaged", "Damaged places that were met while counting; `filewheel verify` names all.", stats.damaged),
        ("journal_bytes", "Bytes in journals that are not dealt into slots and laps yet.", stats.journal_bytes),
        ("journal_files", "Journal segments that hold such bytes.", stats.journal_files),
        ("slot_files", "Files of near seconds.", stats.slot_files),
        ("lap_files", "Files of far laps.", stats.lap_files),
        ("file_bytes", "Bytes in slot and lap files.", stats.file_bytes),
        (
            "next_due_seconds",
            "When the next message is due, in seconds since the epoch.",
            None if next_us is None else next_us / US_PER_S,
        ),
        (
            "lag_seconds",
            "How long the first due message that has not begun, and is not paused, has waited.",
            overdue.lag_us / US_PER_S,
        ),
        ("keeper_up", "Whether a keeper is running.", int(stats.keeper_up)),
        ("paused", "Whether the whole wheel is paused.", None if pauses is None else int(pauses.wheel is not None)),
        ("pauses", "How many pauses there are, of any kind.", None if pauses is None else len(pauses)),
    ]
    return [gauge(PREFIX + name, help_, value) for name, help_, value in values if value is not None]
