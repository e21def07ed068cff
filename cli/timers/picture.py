"""A hierarchical wheel drawn in lines of text: a row for each level, its slots, and the hand below.

Invariant: no line is wider than what was asked for, and each picture of a wheel has the same number of lines.
"""

from __future__ import annotations

from filewheel.timers import Hierarchical

_LABEL = 22
_CELL_MOST = 4


def picture(wheel: Hierarchical[str], columns: int, *, blocks: bool) -> list[str]:
    """Return two lines a level: how many timers wait in each slot, and the hand.

    Where the slots are more than the columns, a column stands for several slots that lie side by side.
    """
    lines = []
    room = max(8, columns - _LABEL - 2)
    for number, (level, span) in enumerate(zip(wheel.levels, wheel.spans, strict=False), 1):
        group = -(-len(level) // room)
        counts = [sum(len(slot) for slot in level[at : at + group]) for at in range(0, len(level), group)]
        cell = max(1, min(_CELL_MOST, room // len(counts)))
        hand = wheel.hand // span % len(level) // group
        label = f"level {number}, slot = {_short(span * group)}"
        cells = "".join(_cell(count, cell, blocks=blocks) for count in counts)
        lines.append(f"{label:<{_LABEL}}{cells}".rstrip())
        lines.append(" " * (_LABEL + hand * cell + (cell - 1) // 2) + ("▲" if blocks else "^"))
    return lines


def _cell(count: int, cell: int, *, blocks: bool) -> str:
    text = ("·" if blocks else ".") if not count else str(count) if len(str(count)) < max(2, cell) else "+"
    return text.center(cell) if cell > 1 else text


def _short(ticks: int) -> str:
    """Return a count of ticks in at most six characters."""
    return str(ticks) if ticks < 100_000 else f"{ticks:.0e}".replace("e+0", "e")
