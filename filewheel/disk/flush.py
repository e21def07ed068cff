"""Flushes: of a file that another process wrote, and one that failed, which is final.

A kernel reports a failed write once. The next flush of that file succeeds although the bytes are lost, so no flush is
tried twice (F0).
Invariant: after Poisoned, no call of this handle reports the same bytes as durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from filewheel.env import Disk
from filewheel.errors import Poisoned


def flush_file(disk: Disk, name: str) -> None:
    """Make a file durable that another process may have written. Raises OSError."""
    fd = disk.open(name, "r")
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


@contextlib.contextmanager
def poisoned_by(what: str, path: str) -> Iterator[None]:
    """Turn an OSError of a flush into Poisoned: tried again, the flush would succeed with the data lost."""
    try:
        yield
    except OSError as exc:
        raise Poisoned(
            f"{what} cannot be made durable ({exc.strerror or exc})",
            path=path,
            hint="look at the kernel log, then open the keeper again",
        ) from exc
