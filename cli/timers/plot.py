"""The costs against the number of pending timers, on log axes, as SVG. Needs matplotlib, the extra filewheel[plot].

Colours of Okabe and Ito, and a marker for each, so that nothing depends on colour alone.
Invariant: the same costs make the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filewheel import BadArgument

from .measure import Cost

_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6bb1", "#a6761d", "#999999")
_MARKERS = "os^vDPX<>dph*"
_OURS = "#d55e00"
_GREY = "#7a7a7a"
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "filewheel", "font.family": "sans-serif", "font.size": 8,
    "text.color": _GREY, "axes.labelcolor": _GREY, "axes.edgecolor": _GREY, "xtick.color": _GREY,
    "ytick.color": _GREY, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": _GREY, "grid.alpha": 0.25,
    "grid.linewidth": 0.5, "legend.frameon": False,
}  # fmt: skip


def pyplot() -> Any:
    """Return matplotlib's pyplot. Raises BadArgument where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as exc:
        raise BadArgument("a plot needs matplotlib", hint="pip install 'filewheel[plot]'") from exc
    mpl.use("svg")
    import matplotlib.pyplot as plt

    return plt


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Draw two panels into a file: start and stop together, and a tick. Raises BadArgument without matplotlib."""
    plt = pyplot()
    with plt.rc_context(_SETTINGS):
        figure, axes = plt.subplots(1, 2, figsize=(9.2, 4.2), layout="constrained")
        names = list(dict.fromkeys(cost.name for cost in costs))
        for axis, title in zip(axes, ("start + stop", "a tick with nothing due"), strict=True):
            axis.set(xscale="log", yscale="log", xlabel="pending timers", ylabel="ns")
            axis.set_title(title)
            axis.grid(visible=True)
        for number, name in enumerate(names):
            mine = [cost for cost in costs if cost.name == name]
            style = {
                "label": name, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.2,
                "color": _OURS if name == "LoopWheel" else _COLOURS[number % len(_COLOURS)],
            }  # fmt: skip
            axes[0].plot([c.pending for c in mine], [c.pair_ns for c in mine], **style)
            ticks = [(c.pending, c.tick_ns) for c in mine if c.tick_ns is not None]
            if ticks:
                axes[1].plot(*zip(*ticks, strict=True), **style)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None}, format="svg")
        plt.close(figure)
