"""`timers compare`: every scheme and Python's own timers on one workload; the paper's table with measured numbers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...show.output import Column, Output
from ...signals import interruptible
from ...timers.contestants import Contestant, contestants
from ...timers.measure import Cost, measure
from ...timers.plot import draw, pyplot
from ...verb import verb


@verb(
    "compare",
    """
    $ filewheel timers compare
    $ filewheel timers compare --n 1000 --seconds 0.01 --json
    """,
    wheel=False,
)
@click.option(
    "--n", "sizes", type=click.IntRange(1, 10_000_000), multiple=True, metavar="N",
    help="How many timers are pending. Repeatable.  [default: 1000 and 10000]",
)  # fmt: skip
@click.option(
    "--seconds", type=click.FloatRange(0.001, 10), default=0.05, show_default=True, metavar="S",
    help="How long each figure is measured. Longer is steadier.",
)  # fmt: skip
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw cost against n into this SVG.")
def compare(out: Output, sizes: tuple[int, ...], seconds: float, plot: Path | None) -> None:
    """Measure what a start and a stop cost with n timers pending.

    All timers get the same work: n that stay pending, due in one to two hours, and rounds of starts and stops beside
    them. START, STOP and TICK are the costs as the literature has them, for a start, a stop, and a tick with nothing
    due. The columns with a number are nanoseconds for a start and a stop together with so many pending; the last one
    is for a tick with the most. Medians of five rounds, in one thread.

    A contestant that would take minutes is measured with fewer: a list with 100,000 at most, threads with 100. The
    whole benchmark, with memory and goals, is `python -m tests.bench.timers` in a checkout.
    """
    wanted = sorted(set(sizes)) or [1000, 10_000]
    if plot is not None:
        pyplot()  # a missing library is said before anything is measured
    costs: list[Cost] = []
    every = contestants()
    with interruptible(), out.progress("measured", len(every)) as progress:
        for contestant in every:
            for cost in measure(contestant, wanted, seconds):
                costs.append(cost)
                if out.wants_json:
                    out.record(_names(contestant) | asdict(cost))
            progress.add(1)
    if plot is not None:
        draw(costs, plot)
        out.note(f"wrote {plot}")
    if not out.wants_json:
        _table(out, every, costs, wanted)


def _names(contestant: Contestant) -> dict[str, str]:
    return {"start": contestant.start_cost, "stop": contestant.stop_cost, "tick": contestant.tick_cost}


def _table(out: Output, every: list[Contestant], costs: list[Cost], wanted: list[int]) -> None:
    columns = [Column("TIMER"), Column("START"), Column("STOP"), Column("TICK")]
    columns += [Column(f"{n:,}", right=True) for n in wanted] + [Column("TICK, ns", right=True)]
    rows = []
    for contestant in every:
        found = {cost.pending: cost for cost in costs if cost.name == contestant.name}
        cells = [_ns(found[n].pair_ns) if n in found else "-" for n in wanted]
        name = contestant.name
        if not set(found) & set(wanted):
            (n,) = found
            cells[0], name = _ns(found[n].pair_ns), f"{name} at {n:,}"
        tick = found[max(found)].tick_ns
        symbols = (contestant.start_cost, contestant.stop_cost, contestant.tick_cost)
        rows.append([name, *symbols, *cells, "-" if tick is None else _ns(tick)])
    out.table(columns, rows)


def _ns(value: float) -> str:
    """Return at most six characters, so that the table keeps its width on a slow machine."""
    return f"{value:,.0f}" if value < 100_000 else f"{value / 1e6:,.1f}M"
