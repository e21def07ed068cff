"""Metrics as the command line shows them: each with the wheel's path as a label, so that one monitor can watch many.

Invariant: no label steers the terminal it is printed on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from filewheel.exposition import Family, Sample, with_labels

from .text import safe


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
