"""Keys of a terminal, one at a time and without an echo.

Invariant: on the way out, by any way but SIGKILL, the terminal is as it was.
"""

from __future__ import annotations

import os
import select
import sys
import termios
from types import TracebackType
from typing import Any, Self

_SEQUENCES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "page-up", "\x1b[6~": "page-down",
    "\x1b[H": "home", "\x1b[F": "end", "\x1b": "escape", "\r": "enter", "\n": "enter", "\t": "tab",
    "\x1b[Z": "back-tab", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
_ESCAPE_S = 0.05
"""How long the rest of a sequence may take: over ssh it comes in one packet, or in two."""
_BYTES = 64


class Keyboard:
    """The keys of stdin. A context manager; stdin is a terminal."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None
        self._typed = ""

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C stays a signal
        mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the picture on the shell's screen
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, timeout_s: float, also: int) -> list[str]:
        """Return the keys that were typed, by name; wait for one, for the descriptor `also`, or for a time.

        Raises EOFError when the terminal has gone.
        """
        ready, _, _ = select.select([self._fd, also], [], [], timeout_s)
        if also in ready:
            os.read(also, _BYTES)
        if self._fd not in ready:
            return []
        self._read()
        if self._typed.endswith(("\x1b", "\x1b[")) and select.select([self._fd], [], [], _ESCAPE_S)[0]:
            self._read()
        typed, self._typed = self._typed, ""
        return list(_names(typed))

    def _read(self) -> None:
        data = os.read(self._fd, _BYTES)
        if not data:
            raise EOFError
        self._typed += data.decode(errors="replace")


def _names(typed: str) -> list[str]:
    found = []
    while typed:
        sequence = next((s for s in sorted(_SEQUENCES, key=len, reverse=True) if typed.startswith(s)), None)
        if sequence is None:
            found.append(typed[0])
            typed = typed[1:]
            continue
        found.append(_SEQUENCES[sequence])
        typed = typed[len(sequence) :]
    return found
