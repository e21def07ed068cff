"""The figures of one run on one disk: the input of a verdict.

Owns the names of the figures, which are keys of the JSON. Invariant: a rate is per second, of messages.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import filewheel
from filewheel.tools import file_system_type


@dataclass(frozen=True)
class Figures:
    """One run's medians."""

    flush_us: float
    """One pwrite and fdatasync into preallocated space: the disk's cost of one durable write."""
    flush_p99_us: float
    bare_per_s: float
    """Bare commits a second, one thread: the limit for single enqueues."""
    one_per_s: float
    share: float
    """`one_per_s` as a share of `bare_per_s`: the median over rounds that measured both in succession."""
    threads_per_s: float
    batch_100_per_s: float
    batch_1000_per_s: float
    interval_per_s: float
    """With sync=0.05, one thread."""
    never_per_s: float
    fire_per_s: float
    """A backlog in the laps, fired and acknowledged in batches of 1,000."""
    late_p50_ms: float
    late_p99_ms: float
    early: int
    """Messages that fired early. There must be none."""


def machine(path: Path) -> dict[str, object]:
    """Describe the measured machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "file_system": file_system_type(str(path)),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "filewheel": filewheel.__version__,
    }


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
