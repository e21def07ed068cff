"""`python -m tests.bench.kafka`: measure the delay service and other ways on one broker, or show a run."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.kafka.measures import MEASURES, Measure, cell, load
from tests.bench.kafka.page import PAGE, RUN, filled, kafka_machine, tables
from tests.bench.kafka.rig import Failed, Rig
from tests.bench.kafka.sides import BY_KEY, SIDES
from tests.bench.result import Run, load_run
from tests.bench.store import Missing
from tests.kafka.jars import Unavailable

PLACE = "plain"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    args = arguments(argv)
    if args.show:
        shown = load_run(*args.show)
        if args.docs:
            _write_page(shown)
        print(tables(shown))
        return 0
    names = args.only.split(",") if args.only else [measure.name for measure in MEASURES]
    keys = args.sides.split(",") if args.sides else [side.key for side in SIDES]
    chosen = [measure for measure in MEASURES if measure.name in names]
    if not chosen or not set(keys) <= BY_KEY.keys():
        print(f"measures: {', '.join(m.name for m in MEASURES)}; sides: {', '.join(BY_KEY)}", file=sys.stderr)
        return 2
    run = Run({**kafka_machine(), "plan": {"rounds": args.rounds, "scale": args.scale, "pending": args.pending}})
    status = _measure(args, chosen, keys, run)
    if run.cells:
        if args.json:
            run.save(args.json)
        if args.docs and not status:
            _write_page(run)
        print(tables(run))
    return status


def _write_page(run: Run) -> None:
    run.save(RUN)
    PAGE.write_text(filled(PAGE.read_text(), run))


def _measure(args: argparse.Namespace, chosen: list[Measure], keys: list[str], run: Run) -> int:
    """Run what was chosen, the sides in turns; what was measured until an interruption is kept."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=args.dir))
    status = 0
    try:
        rig = Rig(folder / "broker")
        try:
            for number in range(args.rounds):
                for measure in chosen:
                    for key in keys[number % len(keys) :] + keys[: number % len(keys)]:
                        status |= _cell(args, rig, measure, key, number, folder, run)
        finally:
            rig.close()
    except Unavailable as exc:
        tell(f"no broker: {exc}")
        return 1
    except KeyboardInterrupt:
        tell("interrupted; this is what was measured")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder, ignore_errors=True)
    return status


def _cell(args: argparse.Namespace, rig: Rig, measure: Measure, key: str, number: int, folder: Path, run: Run) -> int:
    """Measure one side once; return 1 if it came to no end."""
    side = BY_KEY[key]
    if side.measures is not None and measure.name not in side.measures:
        return 0
    begun = time.monotonic()
    before = load()
    at = folder / f"{measure.name}-{key}-{number}"
    try:
        with cell(rig, side, at, args.scale, args.pending) as made:
            metrics = measure.play(made)
    except Missing as exc:
        run.at(PLACE, measure.name, key).missing = str(exc)
        return 0
    except Failed as exc:
        tell(f"{measure.name} {key}: {exc}")
        run.at(PLACE, measure.name, key).missing = "failed"
        return 1
    finally:
        shutil.rmtree(at, ignore_errors=True)
    run.at(PLACE, measure.name, key).add(number, metrics)
    shown = ", ".join(f"{metric.name} {metric.value:,.1f} {metric.unit}" for metric in metrics)
    tell(f"{measure.name} {key}: {shown} ({time.monotonic() - begun:.0f} s, load {before:.1f})")
    run.machine["load"] = max(before, load(), float(run.machine.get("load", 0.0)))
    return 0


def tell(line: str) -> None:
    """Say how it goes."""
    print(line, file=sys.stderr, flush=True)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kafka", description=__doc__)
    names = ", ".join(measure.name for measure in MEASURES)
    parser.add_argument("--only", default="", help=f"measures, with commas between: {names}")
    parser.add_argument("--sides", default="", help=f"sides, with commas between: {', '.join(BY_KEY)}")
    parser.add_argument("--dir", type=Path, default=None, help="where broker and nodes keep their data")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies how many records there are")
    parser.add_argument("--pending", type=int, default=1_000_000, help="how many records wait in `memory`")
    parser.add_argument("--json", type=Path, help="write the run here")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing: show these runs, later ones first")
    parser.add_argument("--docs", action="store_true", help="write the Kafka section of docs/benchmarks.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
