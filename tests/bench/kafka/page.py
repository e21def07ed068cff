"""The generated parts of the Kafka section of docs/benchmarks.md, from the JSON of a run.

Invariant: what stands there follows from the JSON alone, so a test can make it again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata

from tests.bench.docs import DOCS, PAGE, filled_with
from tests.bench.kafka.measures import MEASURES, Measure
from tests.bench.kafka.sides import BY_KEY
from tests.bench.machine import machine
from tests.bench.result import Cells, Run
from tests.bench.table import number
from tests.kafka.jars import VERSION

__all__ = ["PAGE", "RUN", "filled", "kafka_machine", "tables"]
RUN = DOCS / "benchmarks" / "kafka.json"


def kafka_machine() -> dict[str, object]:
    """Return what the figures depend on."""
    found = machine()
    versions = {"filewheel": importlib.metadata.version("filewheel"), "Kafka": VERSION}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["confluent-kafka"] = importlib.metadata.version("confluent-kafka")
    return {**found, "versions": versions}


def parts(run: Run) -> dict[str, str]:
    """Return the generated parts by name."""
    samples = f"{machine_text(run)} [All samples](benchmarks/{RUN.name})."
    return {"kafka-machine": samples, **{f"kafka-{m.name}": table(run, m) for m in MEASURES}}


def filled(page: str, run: Run) -> str:
    """Return the page with its parts made anew. Raises Missing when the page has no place for one."""
    return filled_with(page, parts(run))


def tables(run: Run) -> str:
    """Return all tables of a run."""
    measured = [measure for measure in MEASURES if any(w == measure.name for _, w, _ in run.cells)]
    return "\n\n".join(
        [machine_text(run), *(f"### {measure.title}\n\n{table(run, measure)}" for measure in measured)]
    )  # fmt: skip


def machine_text(run: Run) -> str:
    """Say on what it ran, and how busy that was."""
    m, plan = run.machine, run.machine["plan"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    return (
        f"{m['date']}: {m['cores']} cores, {m['memory_gib']} GiB of memory, Linux {m['kernel']}, Python {m['python']}; "
        f"{versions}. Rounds: {plan['rounds']}; counts at {number(plan['scale'])} of the titles' sizes, "
        f"{plan['pending']:,} records for memory. The load was at most {m.get('load', 0.0):.1f}, these processes "
        "included."
    )


def table(run: Run, measure: Measure) -> str:
    """Return the table of a measure: a line for each side, a column for each metric."""
    (place,) = run.places() or [""]
    sides = list(run.peers(place, measure.name))
    names = run.metrics(place, measure.name)
    if not sides:
        return "Not measured."
    units = {name: next(c.units[name][0] for _, c in sides if name in c.units) for name in names}
    lines = ["| " + " | ".join(["side", *(f"{name}, {units[name]}" for name in names)]) + " |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for key, cells in sides:
        shown = [_figure(cells, name) for name in names] or [cells.missing]
        lines.append("| " + " | ".join([BY_KEY[key].title, *shown]) + " |")
    if measure.goal:
        lines.append(f"\nGoal: {measure.goal}.")
    return "\n".join(lines)


def _figure(cells: Cells, name: str) -> str:
    """Write a median and its spread; or why there is no figure."""
    value = cells.median(name)
    if value is None:
        return cells.missing or "-"
    low, high = cells.spread(name)
    return number(value) + (f" ({number(low)}–{number(high)})" if low != high else "")
