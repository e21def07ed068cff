"""A figure: what was measured, against what.

Owns the shape of a benchmark's output. Invariant: a figure names its unit and, where there is one, its yardstick.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import filewheel
from filewheel.mounts import file_system_type


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    yardstick: str = ""
    """What it is to be compared with: a limit, or another figure of the same run."""


Report = Callable[[Figure], None]


def machine(path: Path) -> dict[str, object]:
    """Return the shape of the machine that figures come from."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "file_system": file_system_type(str(path)),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "filewheel": filewheel.__version__,
    }


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: list[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def python(code: str, *args: object) -> subprocess.Popen[str]:
    """Start a process that runs `code` with this very library."""
    home = str(Path(filewheel.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        env={**os.environ, "PYTHONPATH": home},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def fresh(directory: Path, name: str) -> Path:
    """Return the path of a wheel that does not exist yet."""
    path = directory / name
    shutil.rmtree(path, ignore_errors=True)
    return path
