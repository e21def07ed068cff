"""Metrics of the command line: each has the wheel's path as a label, so that one monitor can watch many wheels.

Invariant: no label can control the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from filewheel.live.backups import set_gauges as set_gauges
from filewheel.metrics import Family, Sample, with_labels

from .text import safe


def of_wheel(families: Iterable[Family], path: str) -> list[Family]:
    """Return families with the wheel as a label, and every label safe to print."""
    found = []
    for family in with_labels(families, {"wheel": os.path.abspath(path)}):
        # Two handlers may be equal after escaping, and a scraper refuses a text with a duplicate sample.
        samples = {(s.name, labels): Sample(s.name, labels, s.value) for s in family.samples for labels in [_safe(s)]}
        found.append(family._replace(samples=list(samples.values())))
    return found


def _safe(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple((name, safe(value)) for name, value in sample.labels)
