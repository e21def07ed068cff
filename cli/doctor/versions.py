"""Which software runs here: filewheel, Python, the libraries, the kernel.

Invariant: nothing names the machine, its user or its network.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from typing import Any

from filewheel import __version__
from filewheel.tools import COMPILED

_NEEDED = ("msgpack", "click", "wcwidth")
_OPTIONAL = ("uvloop", "tzdata", "prometheus-client", "opentelemetry-api", "confluent-kafka", "starlette", "uvicorn")


NOT_COMPILED = "Python (not compiled)"


def versions() -> dict[str, Any]:
    """Return the versions; null for a library without metadata. Cost: reads the metadata of each library."""
    return {
        "filewheel": __version__,
        "loops": "C" if COMPILED else _why_python(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()) or None,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "libraries": {name: _version(name) for name in _NEEDED}
        | {name: found for name in _OPTIONAL if (found := _version(name)) is not None},
    }


def _why_python() -> str:
    return "Python (FILEWHEEL_PURE is set)" if os.environ.get("FILEWHEEL_PURE") else NOT_COMPILED


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
