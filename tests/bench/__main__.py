"""`python -m tests.bench`: run the comparison, or show one that was run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.docs import PAGE, PICTURES, RUN, filled
from tests.bench.harness import Plan, run_plan
from tests.bench.machine import machine
from tests.bench.place import place
from tests.bench.plot import plots
from tests.bench.result import Run, load_run
from tests.bench.store import Missing
from tests.bench.stores import BY_KEY
from tests.bench.table import tables
from tests.bench.workloads import BY_NAME, WORKLOADS, Entry
from tests.bench.workloads.replay import WHOLE_DAY


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    args = arguments(argv)
    if args.show:
        run, whole = load_run(*args.show), True
    else:
        try:
            plans = [_plan(args, args.only), _plan(args, args.elsewhere or args.only)]
        except Missing as exc:
            print(exc, file=sys.stderr)
            return 2
        run, whole = Run({**machine(), "plan": vars_of(args)}), False
        was = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
        try:  # SIGINT is set because it is ignored in what a shell starts in the background
            _measure(args, plans, run)
            whole = True
        except KeyboardInterrupt:
            tell("interrupted; this is what was measured")
        finally:
            for number, handler in was.items():
                signal.signal(number, handler)
    if not run.cells:
        return 1
    _keep(args, run)
    print(tables(run))
    return 0 if whole else 130


def _measure(args: argparse.Namespace, plans: Sequence[Plan], run: Run) -> None:
    """Run the plan of the first place, then the other plan on the others."""
    begun = time.monotonic()
    if args.whole_day:
        os.environ[WHOLE_DAY] = "1"
    for number, name in enumerate(args.places.split(",")):
        try:
            with place(name, args.dir) as directory:
                run_plan(plans[min(number, 1)], name, directory, run, tell)
        except Missing as exc:
            tell(f"{name}: left out, {exc}")
        if args.json and run.cells:  # whatever happens to the next place
            args.json.parent.mkdir(parents=True, exist_ok=True)
            run.save(args.json)
    tell(f"{time.monotonic() - begun:.0f} s")


def _keep(args: argparse.Namespace, run: Run) -> None:
    """Write the JSON, the pictures and the page that were asked for."""
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        run.save(args.json)
    if args.docs:
        PICTURES.mkdir(exist_ok=True)
        run.save(RUN)
        PAGE.write_text(filled(PAGE.read_text(), run))
    for directory in [args.plots] * bool(args.plots) + [PICTURES] * args.docs:
        try:
            for path in plots(run, directory):
                tell(f"wrote {path}")
        except Missing as exc:
            tell(f"no plots: {exc}")


def tell(line: str) -> None:
    """Say how it goes."""
    print(line, file=sys.stderr, flush=True)


def vars_of(args: argparse.Namespace) -> dict[str, object]:
    """Return what the figures depend on."""
    return {"rounds": args.rounds, "seconds": args.seconds, "scale": args.scale, "whole_day": args.whole_day}


def _plan(args: argparse.Namespace, only: str) -> Plan:
    peers = args.peers.split(",") if args.peers else []
    if unknown := [p for p in peers if p not in BY_KEY]:
        raise Missing(f"no peer {unknown[0]!r}; there are {', '.join(BY_KEY)}")
    return Plan(_chosen(only, args.skip), peers, args.rounds, args.seconds, args.scale, args.seed)


def _chosen(only: str, skip: str) -> list[Entry]:
    """Return the workloads whose names are in `only` or start with something in it, without those in `skip`."""
    none = _named(skip) if skip else set()
    chosen = [e for e in WORKLOADS if e.name in _named(only) and e.name not in none]
    if not chosen:
        raise Missing(f"no workload {only!r}; there are {', '.join(BY_NAME)}")
    return chosen


def _named(patterns: str) -> set[str]:
    """Return the workloads of these names, or if there is none of a name, those that start with it."""
    return {n for p in patterns.split(",") for n in BY_NAME if n == p or (p not in BY_NAME and n.startswith(p))}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", default="", help="workloads by the start of their names, with commas between")
    parser.add_argument("--elsewhere", default="", help="the workloads on the places after the first, if not the same")
    parser.add_argument("--skip", default="", help="workloads to leave out, likewise")
    parser.add_argument("--peers", default="", help="peers by key, with commas between")
    parser.add_argument("--places", default="ext4", help="ext4, xfs (on loop devices), plain; with commas between")
    parser.add_argument("--dir", type=Path, default=Path(), help="where images and plain directories are made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a rate is measured")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies how many messages are populated")
    parser.add_argument("--whole-day", action="store_true", help="replay the whole day (864 s a cell), not an hour")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the run here")
    parser.add_argument("--plots", type=Path, help="draw into this directory")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing: show these runs, later ones first")
    parser.add_argument("--docs", action="store_true", help="write the generated parts of docs/benchmarks.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
