"""A screen that is drawn over: of each frame only the lines that changed are sent, so a slow line keeps up.

Invariant: on the way out the shell's screen is there again, with its cursor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class Screen:
    """The alternate screen of the terminal at stdout. A context manager."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._size = (0, 0)

    def __enter__(self) -> Self:
        self._send(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(_LEAVE)

    def draw(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Show these lines, on a terminal of so many columns and rows."""
        parts = []
        if size != self._size:
            self._size, self._shown = size, []
            parts.append("\x1b[2J")
        lines = list(lines)[: size[1]]
        for row in range(max(len(lines), len(self._shown))):
            line = lines[row] if row < len(lines) else ""
            if row >= len(self._shown) or self._shown[row] != line:
                parts.append(f"\x1b[{row + 1};1H{line}\x1b[K")
        self._shown = lines
        self._send("".join(parts))

    def _send(self, text: str) -> None:
        if text:
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
