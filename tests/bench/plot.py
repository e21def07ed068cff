"""Pictures of a run, as SVG with text as text.

Colours of Okabe and Ito, which colour-blind people can tell apart, and a marker for each; no background, and a grey
that can be read on white and on black.

Invariant: the same run makes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.result import Run
from tests.bench.store import Missing
from tests.bench.stores import BOUNDED, BY_KEY, DURABLE, RELAXED
from tests.bench.workloads import BY_NAME
from tests.bench.workloads.growth import LEVELS

GREY = "#7a7a7a"
OURS = "#d55e00"
_OTHERS = "#56b4e9"
_LIMIT = "#b0b0b0"
LINES = {
    "filewheel": (OURS, "o"),
    "sqlite": ("#0072b2", "s"),
    "sqlite-clustered": ("#56b4e9", "D"),
    "redis": ("#cc79a7", "^"),
    "beanstalkd": ("#009e73", "v"),
    "rocksdb": ("#e69f00", "P"),
    "lmdb": ("#8c6bb1", "X"),
    "bare": (_LIMIT, "."),
}
MAIN = {
    "one": "rate", "threads": "rate", "processes": "rate", "batch-1000": "rate", "sustained": "until settled",
    "fire": "rate",
}  # fmt: skip
SINGLES = ("one", "threads", "processes")
GROWTH = {
    "one at": ("one enqueue", "µs"),
    "batches of 1,000 at": ("a message in batches of 1,000", "µs"),
    "memory at": ("memory of consumer and server", "MiB"),
    "open and first fire at": ("open and first fire", "s"),
    "open files at": ("open files", ""),
}
RATES = (100, 1000, 10_000)


def pyplot() -> Any:
    """Return matplotlib's pyplot, set up. Raises Missing without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as exc:
        raise Missing("matplotlib is not installed") from exc
    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "svg.fonttype": "none", "svg.hashsalt": "filewheel", "font.family": "sans-serif", "font.size": 8,
            "text.color": GREY, "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY,
            "ytick.color": GREY, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.facecolor": "none",
            "axes.spines.top": False, "axes.spines.right": False, "xtick.minor.bottom": False,
            "ytick.minor.left": False, "grid.color": GREY, "grid.alpha": 0.25, "grid.linewidth": 0.5,
            "legend.frameon": False, "figure.constrained_layout.use": True,
        }
    )  # fmt: skip
    return plt


