"""What a person sees on a terminal: the last lines that a program has drawn."""

from __future__ import annotations

import re

_PART = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|([^\x1b\r\n]+)|(\n)|(\r)|(\x1b)")
_BEGUN = re.compile(r"\x1b(\[[?0-9;]*)?$")
"""An escape whose end is not read yet."""


class Seen:
    """A terminal's screen, after some output: as much of the language as `top` speaks, and nothing else."""

    def __init__(self, output: str, rows: int = 24) -> None:
        self.rows = rows
        self.lines = [""] * rows
        self.is_alternate = False
        self.has_cursor = True
        self.styles: set[str] = set()
        """The colours and weights that were used."""
        row = 0
        for private, numbers, command, text, newline, carriage, stray in _PART.findall(_BEGUN.sub("", output)):
            assert not stray, "an escape that no terminal knows"
            if text:
                self.lines[row] += text
            elif newline:
                row = min(rows - 1, row + 1)
            elif carriage:
                pass
            elif private:
                self._mode(numbers, is_on=command == "h")
            elif command == "H":
                row = int(numbers.partition(";")[0]) - 1
                assert 0 <= row < rows, numbers
                self.lines[row] = ""
            elif command == "J":
                self.lines = [""] * rows
            elif command == "m":
                self.styles.add(numbers)
            else:
                assert command == "K", command

    def _mode(self, number: str, *, is_on: bool) -> None:
        if number == "1049":
            self.is_alternate = is_on
        elif number == "25":
            self.has_cursor = is_on

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)
