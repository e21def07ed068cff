"""What a program that goes on logs: lines of one format on stderr, for people and for a journal alike.

A program that configures logging itself keeps what it configured: then nothing is added, and nothing is said twice.
Invariant: a record of several lines (a traceback) is separated from the next record by its indentation.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime

from .output import Output
from .text import safe_block

_LIBRARY = "filewheel"


class _Lines(logging.Handler):
    """Writes each record as `2026-11-21T09:00:00.000+01:00 INFO text`."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out
        self._formatter = logging.Formatter("%(message)s")  # which adds the traceback

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        text = safe_block(self._formatter.format(record)).rstrip().replace("\n", "\n  ")
        self._out.log_line(f"{at} {record.levelname} {text}")


@contextlib.contextmanager
def log_lines(out: Output, level: int) -> Iterator[None]:
    """Write what is logged in this block: the library's records from `level` on, a program's own from WARNING on."""
    root, library = logging.getLogger(), logging.getLogger(_LIBRARY)
    with out.unheard():
        if root.handlers:
            yield
            return
        handler, before = _Lines(out), library.level
        root.addHandler(handler)
        library.setLevel(level)
        try:
            yield
        finally:
            root.removeHandler(handler)
            library.setLevel(before)
