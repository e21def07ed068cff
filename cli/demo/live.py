"""A picture redrawn in place on a terminal, with the last events below it; elsewhere one line per second.

Invariant: a frame always has the same number of lines, so that it can be drawn over the one before.
"""

from __future__ import annotations

import sys
import time
from typing import Self

from ..show.output import Output
from ..show.text import clip, safe

_COLOURS = {"command": "cyan", "loss": "red"}


class Live:
    """The display of both plays. A context manager; a play provides the picture, and a line as its replacement."""

    def __init__(self, out: Output, *, rows: int, columns: int, events: int) -> None:
        self._out = out
        self._start = time.monotonic()
        self._events: list[tuple[str, str]] = []
        self._shown = events
        self._drawn = 0
        self._line_s = 0
        self.is_live = out.can_redraw and not out.json and out.rows > rows + events and out.columns >= columns

    def look(self) -> None:
        """Read the wheels and the records."""
        raise NotImplementedError

    def picture(self) -> list[str]:
        """Return the lines above the events."""
        raise NotImplementedError

    def line(self) -> str:
        """Return what the picture shows in one line."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self.is_live:
            sys.stdout.write("\x1b[?25l")  # hide the cursor
        return self

    def __exit__(self, *exc: object) -> None:
        if self.is_live:
            sys.stdout.write("\x1b[?25h")
            sys.stdout.flush()

    def tell(self, text: str, role: str = "") -> None:
        """Report an event; the role is "" for plain text, "command", or "loss"."""
        line = f"{time.monotonic() - self._start:5.1f} s  {'$ ' if role == 'command' else ''}{text}"
        self._events.append((line, role))
        if self.is_live:
            self.frame()
        else:
            self._out.say(line)

    def frame(self) -> None:
        """Look, and draw."""
        self.look()
        elapsed_s = time.monotonic() - self._start
        if self.is_live:
            self._draw()
        elif int(elapsed_s) > self._line_s:
            self._line_s = int(elapsed_s)
            self._out.say(f"{elapsed_s:5.1f} s  {self.line()}")

    def _draw(self) -> None:
        columns = self._out.columns - 1
        shown = self._events[-self._shown :]
        lines = self.picture()
        lines += [
            self._out.style(clip(safe(line), columns), _COLOURS.get(role), bold=bool(role)) for line, role in shown
        ]
        lines += [""] * (self._shown - len(shown))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(up + "".join(f"{line}\x1b[K\n" for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)
