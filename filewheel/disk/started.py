"""Starting a thread, where the system may refuse: a limit of the user's processes, or of the container's tasks.

Python raises a bare RuntimeError then. Here it is an OSError, so it is handled where the errors of disks are: the
caller gets a DiskError that says what to do, a mirror counts as failed, a background loop tries again.
Invariant: a thread that is returned runs.
"""

from __future__ import annotations

import errno
import threading
from typing import TypeVar

Started = TypeVar("Started", bound=threading.Thread)


def started(thread: Started) -> Started:
    """Start a thread, and return it. Raises OSError (EAGAIN) when this process may have no more threads."""
    try:
        thread.start()
    except RuntimeError as exc:  # mutant: thread-bare
        raise OSError(errno.EAGAIN, f"no thread can be started: {exc}") from exc
    return thread
