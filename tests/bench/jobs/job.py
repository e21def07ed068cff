"""The job that every system calls: it notes how late it is, and does nothing else."""

from __future__ import annotations

import time

LATE_US: list[int] = []
"""One for each call in this process."""


def call(due_us: int) -> None:
    """Be called."""
    LATE_US.append(time.time_ns() // 1000 - due_us)
