"""The counts of a wheel as JSON. The keys are a public API (docs/cli.md).

Invariant: each count of `Stats` is there once.
"""

from __future__ import annotations

from typing import Any

from filewheel.live.pause_fields import all_fields
from filewheel.lookup.stats import Stats
from filewheel.timespec import at_us
from filewheel.tools.dump import iso


def stats_fields(stats: Stats) -> dict[str, Any]:
    """Return the counts as JSON fields."""
    return {
        "pending": stats.pending,
        "dead": stats.dead,
        "quarantined": stats.quarantined,
        "quarantined_bytes": stats.quarantined_bytes,
        "next_due": None if stats.next_due is None else iso(at_us(stats.next_due)),
        "journal_bytes": stats.journal_bytes,
        "journal_files": stats.journal_files,
        "slot_files": stats.slot_files,
        "lap_files": stats.lap_files,
        "file_bytes": stats.file_bytes,
        "keeper_up": stats.keeper_up,
        "keeper_pid": stats.keeper_pid,
        "keeper_namespace": stats.keeper_namespace or None,
        "paused": all_fields(stats.paused),
        "damaged": stats.damaged,
    }
