"""What a run of campaigns came to: a table for people, Markdown for the docs, JSON for programs."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import Any

from tests.crash.campaign import Tally
from tests.crash.runner import REPO, Outcome


def tried(tally: Tally) -> str:
    """Return what was tried, in words: "10,482 kills, 301,220 acknowledged"."""
    counts = {k: n for k, n in tally.counts.items() if k != "rounds"}
    return ", ".join(f"{n:,} {what}" for what, n in counts.items()) or "nothing"


def found(outcome: Outcome) -> str:
    """Return what a campaign found, in a few words."""
    if outcome.missing is not None:
        return f"skipped: {outcome.missing}"
    return str(len(outcome.tally.violations))


def table(outcomes: list[Outcome]) -> str:
    """Return the table that a terminal shows."""
    rows = [("campaign", "seconds", "violations", "tried")]
    rows += [(o.campaign.title, f"{o.seconds:.0f}", found(o), tried(o.tally)) for o in outcomes]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]) for row in rows)


def markdown(outcomes: list[Outcome]) -> str:
    """Return the table as docs/guarantees.md carries it."""
    rows = ["| what was done to it | tried | violations | minutes |", "| --- | --- | --- | --- |"]
    for o in outcomes:
        rows.append(f"| {o.campaign.title} | {tried(o.tally)} | {found(o)} | {o.seconds / 60:.1f} |")
    return "\n".join(rows)


def as_json(outcomes: list[Outcome], *, budget_s: float, seed: int, jobs: int) -> dict[str, Any]:
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
                "counts": dict(o.tally.counts),
                "targets_60_min": o.campaign.targets,
                "skipped": dict(o.tally.skipped),
                "violations": [{"round": v.round, "text": v.text, "again": v.again} for v in o.tally.violations],
            }
            for o in outcomes
        ],
    }


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