def plots(run: Run, directory: Path) -> list[Path]:
    """Draw what a run has figures for; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    place = run.places()[0]
    drawn = {
        "rates-durable": _bars(run, place, (DURABLE,), list(MAIN), columns=2),
        "rates-relaxed": _bars(run, place, (BOUNDED, RELAXED), list(SINGLES), columns=1),
        "batches": _batches(run, place),
        "growth": _growth(run, place),
        "lateness": _lateness(run, place),
    }
    files = []
    for name, figure in drawn.items():
        if figure is not None:
            files.append(directory / f"{name}.svg")
            figure.savefig(files[-1], transparent=True, metadata={"Date": None, "Creator": None})
            pyplot().close(figure)
    return files


def _bars(run: Run, place: str, promises: Sequence[str], workloads: Sequence[str], columns: int) -> Any:
    """Draw the main rates: a panel for each workload, a bar for each peer, the quickest at the top."""
    panels = []
    for name in workloads:
        rates = {p: c.median(MAIN[name]) for p, c in run.peers(place, name) if BY_KEY[p].promise in promises}
        known = sorted((rate, peer) for peer, rate in rates.items() if rate)
        if known:
            panels.append((BY_NAME[name].title, known))
    if not panels:
        return None
    lines = -(-len(panels) // columns)
    tallest = max(len(known) for _, known in panels)
    least, most = (pick(rate for _, known in panels for rate, _ in known) for pick in (min, max))
    figure, axes = pyplot().subplots(
        lines, columns, figsize=(4.6 * columns, lines * (0.7 + 0.2 * tallest)), squeeze=False, sharex=True
    )
    for axis, (title, known) in zip(axes.flat, panels, strict=False):
        colours = [_LIMIT if p.startswith("bare") else OURS if p.startswith("filewheel") else _OTHERS for _, p in known]
        bars = axis.barh([BY_KEY[p].title for _, p in known], [rate for rate, _ in known], color=colours, height=0.7)
        axis.bar_label(bars, [f"{rate:,.0f}" for rate, _ in known], padding=3, color=GREY, fontsize=7)
        axis.set(xscale="log", title=title, xlabel="messages a second")
        axis.set_xlim(10 ** math.floor(math.log10(least)), most * 8)  # room for the longest bar's figure
        _plain(axis.xaxis)
        axis.grid(axis="x")
        axis.tick_params(axis="y", length=0)
        axis.tick_params(axis="x", labelbottom=True)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    return figure


def _line(axis: Any, peer: str, points: Sequence[tuple[float, float | None]]) -> None:
    known = [(x, y) for x, y in points if y]
    if known:
        colour, marker = LINES[peer]
        axis.plot(
            *zip(*known, strict=True), color=colour, marker=marker, markersize=5, label=BY_KEY[peer].title,
            linewidth=2.2 if peer == "filewheel" else 1.3, linestyle=":" if peer == "bare" else "-",
        )  # fmt: skip


def _frame(axis: Any, title: str, x: str, y: str) -> None:
    axis.set(xscale="log", yscale="log", title=title, xlabel=x, ylabel=y)
    low, high = axis.get_ylim()
    axis.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    _plain(axis.xaxis)
    _plain(axis.yaxis)
    axis.grid()


def _plain(axis: Any) -> None:
    """Label powers of ten as numbers, and nothing between them."""
    axis.set_major_formatter(lambda value, _: _short(value))
    axis.set_minor_formatter(lambda value, _: "")


def _short(value: float) -> str:
    """Write a power of ten: 0.01, 100, 10 k, 1 M."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:,.0f}{letter}"
    return f"{value:g}"


def _legend(figure: Any, axes: Any, columns: int) -> None:
    entries = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns)


def _batches(run: Run, place: str) -> Any:
    """Draw the rate against the size of a batch; a single enqueue is a batch of one."""
    sizes = {1: "one", **{n: f"batch-{n}" for n in (10, 100, 1000, 10_000)}}
    if not any(w.startswith("batch-") for _, w, _ in run.cells):
        return None
    figure, axis = pyplot().subplots(figsize=(6.5, 4.4))
    for peer in LINES:
        _line(axis, peer, [(n, run.median(place, w, peer, "rate")) for n, w in sizes.items()])
    _frame(axis, "enqueue in batches, durable", "messages in a batch", "messages a second")
    _legend(figure, [axis], 3)
    return figure


def _growth(run: Run, place: str) -> Any:
    """Draw five costs against what is pending."""
    if not any(w == "growth" for _, w, _ in run.cells):
        return None
    figure, axes = pyplot().subplots(2, 3, figsize=(9, 5.2))
    for axis, (metric, (title, unit)) in zip(axes.flat, GROWTH.items(), strict=False):
        for peer in ("filewheel", "sqlite", "redis"):
            _line(axis, peer, [(n, run.median(place, "growth", peer, f"{metric} {n:,}")) for n in LEVELS])
        _frame(axis, title, "pending", unit)
    axes.flat[-1].remove()
    _legend(figure, axes.flat[:5], 3)
    return figure


def _lateness(run: Run, place: str) -> Any:
    """Draw how late messages are, at three rates."""
    if not any(w.startswith("late-") for _, w, _ in run.cells):
        return None
    figure, axes = pyplot().subplots(1, 3, figsize=(9, 3.2), sharey=True)
    titles = {"p50": "median", "p99": "99th percentile", "max": "the latest"}
    for axis, metric in zip(axes, titles, strict=True):
        for peer in ("filewheel", "sqlite", "redis"):
            _line(axis, peer, [(n, run.median(place, f"late-{n}", peer, metric)) for n in RATES])
    for axis, (metric, title) in zip(axes, titles.items(), strict=True):  # they share an axis: after all lines
        _frame(axis, title, "messages a second", "ms late" if metric == "p50" else "")
    _legend(figure, axes, 3)
    return figure
