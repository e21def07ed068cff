"""The machine's shape, and the versions of what was compared: a figure without them says nothing."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime

import filewheel

_LIBRARIES = ("redis", "hiredis", "rocksdict", "lmdb", "huey", "APScheduler", "SQLAlchemy", "persist-queue")


def machine() -> dict[str, object]:
    """Return what figures depend on."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {"filewheel": filewheel.__version__, "sqlite": sqlite3.sqlite_version}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    for program, ask in (("redis-server", "--version"), ("beanstalkd", "-v")):
        if shutil.which(program):
            said = subprocess.run([program, ask], capture_output=True, text=True).stdout.split()
            versions[program] = next((w.removeprefix("v=") for w in said if w.removeprefix("v=")[:1].isdigit()), "?")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions,
    }
