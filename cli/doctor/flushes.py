"""What a flush costs on the wheel's disk: medians of a few, with a temporary file beside the wheel.

Never inside of the wheel: its directory stays as it is. So a wheel that is a mount point is not measured.
Invariant: at the end the temporary files are gone, also after Ctrl-C.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from statistics import median
from typing import Any

_TIMES = 21
_BUDGET_S = 1.0
"""For each kind; at least three are measured."""
_BYTES = 4096


def measure_flushes(wheel: str) -> dict[str, Any]:
    """Return the medians in microseconds, and the slowest; or `why` there are none. Cost: about 50 flushes."""
    fields: dict[str, Any] = dict.fromkeys(("append_us", "rewrite_us", "name_us", "slowest_us", "count", "why"))
    real = os.path.realpath(wheel)
    beside = os.path.dirname(real)
    try:
        if os.path.isdir(real) and os.stat(real).st_dev != os.stat(beside).st_dev:
            return fields | {"why": "the wheel is a mount point, and nothing foreign is written into a wheel"}
        return fields | _measured(beside)
    except OSError as exc:
        return fields | {"why": f"no file can be written beside the wheel: {(exc.strerror or str(exc)).lower()}"}


def _measured(beside: str) -> dict[str, Any]:
    name = os.path.join(beside, f".filewheel-doctor-{secrets.token_hex(6)}")
    fd = root = -1
    data = bytes(_BYTES)
    # The name comes before the file: an interrupt between the two removes nothing, one after them finds the name.
    try:
        root = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

        def append() -> None:
            os.write(fd, data)
            _flush(fd)

        def rewrite() -> None:
            os.pwrite(fd, data, 0)
            _flush(fd)

        def rename() -> None:
            os.rename(name, f"{name}.new")
            os.rename(f"{name}.new", name)
            os.fsync(root)

        kinds = {"append_us": _timed(append), "rewrite_us": _timed(rewrite), "name_us": _timed(rename)}
    finally:
        for left in (name, f"{name}.new"):
            if os.path.lexists(left):
                os.unlink(left)
        for one in (fd, root):
            if one >= 0:
                os.close(one)
    every = [us for taken in kinds.values() for us in taken]
    return {kind: round(median(taken)) for kind, taken in kinds.items()} | {
        "slowest_us": round(max(every)), "count": len(every)
    }  # fmt: skip


def _flush(fd: int) -> None:
    getattr(os, "fdatasync", os.fsync)(fd)


def _timed(act: Callable[[], None]) -> list[float]:
    """Return the microseconds of each run, the first one left out."""
    act()
    taken: list[float] = []
    end = time.monotonic() + _BUDGET_S
    while len(taken) < _TIMES and (len(taken) < 3 or time.monotonic() < end):
        start = time.perf_counter_ns()
        act()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken
