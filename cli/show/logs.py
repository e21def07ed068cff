"""The log of a long-running verb: lines of one format on stderr, for people and for log files.

If a program configures logging itself, no handler is added, so no record is printed twice.
Invariant: the further lines of a record (a traceback) are indented.
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
    """Write log records during this block: the library's from `level` on, a program's own from WARNING on."""
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
