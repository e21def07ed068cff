"""The gauges of a wheel on disk, counted on request; no process needs to run.

Invariant: nothing here writes, or takes a lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from filewheel.lookup.stats import Histogram, Stats
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import PREFIX
from filewheel.metrics.prometheus import Family, gauge
from filewheel.timespec import at_us


class Counted(Protocol):
    """The part of a wheel that `overdue_of` needs."""

    def histogram(self, boundaries: Sequence[float]) -> Histogram:
        """Count messages between times."""


def overdue_of(wheel: Counted, stats: Stats, now_us: int) -> int:
    """Count the overdue messages. Costs a second count of the wheel, unless nothing is due."""
    if stats.next_due is None or at_us(stats.next_due) > now_us:
        return 0
    return wheel.histogram([now_us / US_PER_S]).before


def disk_gauges(stats: Stats, overdue: int, now_us: int) -> list[Family]:
    """Return the counts of a wheel as families of one gauge each."""
    next_us = None if stats.next_due is None else at_us(stats.next_due)
    lag_us = 0 if next_us is None else max(0, now_us - next_us)
    values: list[tuple[str, str, float | None]] = [
        ("pending", "Pending messages.", stats.pending),
        ("overdue", "Pending messages that are due.", overdue),
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
            "next_due_seconds", "When the next message is due, in seconds since the epoch.",
            None if next_us is None else next_us / US_PER_S,
        ),
        ("lag_seconds", "How long the next message has been due.", lag_us / US_PER_S),
        ("keeper_up", "Whether a keeper is running.", int(stats.keeper_up)),
    ]  # fmt: skip
    return [gauge(PREFIX + name, help_, value) for name, help_, value in values if value is not None]
