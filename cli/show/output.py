"""The output of a command: data to stdout, messages to stderr, and how both look.

Only this module checks for a terminal. On a terminal data is a table for people; piped, it is one JSON object per line;
`--json` and `--no-json` override that. Colour never carries information alone, and NO_COLOR turns it off.
Invariant: stdout has only data, and nothing that could control the terminal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click

from filewheel import Wheel
from filewheel.tools import Directory, open_directory

from ..failure import Failure
from .progress import ProgressLine
from .text import AWAY, SHORT_TIME, clip, pad, safe, to_line, width, wrap

BLOCKS = "▁▂▃▄▅▆▇█▏▎▍▌▋▊▉━─…→·µ"


_LEAST = 6
"""A column of text is not cut below this, or below its heading, ..."""
_NARROWEST = 4
"""... unless a row would not fit otherwise: then it is cut down to this, and its heading too."""


@dataclass(frozen=True)
class Column:
    """One column of a table: its heading and maximum width."""

    title: str
    most: int | None = None
    """The maximum width of text when stdout is no terminal; None for text that is never cut."""
    right: bool = False
    style: str | None = None
    least: int = 0
    """The width that it asks for at least: how wide the others are must not depend on how far away a due is today."""

    @classmethod
    def date(cls, title: str) -> Column:
        """Return a column of `short_time`."""
        return cls(title, least=SHORT_TIME)

    @classmethod
    def away(cls, title: str) -> Column:
        """Return a column of `away`, or of another word for a state."""
        return cls(title, 24, least=AWAY)


def _fitted(columns: Sequence[Column], widths: list[int], room: int) -> list[int]:
    """Cut the widest columns of text evenly, until all fit or have their minimum width."""
    widths = list(widths)
    for floors in ([max(len(c.title), _LEAST) for c in columns], [_NARROWEST] * len(columns)):
        floors = [floor if c.most else w for floor, c, w in zip(floors, columns, widths, strict=True)]
        while sum(widths) > room:
            at = max(range(len(widths)), key=lambda i: (widths[i] > floors[i], widths[i]))
            if widths[at] <= floors[at]:
                break
            widths[at] -= 1
    return widths


class Output:
    """One invocation: its global options, and everything it prints."""

    def __init__(self) -> None:
        self.dir = "wheel"
        self.json: bool | None = None
        self.quiet = False
        self.colour = "auto"
        self.force = False
        self._progress: ProgressLine | None = None
        self._heard = _Heard(self)

    # -- streams -----------------------------------------------------------------------------------------------

    def is_terminal(self, stream: TextIO | None) -> bool:
        """Return whether this stream is a terminal."""
        try:
            return stream is not None and stream.isatty()
        except ValueError:  # closed
            return False

    @property
    def wants_json(self) -> bool:
        """Whether data goes out as JSON lines."""
        return not self.stdout_is_terminal if self.json is None else self.json

    @property
    def stdout_is_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return self.is_terminal(sys.stdout)

    @property
    def stdin_is_terminal(self) -> bool:
        """Whether stdin is a terminal."""
        return self.is_terminal(sys.stdin)

    @property
    def can_ask(self) -> bool:
        """Whether a question can be answered."""
        return self.stdin_is_terminal and self.is_terminal(sys.stderr)

    @property
    def can_redraw(self) -> bool:
        """Whether a picture can be drawn over the one before."""
        return self.stdout_is_terminal and os.environ.get("TERM", "dumb") != "dumb"

    @property
    def blocks(self) -> bool:
        """Whether stdout can show more than ASCII."""
        return _can_encode(sys.stdout)

    @property
    def columns(self) -> int:
        """How wide the terminal is."""
        return max(40, shutil.get_terminal_size((80, 24)).columns)

    @property
    def rows(self) -> int:
        """How high the terminal is."""
        return shutil.get_terminal_size((80, 24)).lines

    def has_colour(self, stream: TextIO) -> bool:
        """Return whether this stream gets colour."""
        chosen = self.colour_choice()
        return self.is_terminal(stream) and os.environ.get("TERM") != "dumb" if chosen is None else chosen

    def colour_choice(self) -> bool | None:
        """Return the colour option for click: yes, no, or by the stream."""
        if self.colour != "auto":
            return self.colour == "always"
        return False if os.environ.get("NO_COLOR") else None

    # -- data ----------------------------------------------------------------------------------------------------

    def write(self, text: str) -> None:
        """Write a line of data. The caller has made it safe."""
        if self._progress is not None and self.stdout_is_terminal:
            self._progress.clear()
        out = sys.stdout
        try:
            out.write(f"{text}\n")
        except UnicodeEncodeError:
            encoding = out.encoding or "ascii"
            out.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")

    def record(self, fields: dict[str, Any]) -> None:
        """Write one object as a JSON line."""
        self.write(to_line(fields, ascii_only=not self.blocks))

    def say(self, line: str) -> None:
        """Write a line for people at once: to stdout, or to stderr if data is JSON."""
        if self.json:
            self.note(line)
        else:
            self.write(safe(line))
            self.flush()

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        self.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def flush(self) -> None:
        """Flush stdout."""
        sys.stdout.flush()

    def style(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        """Colour text that goes to stdout."""
        if not text or not (colour or bold or dim) or not self.has_colour(sys.stdout):
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)

    def block(self, text: str, *, indent: int) -> None:
        """Write text in lines as wide as the terminal, each indented: whole, where a table would cut it. Made safe."""
        for line in wrap(safe(text), self.columns - indent):
            self.write(" " * indent + line)

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Write rows under headings. Cells are made safe.

        On a terminal the widest columns of text are cut until a row fits.
        """
        dots = "…" if self.blocks else "..."
        cells = [[safe(cell) for cell in row] for row in rows]
        widths = [max([len(c.title), c.least, *(width(row[i]) for row in cells)]) for i, c in enumerate(columns)]
        if not self.stdout_is_terminal:
            widths = [w if c.most is None else min(c.most, w) for c, w in zip(columns, widths, strict=True)]
        else:
            widths = _fitted(columns, widths, self.columns - 2 * (len(columns) - 1))
        head = [pad(clip(c.title, w, dots), w, right=c.right) for c, w in zip(columns, widths, strict=True)]
        self.write(self.style("  ".join(head).rstrip(), bold=True))
        for row in cells:
            parts = []
            for cell, column, w in zip(row, columns, widths, strict=True):
                text = pad(clip(cell, w, dots), w, right=column.right)
                parts.append(self.style(text, column.style) if column.style else text)
            self.write("  ".join(parts).rstrip())

    # -- messages ------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a note on stderr; `--quiet` silences it."""
        if not self.quiet:
            self._talk(safe(text))

    def warn(self, text: str) -> None:
        """Print a warning on stderr, with `--quiet` too."""
        self._talk(self._err_style("warning:", "yellow") + f" {safe(text)}")

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Print the library's log records in this block as warnings."""
        logger = logging.getLogger("filewheel")
        logger.addHandler(self._heard)
        try:
            yield
        finally:
            logger.removeHandler(self._heard)

    @contextlib.contextmanager
    def held_warnings(self, error: type[Exception]) -> Iterator[None]:
        """Print the library's log records at the end of the block, unless it raises this error.

        The error has the same information, and more.
        """
        held = self._heard.held = list[str]()
        try:
            yield
        except error:
            held.clear()
            raise
        finally:
            self._heard.held = None
            for text in held:
                self.warn(text)

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """Leave the library's log records to another handler."""
        logger = logging.getLogger("filewheel")
        was_heard = self._heard in logger.handlers
        logger.removeHandler(self._heard)
        try:
            yield
        finally:
            if was_heard:
                logger.addHandler(self._heard)

    def log_line(self, text: str) -> None:
        """Write a log line to stderr. The caller has made it safe."""
        self._talk(text)

    def fail(self, failure: Failure, *, as_json: bool | None = None) -> None:
        """Report the failure of this invocation."""
        if self.json if as_json is None else as_json:
            fields = {"error": failure.kind, "code": failure.code}
            self._talk(to_line(fields | {"message": failure.message, "hint": failure.hint}, ascii_only=True))
            return
        # A partial result is an outcome, not an error.
        word, colour = ("note:", "yellow") if failure.kind in ("partly", "interrupted") else ("Error:", "red")
        self._talk(self._err_style(word, colour) + f" {safe(failure.message)}")
        if failure.hint:
            self._talk(f"Try: {safe(failure.hint)}")

    def _err_style(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour, bold=True) if self.has_colour(sys.stderr) else text

    def _talk(self, text: str) -> None:
        if self._progress is not None:
            self._progress.clear()
        # A closed stderr is not a failure.
        with contextlib.suppress(OSError, ValueError):
            if self.stdout_is_terminal:
                sys.stdout.flush()
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def ask(self, question: str, *, yes: bool) -> bool:
        """Ask before an irreversible action. Without a terminal, `--yes` is needed."""
        if yes:
            return True
        if not self.can_ask:
            raise Failure(
                "usage",
                "this needs a confirmation, and there is no terminal to ask on; nothing was done",
                hint="add --yes",
            )
        return click.confirm(safe(question), default=False, err=True)

    @contextlib.contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[ProgressLine]:
        """Show the progress of a long job on a terminal, unless `--quiet`."""
        shown = self.is_terminal(sys.stderr) and not self.quiet and os.environ.get("TERM") != "dumb"
        with ProgressLine(label, total, sys.stderr if shown else None, blocks=_can_encode(sys.stderr)) as progress:
            self._progress = progress
            try:
                yield progress
            finally:
                self._progress = None

    # -- the wheel -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def wheel(self) -> Iterator[Wheel]:
        """Open the wheel that `-C` names, and print the library's warnings."""
        with Wheel(self.dir, force=self.force) as wheel:
            for text in wheel.notes:
                self.warn(text)
            yield wheel

    def directory(self, *, write: bool = False) -> Directory:
        """Open the wheel's directory, for tools that read its files."""
        return open_directory(self.dir, write=write, force=self.force)


class _Heard(logging.Handler):
    """Forwards the library's log records, made safe for the terminal."""

    def __init__(self, out: Output) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self.held: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.held is None:
            self._out.warn(record.getMessage())
        else:
            self.held.append(record.getMessage())


def _can_encode(stream: TextIO) -> bool:
    try:
        BLOCKS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
