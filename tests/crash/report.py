"""What a run of campaigns came to: JSON for programs, and from it a table for people and Markdown for the docs."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections import Counter
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.crash.runner import REPO, Outcome

Data = dict[str, Any]
TOTALS = ("crash states", "kills", "power cuts", "times full", "points", "flips", "fuzzed inputs", "mutants killed")
"""What is added up over all campaigns."""


def as_data(outcomes: list[Outcome], *, budget_s: float, seed: int, jobs: int) -> Data:
    """Return everything as plain data."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": shape(),
        "budget_s": budget_s,
        "seed": seed,
        "jobs": jobs,
        "campaigns": [
            {
                "name": o.campaign.name,
                "title": o.campaign.title,
                "seconds": round(o.seconds, 1),
                "missing": o.missing,
                "counts": in_order(o.campaign, o.tally),
                "targets_60_min": o.campaign.targets,
                "skipped": dict(o.tally.skipped),
                "violations": [{"round": v.round, "text": v.text, "again": v.again} for v in o.tally.violations],
            }
            for o in outcomes
        ],
    }


def in_order(campaign: Campaign, tally: Tally) -> dict[str, int]:
    """Return the counts, what the campaign is about first."""
    names = sorted(tally.counts, key=lambda name: (name not in campaign.targets, name not in TOTALS, name))
    return {name: tally.counts[name] for name in names}


def words(counts: dict[str, int]) -> str:
    """Return counts in words: "10,482 kills, 301,220 acknowledged"."""
    return ", ".join(f"{n:,} {what}" for what, n in counts.items() if what != "rounds") or "nothing"


def found(campaign: Data) -> str:
    """Return what a campaign found, in a few words."""
    if campaign["missing"] is not None:
        return f"skipped: {campaign['missing']}"
    return str(len(campaign["violations"]))


def total(data: Data) -> str:
    """Return what was tried in all."""
    counts: Counter[str] = Counter()
    for campaign in data["campaigns"]:
        counts.update({k: n for k, n in campaign["counts"].items() if k in TOTALS})
    violations = sum(len(c["violations"]) for c in data["campaigns"])
    return f"{words({k: counts[k] for k in TOTALS if counts[k]})}; {violations} violations"


def table(data: Data) -> str:
    """Return the table that a terminal shows."""
    rows = [("campaign", "seconds", "violations", "tried")]
    rows += [(c["title"], f"{c['seconds']:.0f}", found(c), words(c["counts"])) for c in data["campaigns"]]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows]
    return "\n".join([*lines, f"in all: {total(data)}"])


def markdown(data: Data) -> str:
    """Return the table as docs/guarantees.md carries it."""
    rows = ["| attack | tried | violations | minutes |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {c['title']} | {words(c['counts'])} | {found(c)} | {c['seconds'] / 60:.1f} |" for c in data["campaigns"]
    ]
    return "\n".join(rows)


def shape() -> str:
    """Return the shape of this machine, without its name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def commit() -> str | None:
    """Return the commit that was tested, when this is a checkout."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPO, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
