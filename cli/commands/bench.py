"""`bench`: the figures of the documentation, on this machine, with the shape of it.

Each target works on a temporary wheel in the directory that is given, because the file system decides what a flush
costs: a home directory, a tmpfs and a journaled disk tell three different stories.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from ..bench import enqueue, fire
from ..bench.figure import Figure, Report, machine, median
from ..output import Output
from ..verb import verb

Run = Callable[[Path, int, Report], None]

TARGETS: dict[str, tuple[str, int, Run]] = {
    "enqueue": ("single enqueues, against the bare system calls", 5_000, enqueue.run),
    "batches": ("batches of 1,000, durable, with the keeper dealing", 1_000_000, enqueue.batches),
    "fire": ("firing and acknowledging a backlog", 500_000, fire.backlog),
    "lateness": ("messages on time, COUNT a second for ten seconds", 1_000, lambda d, n, r: fire.lateness(d, n, 10, r)),
    "second": ("one second that holds COUNT messages", 500_000, fire.second),
    "pending": ("memory, files and start with COUNT messages pending", 1_000_000, fire.pending),
}


@verb(
    "bench",
    """
    $ filewheel bench enqueue --count 300
    $ filewheel bench lateness --count 100 --dir /tmp --json
    """,
)
@click.argument("target", type=click.Choice([*TARGETS, "all"]))
@click.option("--count", type=click.IntRange(min=100), help="How many messages.  [default: each target's own]")
@click.option(
    "--dir", "where", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path(),
    help="Where to put the temporary wheel.  [default: here]",
)  # fmt: skip
@click.option("--runs", type=click.IntRange(min=1), default=1, help="Measure so often; print the medians.")
def command(out: Output, target: str, count: int | None, where: Path, runs: int) -> None:
    """Measure this machine. Needs nothing but room; leaves nothing behind.

    Targets: enqueue, batches, fire, lateness, second, pending, or all of them. Where a figure has a yardstick that is
    measured, both come from the same run.
    """
    shape = machine(where)
    if out.wants_json:
        out.record({"machine": shape})
    else:
        out.write("   ".join(f"{key}: {value}" for key, value in shape.items()))
    directory = Path(tempfile.mkdtemp(prefix="filewheel-bench-", dir=where))
    try:
        for name in TARGETS if target == "all" else [target]:
            what, default, run = TARGETS[name]
            found: dict[str, list[Figure]] = {}
            for number in range(runs):
                out.note(f"{name}: {what} ..." + (f" {number + 1} of {runs}" if runs > 1 else ""))
                run(directory, count or default, lambda f, found=found: found.setdefault(f.name, []).append(f))  # type: ignore[misc]
            for figures in found.values():
                _print(out, name, replace(figures[0], value=median([f.value for f in figures])))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _print(out: Output, target: str, figure: Figure) -> None:
    if out.wants_json:
        out.record(
            {
                "target": target,
                "name": figure.name,
                "value": round(figure.value, 4),
                "unit": figure.unit,
                "yardstick": figure.yardstick,
            }
        )
    else:
        number = f"{figure.value:,.0f}" if abs(figure.value) >= 1000 else f"{figure.value:.3g}"
        unit = figure.unit if figure.unit.startswith("/") or not figure.unit else f" {figure.unit}"
        out.write(f"  {figure.name:<66} {number + unit:>16}  {figure.yardstick}".rstrip())
    out.flush()
