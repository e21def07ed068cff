"""`python -m tests.bench.timers`: every scheme and peer with 1,000 to 10,000,000 pending timers; prints the goals.

Each contestant has a process of its own, so that memory is its own, one after the other. It takes under ten minutes,
`--quick` under one. Figures are medians of five rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.store import Missing
from tests.bench.timers.contestants import contestants
from tests.bench.timers.goals import Goal, goals
from tests.bench.timers.measure import Cost
from tests.bench.timers.plot import draw

SIZES = (1000, 10_000, 100_000, 1_000_000, 10_000_000)
PAGE = Path(__file__).parents[3] / "docs" / "timers.md"
BEGIN, END = "<!-- measured by python -m tests.bench.timers --docs -->\n", "\n<!-- end -->\n"
QUICK = (1000, 10_000)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it. Returns 1 when a goal is missed in a full run."""
    args = arguments(argv)
    sizes = [n for n in (QUICK if args.quick else SIZES) if n <= args.most]
    seconds = 0.05 if args.quick else args.seconds
    begun = time.monotonic()
    run: dict[str, Any] = {"costs": [], "memory": {}, "sizes": sizes}
    for contestant in contestants():
        if not args.only or any(word in contestant.name for word in args.only.split(",")):
            _child(run, ["costs", contestant.name, str(seconds), *map(str, sizes)])
    for name in () if args.no_life else ("asyncio", "LoopWheel"):
        _child(run, ["life", name, str(10_000 if args.quick else min(args.most, 1_000_000))])
    found = goals(run)
    print(table(run))
    print(goal_table(found))
    tell(f"{time.monotonic() - begun:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(run | {"goals": [vars(goal) for goal in found]}, indent=1) + "\n")
    if args.docs:
        PAGE.write_text(filled(PAGE.read_text(), table(run) + "\n" + goal_table(found)))
    for directory in [args.plots] * bool(args.plots) + [PAGE.parent / "benchmarks"] * args.docs:
        plot(run, directory)
    return 0 if args.quick or all(goal.is_met is not False for goal in found) else 1


def _child(run: dict[str, Any], words: Sequence[str]) -> None:
    """Measure in a process of its own, and keep what it prints."""
    tell(" ".join(words))
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.timers.child", *words], stdout=subprocess.PIPE, text=True, check=False
    )
    for line in done.stdout.splitlines():
        record = json.loads(line)
        if "pending" in record:
            run["memory"].setdefault(record["name"], {})[str(record["pending"])] = record.pop("bytes")
            run["costs"].append(record)
        else:
            run.setdefault("life", {})[record.pop("name")] = record
    if done.returncode:
        run.setdefault("failed", []).append(" ".join(words))
        tell(f"failed with {done.returncode}; its figures are missing")


def tell(line: str) -> None:
    """Say how it goes."""
    print(line, file=sys.stderr, flush=True)


def table(run: dict[str, Any]) -> str:
    """Return the costs as a table in Markdown."""
    sizes = run["sizes"]
    lines = [f"| start + stop, ns | {' | '.join(f'{n:,}' for n in sizes)} | a tick, ns | bytes each |"]
    lines.append("| --- |" + " ---: |" * (len(sizes) + 2))
    by_name: dict[str, dict[int, Any]] = {}
    for cost in run["costs"]:
        by_name.setdefault(cost["name"], {})[cost["pending"]] = cost
    for name, costs in by_name.items():
        cells = [f"{costs[n]['pair_ns']:,.0f}" if n in costs else "" for n in sizes]
        if not set(costs) & set(sizes):  # threading.Timer: at its own size
            (n,) = costs
            cells[0] = f"{costs[n]['pair_ns']:,.0f} (at {n})"
        last = costs[max(costs)]
        tick = "" if last["tick_ns"] is None else f"{last['tick_ns']:,.0f}"
        memory = run["memory"][name][str(max(costs))]
        lines.append(f"| {name} | {' | '.join(cells)} | {tick} | {memory:,.0f} |")
    return "\n".join(lines) + "\n"


def goal_table(found: Sequence[Goal]) -> str:
    """Return the goals as a table in Markdown."""
    lines = ["| goal | wanted | measured | met |", "| --- | --- | --- | --- |"]
    words = {True: "yes", False: "**no**", None: "not measured"}
    lines += [f"| {goal.what} | {goal.wanted} | {goal.measured} | {words[goal.is_met]} |" for goal in found]
    return "\n".join(lines) + "\n"


def filled(page: str, text: str) -> str:
    """Return the page with the text between its two marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"the page has no {BEGIN}"
    assert end, f"the page has no {END}"
    return f"{head}{begin}\n{text}{end}{tail}"


def plot(run: dict[str, Any], directory: Path) -> None:
    """Draw the costs into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        draw([Cost(**cost) for cost in run["costs"]], directory / "timers.svg")
    except Missing as exc:
        tell(f"no plots: {exc}")
    else:
        tell(f"wrote {directory / 'timers.svg'}")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.timers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 pending timers at most, and no verdict")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="at most so many pending timers")
    parser.add_argument("--only", default="", help="contestants whose names contain one of these, with commas between")
    parser.add_argument("--no-life", action="store_true", help="leave out the idle loop and the burst, 90 s")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each figure is measured")
    parser.add_argument("--json", type=Path, help="write the run here")
    parser.add_argument("--docs", action="store_true", help="write the tables and the picture of docs/timers.md")
    parser.add_argument("--plots", type=Path, help="draw into this directory")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
