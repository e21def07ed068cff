"""docs/trust.md, made from the results of the campaigns and the table of findings: no figure is written by hand.

`python -m tests.crash.trust RESULT.json ...` takes the results of `python -m tests.crash --json` into
docs/trust/campaigns.json, which has the last one of each campaign, and writes the page. Without a name it only writes
the page. The prose above and below the tables is in docs/trust/*.txt.
Invariant: the page depends on docs/trust/ and the list of campaigns alone, so a test can compare it.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.crash.campaigns import campaigns
from tests.crash.report import found, total, words
from tests.crash.runner import REPO

PAGE = REPO / "docs" / "trust.md"
RESULTS = REPO / "docs" / "trust" / "campaigns.json"
FINDINGS = REPO / "docs" / "trust" / "findings.csv"
HOWS = {
    "model": "the crash model: the library's own code on a disk in memory that loses power at any operation",
    "campaign": "a campaign with real processes, disks and system calls that fail",
    "real kills": "processes that were killed on real file systems",
    "outside review": "a second implementation that was written from [format.md](format.md) alone, and compared",
    "newcomer": "a new user who built programs with the documentation only",
}
Data = dict[str, Any]


def load() -> dict[str, Data]:
    """Return the last result of each campaign that has one."""
    kept: dict[str, Data] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return kept


def add(kept: dict[str, Data], run: Data) -> None:
    """Take the results of a run that are newer than those that are kept."""
    about = {name: run[name] for name in ("when", "commit", "machine", "budget_s", "seed", "jobs")}
    for one in run["campaigns"]:
        before = kept.get(one["name"])
        if one["missing"] is None and (before is None or before["when"] < run["when"]):
            kept[one["name"]] = about | {
                name: one[name] for name in ("name", "seconds", "missing", "counts", "skipped", "violations")
            }


def findings() -> list[dict[str, str]]:
    """Return the table of findings."""
    with open(FINDINGS, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(kept: dict[str, Data]) -> str:
    """Return the page."""
    return "\n".join([_prose("head"), *_campaigns(kept), *_findings(), _prose("others")])


def _prose(name: str) -> str:
    return (RESULTS.parent / f"{name}.txt").read_text(encoding="utf-8")


def _campaigns(kept: dict[str, Data]) -> list[str]:
    titles = {c.name: c.title for c in campaigns()}
    runs = [kept[name] for name in titles if name in kept]
    lines = ["## The last run of each campaign", ""]
    lines += [f"In all: {total({'campaigns': runs})}.", ""]
    machines = Counter((one["machine"], one["jobs"]) for one in runs)
    lines += [f"Machine: {machine}; {jobs} processes at a time." for (machine, jobs), _ in sorted(machines.items())]
    lines += ["The rounds are short: these figures show that the campaign runs on the code of its commit.", ""]
    lines += [
        "| attack | tried | violations | seconds | when, commit | again |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in titles.items():
        again = f"`python -m tests.crash --only {name}"
        one = kept.get(name)
        if one is None:
            lines.append(f"| {title} | no figures yet | - | - | - | {again} --budget 5m` |")
            continue
        lines.append(
            f"| {title} | {words(one['counts'])} | {found(one)} | {one['seconds']:.0f} | {one['when'][:10]}, "
            f"{one['commit']} | {again} --budget {one['budget_s']:g}s --seed {one['seed']}` |"
        )
    lines.append("")
    for one in runs:
        for violation in one["violations"]:
            lines += [f"Violation: `{violation['again']}`: {violation['text'].splitlines()[0]}", ""]
        for reason, count in one["skipped"].items():
            lines += [f"Skipped in `{one['name']}`, {count} times: {reason}.", ""]
    return lines


def _findings() -> list[str]:
    rows = findings()
    counts = Counter(row["how"] for row in rows)
    lines = ["## Findings", ""]
    lines += [
        "These are findings that a user could have met, and whose origin is on record; [the",
        "changelog](../CHANGELOG.md) has all that was fixed. Each has a test.",
        "",
    ]
    lines += ["| found by | | findings |", "| --- | --- | --- |"]
    lines += [f"| {how} | {text} | {counts[how]} |" for how, text in HOWS.items()]
    lines += ["", "| finding | found by | fixed in | test |", "| --- | --- | --- | --- |"]
    lines += [f"| {row['found']} | {row['how']} | {row['fixed in']} | `{row['test']}` |" for row in rows]
    return [*lines, ""]


def main(names: list[str]) -> int:
    """Take results in, and write the page."""
    kept = load()
    for name in names:
        add(kept, json.loads(Path(name).read_text(encoding="utf-8")))
    known = {c.name for c in campaigns()}
    kept = {name: kept[name] for name in sorted(kept) if name in known}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
