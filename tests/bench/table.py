"""Tables of a run, as Markdown: medians, spreads, and how many times better filewheel is."""

from __future__ import annotations

from tests.bench.result import Run
from tests.bench.stores import BOUNDED, BY_KEY
from tests.bench.workloads import WORKLOADS, Entry

OURS = {"durable": "filewheel", "relaxed": "filewheel-never"}
GROUPS = list(dict.fromkeys(entry.group for entry in WORKLOADS))
COUNTS = ("messages", "files")
"""What is no figure of speed, and has no ratio."""
_BOUNDED_OURS = {"beanstalkd-50ms": "filewheel-50ms", "redis-1s": "filewheel-1s"}


def rival(peer: str) -> str:
    """Return which filewheel a peer is compared with: the one that promises the same."""
    promise = BY_KEY[peer].promise
    return _BOUNDED_OURS.get(peer, peer) if promise == BOUNDED else OURS[promise]


def number(value: float) -> str:
    """Write a number with three or so figures."""
    if value != value:
        return "-"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def tables(run: Run, group: str | None = None) -> str:
    """Return the tables of a run, or those of a group of workloads."""
    parts = []
    for place in run.places():
        for entry in WORKLOADS:
            measured = any(w == entry.name and p == place for p, w, _ in run.cells)
            if measured and group in (None, entry.group):
                parts.append(f"### {entry.title} ({place})\n\n{table(run, place, entry)}\n")
    return "\n".join(parts)


def table(run: Run, place: str, entry: Entry) -> str:
    """Return the table of a workload: a line for each peer, a column for each metric."""
    peers = list(run.peers(place, entry.name))
    names = run.metrics(place, entry.name)
    if not names:
        return "\n".join(f"{BY_KEY[peer].title}: {cells.missing}" for peer, cells in peers)
    if entry.group == "growth":
        return _levels(run, place, entry.name, names)
    units = {name: next(c.units[name] for _, c in peers if name in c.units) for name in names}
    head = "| store | promise | " + " | ".join(f"{n}, {units[n][0]}" for n in names) + " |"
    lines = [head, "| --- | --- |" + " ---: |" * len(names)]
    lines += [_line(run, place, entry.name, peer, names) for peer, _ in peers]
    return "\n".join(lines)


def _levels(run: Run, place: str, workload: str, names: list[str]) -> str:
    """Return a table with a line for each metric and store, and a column for each level (`memory at 1,000`)."""
    levels = list(dict.fromkeys(name.rpartition(" at ")[2] for name in names))
    lines = ["| | store | " + " | ".join(f"at {n}" for n in levels) + " |", "| --- | --- |" + " ---: |" * len(levels)]
    for metric in dict.fromkeys(name.rpartition(" at ")[0] for name in names):
        for peer, cells in run.peers(place, workload):
            some = [f"{metric} at {level}" for level in levels]
            unit = next((cells.units[name][0] for name in some if name in cells.units), "")
            shown = [_figure(run, place, workload, peer, name) for name in some]
            lines.append(f"| {metric}, {unit} | {BY_KEY[peer].title} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _line(run: Run, place: str, workload: str, peer: str, names: list[str]) -> str:
    entry = BY_KEY[peer]
    shown = [_figure(run, place, workload, peer, name) for name in names]
    return "| " + " | ".join([entry.title, entry.promise, *shown]) + " |"


def _figure(run: Run, place: str, workload: str, peer: str, name: str) -> str:
    """Write a median, its spread and its ratio, or why there is none."""
    cells = run.cells[place, workload, peer]
    value = cells.median(name)
    if value is None:
        return cells.missing or "-"
    low, high = cells.spread(name)
    spread = f" ({number(low)}–{number(high)})" if low != high else ""
    plain = rival(peer) == peer or cells.units[name][0] in COUNTS
    ratio = None if plain else run.ratio(place, workload, name, rival(peer), peer)
    return number(value) + spread + (f" **×{number(ratio)}**" if ratio is not None else "")
