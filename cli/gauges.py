"""The gauges of a wheel that need no running process: what is on disk, counted when someone asks.

`metrics` and `stats --prometheus` show the same ones, each with the wheel's path as a label, so that one monitor can
watch many wheels.
Invariant: no label steers the terminal it is printed on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from filewheel import Stats, Wheel
from filewheel.exposition import Family, Sample, gauge, with_labels
from filewheel.message import US_PER_S
from filewheel.metrics import PREFIX
from filewheel.timespec import at_us

from .text import safe


def overdue_of(wheel: Wheel, stats: Stats, now_us: int) -> int:
    """Count what is due already. Costs nothing where nothing is, else a second count of the wheel."""
    if stats.next_due is None or at_us(stats.next_due) > now_us:
        return 0
    return wheel.histogram([now_us / US_PER_S]).before


def disk_gauges(stats: Stats, overdue: int, now_us: int) -> list[Family]:
    """Return what is on disk as families of one gauge each."""
    next_us = None if stats.next_due is None else at_us(stats.next_due)
    lag_us = 0 if next_us is None else max(0, now_us - next_us)
    values: list[tuple[str, str, float | None]] = [
        ("pending", "Messages that wait to be fired.", stats.pending),
        ("overdue", "Messages that are due already and wait still.", overdue),
        ("dead_letters", "Dead letters.", stats.dead),
        ("quarantined", "Items in quarantine: bytes that could not be read.", stats.quarantined),
        ("quarantined_bytes", "Bytes in quarantine.", stats.quarantined_bytes),
        ("damaged", "Ranges that could not be read while counting.", stats.damaged),
        ("journal_bytes", "Bytes in journals that are not dealt into slots and laps yet.", stats.journal_bytes),
        ("journal_files", "Journal segments that hold such bytes.", stats.journal_files),
        ("slot_files", "Files of near seconds.", stats.slot_files),
        ("lap_files", "Files of far laps.", stats.lap_files),
        ("file_bytes", "Bytes in slot and lap files.", stats.file_bytes),
        (
            "next_due_seconds", "When the next message is due, in seconds since the epoch.",
            None if next_us is None else next_us / US_PER_S,
        ),
        ("lag_seconds", "How long the next message has been due already.", lag_us / US_PER_S),
        ("keeper_up", "Whether a keeper is running.", int(stats.keeper_pid is not None)),
    ]  # fmt: skip
    return [gauge(PREFIX + name, help_, value) for name, help_, value in values if value is not None]


def of_wheel(families: Iterable[Family], path: str) -> list[Family]:
    """Return families with the wheel as a label, and every label safe to print."""
    found = []
    for family in with_labels(families, {"wheel": os.path.abspath(path)}):
        # Made safe, two handlers may look the same; a scraper refuses all of a text in which a sample comes twice.
        samples = {(s.name, labels): Sample(s.name, labels, s.value) for s in family.samples for labels in [_safe(s)]}
        found.append(family._replace(samples=list(samples.values())))
    return found


def _safe(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple((name, safe(value)) for name, value in sample.labels)
