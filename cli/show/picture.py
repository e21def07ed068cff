"""A picture of the time ahead: the messages due in each second of the next minute, minute of the next hour, and so on.

Bars start at whole seconds, minutes and half hours: most files of the wheel fit between two edges and are counted by
their headers, and the labels are familiar times. A view ends exactly a minute, an hour or a day from now, so its first
and last bars are partial. Overdue messages are counted separately.
Invariant: each message is counted once in each view that reaches as far as its due time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from filewheel import Histogram
from filewheel.tools.dump import iso

from ..times import US_PER_S
from .text import count, local, pad, width

_DAY_S = 86_400
_BEYOND = ((2, "1 to 2 days"), (7, "2 to 7 days"), (28, "1 to 4 weeks"), (365, "1 to 12 months"))

Style = Callable[[str, str], str]
"""(text, role) → coloured text; roles are bar, axis, title, late."""


@dataclass(frozen=True)
class View:
    """A row of bars, equal in time except for the partial ends."""

    name: str
    unit: str
    start_us: int
    step_s: int
    end_us: int
    bars: int
    tick: int
    """The number of bars per label."""

    def edge(self, i: int) -> int:
        """Return the start of the i-th bar."""
        return min(self.end_us, self.start_us + i * self.step_s * US_PER_S)

    def label(self, i: int) -> str:
        """Return the label of the i-th bar."""
        if i == 0 and self.step_s == 1:
            return "now"
        return f"+{i}s" if self.step_s == 1 else f"{local(self.edge(i)):%H:%M}"


def views(now_us: int) -> list[View]:
    """Return the three views of the time ahead."""

    def view(name: str, unit: str, step_s: int, bars: int, tick: int) -> View:
        step_us = step_s * US_PER_S
        return View(name, unit, now_us // step_us * step_us, step_s, now_us + bars * step_us, bars + 1, tick)

    return [
        view("next minute", "a second", 1, 60, 10),
        view("next hour", "a minute", 60, 60, 10),
        view("next day", "half an hour", 1800, 48, 8),
    ]


class Ahead:
    """The counts of the time ahead, between the edges that it chooses."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.views = views(now_us)
        day = self.views[-1]
        self.beyond = [(label, day.start_us + days * _DAY_S * US_PER_S) for days, label in _BEYOND]
        edges = {now_us, *(end for _, end in self.beyond)}
        for view in self.views:
            edges.update(view.edge(i) for i in range(view.bars + 1))
        self.edges_us = sorted(edges)
        self._below: dict[int, int] = {}
        self._after = 0

    def fill(self, histogram: Histogram) -> None:
        """Take the counts between the edges."""
        total = histogram.before
        for edge, inside in zip(histogram.edges_us, [*histogram.counts, 0], strict=True):
            self._below[edge] = total
            total += inside
        self._after = histogram.after

    def _between(self, start_us: int, end_us: int) -> int:
        start_us, end_us = max(start_us, self.now_us), max(end_us, self.now_us)
        return self._below[end_us] - self._below[start_us]

    @property
    def overdue(self) -> int:
        """The number of overdue messages."""
        return self._below[self.now_us]

    def counts(self, view: View) -> list[int]:
        """Return a view's bars."""
        return [self._between(view.edge(i), view.edge(i + 1)) for i in range(view.bars)]

    def far(self) -> list[tuple[str, int]]:
        """Return the counts beyond the next day, row by row."""
        rows = []
        day = self.views[-1]
        start = day.edge(day.bars)
        for label, end in self.beyond:
            rows.append((label, self._between(start, end)))
            start = end
        return [*rows, ("later", self._after)]

    def to_json(self) -> dict[str, Any]:
        """Return all counts."""
        shown = {
            view.name.removeprefix("next "): {
                "start": iso(view.start_us),
                "step_s": view.step_s,
                "counts": self.counts(view),
            }
            for view in self.views
        }
        return {"now": iso(self.now_us), "overdue": self.overdue, **shown, "beyond": dict(self.far())}


# -- drawing --------------------------------------------------------------------------------------------------

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:|"


def bars(counts: Sequence[int], height: int, *, blocks: bool) -> list[str]:
    """Draw counts as upright bars of `height` lines, from the top down. Every count above 0 is visible."""
    glyphs = _EIGHTHS if blocks else _ASCII
    steps = len(glyphs) - 1
    top = max(counts, default=0)
    levels = [max(1, round(c * height * steps / top)) if c else 0 for c in counts]
    return [
        "".join(glyphs[min(steps, max(0, level - row * steps))] for level in levels).rstrip()
        for row in reversed(range(height))
    ]


def lying_bar(number: int, most: int, columns: int, *, blocks: bool) -> str:
    """Draw one count as a horizontal bar."""
    if not number or not most:
        return ""
    eighths = max(1, round(number * columns * 8 / most))
    if not blocks:
        return "#" * max(1, eighths // 8)
    return "█" * (eighths // 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]


def axis(view: View, *, blocks: bool) -> str:
    """Draw the line under the bars, with its labels."""
    mark, line = ("┴", "─") if blocks else ("+", "-")
    parts = [f"{mark}{view.label(i)}".ljust(view.tick, line) for i in range(0, view.bars, view.tick)]
    return "".join(parts)[: view.bars]


def draw_view(view: View, counts: list[int], height: int, style: Style, *, blocks: bool) -> list[str]:
    """Draw one view: a title, the bars, the axis."""
    total, top = sum(counts), max(counts)
    title = style(view.name.ljust(13), "title")
    if not total:
        return [f"{title}nothing due"]
    peak = f", at most {top:,} in {view.unit}" if total > 1 else ""
    lines = [f"{title}{count(total, 'message')}{peak}"]
    lines += [f"  {style(line, 'bar')}" for line in bars(counts, height, blocks=blocks)]
    lines.append(f"  {style(axis(view, blocks=blocks), 'axis')}")
    return lines


def draw_rows(
    title: str, rows: Sequence[tuple[str, int]], style: Style, *, blocks: bool, columns: int = 80
) -> list[str]:
    """Draw labelled counts as horizontal bars. The labels are safe and cut."""
    if not any(number for _, number in rows):
        return []
    left = max(width(label) for label, _ in rows) + 2
    most = max(number for _, number in rows)
    digits = len(f"{most:,}")
    room = max(10, columns - 10 - left - digits)
    lines = [style(title, "title")]
    for label, number in rows:
        bar = style(lying_bar(number, most, room, blocks=blocks), "bar")
        lines.append(f"  {pad(label, left)}{number:>{digits},}  {bar}".rstrip())
    return lines
