"""The wheel as a ring of seconds, for the demo: a slot for each second.

Pure drawing: counts in, lines of text out. As in a timing wheel, the slots stay in place and the pointer moves one slot
per second.
Invariant: a frame always has the same number of lines, so that it can be drawn over the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

SLOTS = 20
HEIGHT = 15
WIDTH = 68
_RADIUS_X = 29
_RADIUS_Y = 6.6
_GLYPHS = "▁▂▃▄▅▆▇█"

Style = Callable[[str, str], str]
"""(text, role) → coloured text; roles are full, empty, hand, hub."""


def place(slot: int) -> tuple[int, int]:
    """Return the row and the column of a slot's middle; slot 0 is at the top, and they go clockwise."""
    angle = 2 * math.pi * slot / SLOTS
    row = round((HEIGHT - 1) / 2 - _RADIUS_Y * math.cos(angle))
    return row, round(WIDTH / 2 + _RADIUS_X * math.sin(angle))


def cell(count: int, most: int, *, hand: bool, blocks: bool) -> tuple[str, str]:
    """Return a slot's text, five columns wide, and its role."""
    if count and blocks:
        text = f"{_GLYPHS[min(7, count * 8 // (most + 1))]}{count}"
    else:
        text = str(count) if count else ("·" if blocks else ".")
    if hand:
        return f"[{text}]".center(5), "hand"
    return text.center(5), "full" if count else "empty"


def draw(counts: Sequence[int], now_slot: int, hub: Sequence[str], style: Style, *, blocks: bool) -> list[str]:
    """Draw the ring: `counts[i]` are due in the slot that the pointer reaches in i seconds."""
    rows: list[list[tuple[int, str, str]]] = [[] for _ in range(HEIGHT)]
    most = max(*counts, 8)
    for ahead in range(SLOTS):
        row, column = place((now_slot + ahead) % SLOTS)
        text, role = cell(counts[ahead], most, hand=ahead == 0, blocks=blocks)
        rows[row].append((column - 2, text, role))
    top = (HEIGHT - len(hub)) // 2
    for i, line in enumerate(hub):
        rows[top + i].append(((WIDTH - len(line)) // 2, line, "hub"))
    return [_compose(parts, style) for parts in rows]


def _compose(parts: list[tuple[int, str, str]], style: Style) -> str:
    line = ""
    at = 0
    for column, text, role in sorted(parts):
        line += " " * (column - at) + style(text, role)
        at = max(at, column) + len(text)
    return line
