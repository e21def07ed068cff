"""A progress line on stderr for a long job.

It appears only when the job takes a while, is redrawn a few times a second, and is erased at the end, so that only the
job's output stays on the terminal. `output` checks for a terminal.
Invariant: a hidden progress writes nothing, and a shown one leaves nothing behind.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from .text import span

_SHOW_AFTER_S = 0.4
_EVERY_S = 0.1
_BAR = 24


class ProgressLine:
    """Counts up to `total`, which may be unknown (None)."""

    def __init__(self, label: str, total: int | None, stream: TextIO | None, *, blocks: bool = True) -> None:
        self._label = label
        self.total = total
        self._stream = stream
        self._full, self._empty = ("━", "─") if blocks else ("#", "-")
        self._start = self._drawn = time.monotonic()
        self._visible = False
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def add(self, count: int) -> None:
        """Add to the work done."""
        self.at(self.done + count)

    def at(self, done: int) -> None:
        """Set the work done."""
        self.done = done
        if self._stream is None:
            return
        now = time.monotonic()
        if now - self._drawn >= (_EVERY_S if self._visible else _SHOW_AFTER_S):
            self._drawn = now
            self._visible = True
            self._stream.write(f"\r\x1b[K{self._line(now)}")
            self._stream.flush()

    @property
    def is_shown(self) -> bool:
        """Whether the line is visible."""
        return self._stream is not None

    def tell(self, line: str) -> None:
        """Draw the caller's line at once, made safe and cut to the width."""
        if self._stream is None:
            return
        self._visible = True
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()

    def clear(self) -> None:
        """Erase the line, before other output and at the end."""
        if self._visible and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._visible = False

    def _line(self, now: float) -> str:
        if not self.total:
            return f"{self._label}  {self.done:,}"
        share = min(1.0, self.done / self.total)
        filled = int(share * _BAR)
        bar = self._full * filled + self._empty * (_BAR - filled)
        left = (now - self._start) * (1 - share) / share if share > 0.01 else 0
        rest = f"  {span(int(left) * 1_000_000)} left" if left >= 1 else ""
        return f"{self._label}  {bar} {share:4.0%}{rest}"
