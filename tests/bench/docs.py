"""The generated parts of docs/benchmarks.md: tables, and where a peer wins, from the JSON of a run.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. Invariant: what stands there follows from the JSON
alone, so a test can make it again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench.goals import goals
from tests.bench.result import Run
from tests.bench.store import Missing
from tests.bench.stores import BY_KEY, PEERS
from tests.bench.table import COUNTS, GROUPS, number, rival, tables
from tests.bench.workloads import WORKLOADS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "benchmarks"
RUN = PICTURES / "run.json"
SHOWN = {
    "enqueue": {"rates-durable": "The main rates, durable", "rates-relaxed": "One by one, bounded and relaxed"},
    "batch": {"batches": "The rate against the size of a batch"},
    "late": {"lateness": "Lateness against the rate"},
    "growth": {"growth": "Five costs against what is pending"},
}
NOTABLE = 0.97
"""A ratio below this is a peer's win; nearer to one, it is a draw."""


def parts(run: Run) -> dict[str, str]:
    """Return the generated parts by name."""
    return {
        "machine": machine_text(run),
        "goals": goals(run, run.places()[0]),
        "wins": wins(run, run.places()[0]),
        **{group: _pictures(group) + text if (text := tables(run, group)) else "Not measured." for group in GROUPS},
    }


def filled(page: str, run: Run) -> str:
    """Return the page with its parts made anew. Raises Missing when the page has no place for one of them."""
    return filled_with(page, parts(run))


def filled_with(page: str, made: dict[str, str]) -> str:
    """Return the page with these parts in their places."""
    for name, text in made.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        page, count = pattern.subn(lambda m, text=text: f"{m[1]}{text.strip()}\n{m[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise Missing(f"the page has {count} places for {name!r}")
    return page


def _pictures(group: str) -> str:
    """Return the pictures of a group of workloads."""
    return "".join(f"![{text}](benchmarks/{name}.svg)\n\n" for name, text in SHOWN.get(group, {}).items())


def machine_text(run: Run) -> str:
    """Say on what it ran, and how large."""
    m = run.machine
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    text = (
        f"{m['date']}: {m['cores']} cores, {m['memory_gib']} GiB of memory, Linux {m['kernel']}, "
        f"Python {m['python']}; "
        f"{versions}. [All samples](benchmarks/run.json)."
    )
    if plan := m.get("plan"):
        text += (
            f"\n{plan['rounds']} rounds, {number(plan['seconds'])} s for a rate"
            f"; counts at {number(plan['scale'])} of the sizes that the titles name. Places: {', '.join(run.places())}."
        )
    return text


def wins(run: Run, place: str) -> str:
    """Say in words where a peer is ahead of the filewheel that promises the same; bare writes are a limit, no peer."""
    lines = []
    for entry in WORKLOADS:
        for metric in run.metrics(place, entry.name):
            ahead = []
            for peer in PEERS:
                if peer.key.startswith(("bare", "filewheel")):
                    continue
                ours = rival(peer.key)
                ratio = run.ratio(place, entry.name, metric, ours, peer.key)
                if ratio is None or ratio >= NOTABLE or run.unit(place, entry.name, peer.key, metric) in COUNTS:
                    continue
                their, our = (run.median(place, entry.name, p, metric) for p in (peer.key, ours))
                unit = run.unit(place, entry.name, peer.key, metric)
                assert their is not None
                assert our is not None
                ahead.append(
                    f"{BY_KEY[peer.key].title} {number(1 / ratio)} times better"
                    f" ({_with(their, unit)}, filewheel {_with(our, unit)})"
                )
            if ahead:
                lines.append(f"- {entry.title} ({metric}): {'; '.join(ahead)}.")
    return "\n".join(lines) or "Nowhere, in this run."


def _with(value: float, unit: str) -> str:
    return number(value) + (unit if unit.startswith("/") else f" {unit}")
