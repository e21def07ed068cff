"""The costs against the number of pending timers, on log axes, as SVG. Needs matplotlib.

Colours of Okabe and Ito, and a marker for each, so that nothing depends on colour alone.
Invariant: the same costs make the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.plot import OURS, pyplot
from tests.bench.timers.measure import Cost

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6bb1", "#a6761d", "#999999")
_MARKERS = "os^vDPX<>dph*"


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Draw two panels into a file: start and stop together, and a tick. Raises Missing without it."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.2))
    names = list(dict.fromkeys(cost.name for cost in costs))
    for axis, title in zip(axes, ("start + stop", "a tick with nothing due"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="pending timers", ylabel="ns")
        axis.set_title(title)
        axis.grid(visible=True)
    for number, name in enumerate(names):
        mine = [cost for cost in costs if cost.name == name]
        style = {
            "label": name, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.2,
            "color": OURS if name == "LoopWheel" else _COLOURS[number % len(_COLOURS)],
        }  # fmt: skip
        axes[0].plot([c.pending for c in mine], [c.pair_ns for c in mine], **style)
        ticks = [(c.pending, c.tick_ns) for c in mine if c.tick_ns is not None]
        if ticks:
            axes[1].plot(*zip(*ticks, strict=True), **style)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None}, format="svg")
    plt.close(figure)
