"""`python -m tests.bench`: run the comparison, or show one that was run."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.bench.harness import Plan, run_plan
from tests.bench.machine import machine
from tests.bench.place import place
from tests.bench.result import Run
from tests.bench.store import Missing
from tests.bench.table import tables
from tests.bench.workloads import BY_NAME, WORKLOADS


def main() -> int:
    """Run it."""
    args = arguments()
    names = [n for pattern in args.only.split(",") for n in BY_NAME if not args.only or n.startswith(pattern)]
    if args.skip:
        names = [n for n in names if not any(n.startswith(s) for s in args.skip.split(","))]
    entries = [e for e in WORKLOADS if e.name in names]
    if not entries:
        print(f"no workload {args.only!r}; there are {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    plan = Plan(entries, args.peers.split(",") if args.peers else [], args.rounds, args.seconds, args.scale, args.seed)
    run = Run(machine())
    begun = time.monotonic()
    for name in args.places.split(","):
        try:
            with place(name, args.dir) as directory:
                run_plan(plan, name, directory, run, lambda line: print(line, file=sys.stderr, flush=True))
        except Missing as exc:
            print(f"{name}: skipped, {exc}", file=sys.stderr)
        if args.json:
            run.save(args.json)
    print(tables(run))
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default="", help="workloads by the start of their names, with commas between")
    parser.add_argument("--skip", default="", help="workloads to leave out, likewise")
    parser.add_argument("--peers", default="", help="peers by key, with commas between")
    parser.add_argument("--places", default="ext4", help="ext4, xfs (on loop devices), plain; with commas between")
    parser.add_argument("--dir", type=Path, default=Path(), help="where images and plain directories are made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies how many messages are populated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the run here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
