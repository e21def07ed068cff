"""The generated parts of docs/benchmarks-scheduler.md: tables, and where a peer is ahead, from the JSON of a run.

Invariant: what stands there follows from the JSON alone, so a test can make it again.
"""

from __future__ import annotations

from tests.bench.docs import DOCS, NOTABLE, filled_with
from tests.bench.jobs.measures import BY_NAME, MEASURES, Entry
from tests.bench.jobs.systems import BY_KEY, OURS, PEERS
from tests.bench.result import Run
from tests.bench.table import number

PAGE = DOCS / "benchmarks-scheduler.md"
RUN = DOCS / "benchmarks" / "jobs.json"
_PLAIN = ("jobs",)
"""Units of what is no figure of speed or size, and has no ratio."""
_CONTEXT = ("before it starts",)
"""What is told beside the figures and is none itself."""
_LIBRARIES = ("filewheel", "sqlite", "huey", "redis", "hiredis", "redis-server", "APScheduler", "SQLAlchemy")


def parts(run: Run) -> dict[str, str]:
    """Return the generated parts by name."""
    place = run.places()[0]
    return {
        "machine": machine_text(run, place),
        "ahead": ahead(run, place),
        **{entry.name: table(run, place, entry) for entry in MEASURES},
    }


def filled(page: str, run: Run) -> str:
    """Return the page with its parts made anew. Raises Missing when the page has no place for one."""
    return filled_with(page, parts(run))


def tables(run: Run) -> str:
    """Return all tables of a run."""
    return "\n\n".join(
        f"### {entry.title} ({place})\n\n{table(run, place, entry)}"
        for place in run.places() for entry in MEASURES if any(w == entry.name for _, w, _ in run.cells)
    )  # fmt: skip


def machine_text(run: Run, place: str) -> str:
    """Say on what it ran, and how often."""
    m = run.machine
    versions = ", ".join(f"{name} {m['versions'][name]}" for name in _LIBRARIES if name in m["versions"])
    rounds = ", ".join(f"{entry.name} {count}" for entry in MEASURES if (count := _rounds(run, place, entry)))
    return (
        f"{m['date']}: {m['cores']} cores, {m['memory_gib']} GiB of memory, Linux {m['kernel']}, Python {m['python']}; "
        f"{versions}. Place: {place}. Rounds: {rounds}. [All samples](benchmarks/jobs.json)."
    )


def _rounds(run: Run, place: str, entry: Entry) -> int:
    return max(
        (len(samples) for _, cells in run.peers(place, entry.name) for samples in cells.metrics.values()), default=0
    )


def table(run: Run, place: str, entry: Entry) -> str:
    """Return the table of a measure: a line for each system, a column for each metric."""
    systems = list(run.peers(place, entry.name))
    names = run.metrics(place, entry.name)
    if not systems:
        return "Not measured."
    units = {name: next(c.units[name][0] for _, c in systems if name in c.units) for name in names}
    head = ["system", "survives a power cut", *(f"{name}, {units[name]}" for name in names)]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * len(names)]
    for key, cells in systems:
        shown = [_figure(run, place, entry.name, key, name) for name in names] or [cells.missing]
        lines.append("| " + " | ".join([BY_KEY[key].title, BY_KEY[key].survives, *shown]) + " |")
    return "\n".join(lines)


def _figure(run: Run, place: str, measure: str, key: str, name: str) -> str:
    """Write a median, its spread, and how many times better filewheel is; or why there is no figure."""
    cells = run.cells[place, measure, key]
    value = cells.median(name)
    if value is None:
        return cells.missing or "-"
    low, high = cells.spread(name)
    spread = f" ({number(low)}–{number(high)})" if low != high else ""
    plain = BY_KEY[key].module == BY_KEY[OURS].module or cells.units[name][0] in _PLAIN or name in _CONTEXT
    ratio = None if plain else run.ratio(place, measure, name, OURS, key)
    return number(value) + spread + (f" **×{number(ratio)}**" if ratio is not None else "")


def ahead(run: Run, place: str) -> str:
    """Say in words where a peer is ahead of filewheel with threads."""
    lines = []
    for measure, name in [(e.name, n) for e in MEASURES for n in run.metrics(place, e.name)]:
        for peer in PEERS:
            ratio = run.ratio(place, measure, name, OURS, peer.key)
            if peer.module == BY_KEY[OURS].module or ratio is None or ratio >= NOTABLE:
                continue
            unit = run.unit(place, measure, peer.key, name)
            if unit not in _PLAIN and name not in _CONTEXT:
                theirs, ours = (number(run.median(place, measure, key, name) or 0) for key in (peer.key, OURS))
                space = "" if unit.startswith("/") else " "
                lines.append(
                    f"- {BY_NAME[measure].title} ({name}): {peer.title} {number(1 / ratio)} times better "
                    f"({theirs}{space}{unit}, filewheel {ours}{space}{unit})."
                )
    return "\n".join(lines) or "Nowhere, in this run."
