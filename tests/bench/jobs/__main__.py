"""`python -m tests.bench.jobs`: run the comparison of schedulers, or show one that was run."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.harness import Plan, run_plan
from tests.bench.jobs.measures import BY_NAME, MEASURES, Entry
from tests.bench.jobs.page import PAGE, RUN, filled, tables
from tests.bench.jobs.systems import BY_KEY
from tests.bench.machine import machine
from tests.bench.place import place
from tests.bench.result import Run, load_run
from tests.bench.store import Missing

CELL_S_MAX = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    args = arguments(argv)
    if args.show:
        print(tables(load_run(*args.show)))
        return 0
    peers = args.peers.split(",") if args.peers else []
    chosen = [e for e in MEASURES if any(e.name.startswith(o) for o in args.only.split(","))]
    if not chosen or not set(peers) <= BY_KEY.keys():
        print(f"measures: {', '.join(BY_NAME)}; systems: {', '.join(BY_KEY)}", file=sys.stderr)
        return 2
    run = Run({**machine(), "plan": {"rounds": args.rounds, "seconds": args.seconds, "scale": args.scale}})
    status = _measure(args, chosen, peers, run)
    if not run.cells:
        return status or 1
    if args.json:
        run.save(args.json)
    if args.docs and not status:
        run.save(RUN)
        PAGE.write_text(filled(PAGE.read_text(), run))
    print(tables(run))
    return status


def _measure(args: argparse.Namespace, chosen: Sequence[Entry], peers: list[str], run: Run) -> int:
    """Run what was chosen; what was measured until an interruption is kept."""
    begun = time.monotonic()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with place(args.place, args.dir) as directory:
            for entry in chosen:
                plan = Plan(
                    [entry], peers, min(args.rounds, entry.rounds_max), args.seconds, args.scale, 1,
                    child="tests.bench.jobs.child", cell_s_max=CELL_S_MAX,
                )  # fmt: skip
                run_plan(plan, args.place, directory, run, tell)
    except Missing as exc:
        tell(f"{args.place}: {exc}; --place plain needs no root")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; this is what was measured")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    tell(f"{time.monotonic() - begun:.0f} s")
    return 0


def tell(line: str) -> None:
    """Say how it goes."""
    print(line, file=sys.stderr, flush=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.jobs", description=__doc__)
    parser.add_argument("--only", default="", help="measures by the start of their names, with commas between")
    parser.add_argument("--peers", default="", help="systems by key, with commas between")
    parser.add_argument("--place", default="ext4", help="ext4, xfs (on a loop device, as root) or plain")
    parser.add_argument("--dir", type=Path, default=Path(), help="where the image, or the plain directory, is made")
    parser.add_argument("--rounds", type=int, default=3, help="at most; lateness has two, and memory one")
    parser.add_argument("--seconds", type=float, default=3.0, help="a rate's longest; lateness takes twice as long")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies how many jobs there are")
    parser.add_argument("--json", type=Path, help="write the run here")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing: show these runs, later ones first")
    parser.add_argument("--docs", action="store_true", help="write the generated parts of docs/benchmarks-scheduler.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
