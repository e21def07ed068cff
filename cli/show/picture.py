"""Draws the time ahead as bars, and counts as rows.

Invariant: every count above 0 is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from filewheel.live.ahead import BarRow
from filewheel.live.ahead import CountsAhead as CountsAhead

from .text import count, local, pad, width

Style = Callable[[str, str], str]
"""(text, role) → coloured text; roles are bar, axis, title, late."""


def label(view: BarRow, i: int) -> str:
    """Return the label of a view's i-th bar."""
    if i == 0 and view.step_s == 1:
        return "now"
    return f"+{i}s" if view.step_s == 1 else f"{local(view.edge(i)):%H:%M}"


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


def axis(view: BarRow, *, blocks: bool) -> str:
    """Draw the line under the bars, with its labels."""
    mark, line = ("┴", "─") if blocks else ("+", "-")
    parts = [f"{mark}{label(view, i)}".ljust(view.tick, line) for i in range(0, view.bars, view.tick)]
    return "".join(parts)[: view.bars]


def draw_view(view: BarRow, counts: list[int], height: int, style: Style, *, blocks: bool) -> list[str]:
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
