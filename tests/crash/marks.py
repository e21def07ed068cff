"""Marks: what a process was told by a wheel, written down outside of the wheel the moment that it was told.

A process that may be killed at any moment writes one line for each promise, with one `os.write` to a file of its own
that only grows. A mark is written after the call returned, so a mark that is missing promises nothing; what may have
happened without being told has a mark of its own, written before the call ("try-...").
Invariant: every mark is [kind, when the call began, when it returned, ...], in nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Mark = list[Any]


class Marks:
    """The marks of one process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def tell(self, kind: str, *what: Any, since: int | None = None) -> None:
        """Write one mark; `since` is when the call began that is told about."""
        now = time.monotonic_ns()
        line = json.dumps([kind, now if since is None else since, now, *what], separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


def read_marks(folder: Path) -> dict[str, list[Mark]]:
    """Return the marks of every process, by the name of its file; half a line at the end was not told."""
    return {
        path.name: [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        for path in sorted(folder.iterdir())
    }


def body(serial: int) -> bytes:
    """Return the payload with this serial: whoever sees it can tell whether it is whole."""
    size = 3000 if serial % 61 == 0 else serial * 7919 % 500
    return b"%d " % serial + bytes([serial % 251]) * size


def serial_of(payload: bytes) -> int:
    """Return the serial of a payload, or -1 when it is not one that `body` made."""
    first = payload.partition(b" ")[0]
    serial = int(first) if first.isdigit() else -1
    return serial if serial >= 0 and body(serial) == payload else -1
