"""The results of a run: every sample, and what is made of them. A JSON file is the run; tables and plots are its views.

Invariant: a ratio is the median of the ratios of rounds, each of two figures that were measured one after the other.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.cell import Metric

Samples = dict[int, float]
"""round → value"""


@dataclass
class Cells:
    """All rounds of one peer in one workload on one file system."""

    metrics: dict[str, Samples] = field(default_factory=dict)
    units: dict[str, tuple[str, bool]] = field(default_factory=dict)
    missing: str = ""

    def add(self, number: int, metrics: list[Metric]) -> None:
        """Add a round."""
        for metric in metrics:
            self.metrics.setdefault(metric.name, {})[number] = metric.value
            self.units[metric.name] = (metric.unit, metric.up)

    def median(self, metric: str) -> float | None:
        """Return the median of a metric, None when it was not measured."""
        samples = self.metrics.get(metric)
        return statistics.median(samples.values()) if samples else None

    def spread(self, metric: str) -> tuple[float, float]:
        """Return the least and the most."""
        values = self.metrics[metric].values()
        return min(values), max(values)


@dataclass
class Run:
    """One run of the harness."""

    machine: dict[str, Any]
    cells: dict[tuple[str, str, str], Cells] = field(default_factory=dict)
    """(place, workload, peer) → rounds"""

    def at(self, place: str, workload: str, peer: str) -> Cells:
        """Return the cells of a peer, made when first asked for."""
        return self.cells.setdefault((place, workload, peer), Cells())

    def places(self) -> list[str]:
        """Return the places in the order in which they were measured."""
        return list(dict.fromkeys(place for place, _, _ in self.cells))

    def peers(self, place: str, workload: str) -> Iterator[tuple[str, Cells]]:
        """Yield the peers of a workload."""
        for (p, w, peer), cells in self.cells.items():
            if (p, w) == (place, workload):
                yield peer, cells

    def median(self, place: str, workload: str, peer: str, metric: str) -> float | None:
        """Return the median of a metric of one peer."""
        cells = self.cells.get((place, workload, peer))
        return cells.median(metric) if cells else None

    def metrics(self, place: str, workload: str) -> list[str]:
        """Return the names of what was measured in a workload."""
        return list(dict.fromkeys(name for _, cells in self.peers(place, workload) for name in cells.metrics))

    def unit(self, place: str, workload: str, peer: str, metric: str) -> str:
        """Return the unit of a metric."""
        return self.cells[place, workload, peer].units[metric][0]

    def ratio(self, place: str, workload: str, metric: str, ours: str, theirs: str) -> float | None:
        """Return how many times better `ours` is: the median over rounds; None when one of them has no figure."""
        none = Cells()
        mine, other = (self.cells.get((place, workload, peer), none) for peer in (ours, theirs))
        a, b = mine.metrics.get(metric, {}), other.metrics.get(metric, {})
        rounds = a.keys() & b.keys()
        if not rounds:
            return None
        up = mine.units[metric][1]
        pairs = [(a[r], b[r]) if up else (b[r], a[r]) for r in sorted(rounds)]
        ratios = [more / less for more, less in pairs if more and less]
        return statistics.median(ratios) if ratios else None

    def save(self, path: Path) -> None:
        """Write the run."""
        cells = [
            {
                "place": place, "workload": workload, "peer": peer, "missing": c.missing,
                "metrics": {
                    name: {"unit": c.units[name][0], "up": c.units[name][1], "rounds": samples}
                    for name, samples in c.metrics.items()
                },
            }
            for (place, workload, peer), c in self.cells.items()
        ]  # fmt: skip
        path.write_text(json.dumps({"machine": self.machine, "cells": cells}, indent=1) + "\n")


def load_run(*paths: Path) -> Run:
    """Read a run; of several, later ones add to and replace earlier ones."""
    run: Run | None = None
    for path in paths:
        data = json.loads(path.read_text())
        run = run or Run(data["machine"])
        for cell in data["cells"]:
            cells = Cells(missing=cell["missing"])
            for name, metric in cell["metrics"].items():
                cells.metrics[name] = {int(r): v for r, v in metric["rounds"].items()}
                cells.units[name] = (metric["unit"], metric["up"])
            run.cells[cell["place"], cell["workload"], cell["peer"]] = cells
    assert run is not None
    return run
