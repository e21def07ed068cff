"""Threads: start one, and refuse a call inside another call.

Python raises a bare RuntimeError when the system refuses a thread. `started` raises an OSError, which is handled like
a disk error: the caller gets a DiskError with a hint, a mirror counts as failed, a background loop tries again.

A signal handler or a destructor interrupts its own thread, and may use the same handle. A plain lock would deadlock, a
reentrant lock would expose half-done work. `one_call` refuses such a call before it starts.
"""

from __future__ import annotations

import errno
import threading
from typing import TypeVar

from filewheel.errors import Reentered

Started = TypeVar("Started", bound=threading.Thread)


def started(thread: Started) -> Started:
    """Start a thread and return it. Raises OSError (EAGAIN) when the system refuses it."""
    try:
        thread.start()
    except RuntimeError as exc:  # mutant: thread-bare
        raise OSError(errno.EAGAIN, f"no thread can be started: {exc}") from exc
    return thread


def one_call(lock: threading.RLock, path: str) -> threading.RLock:
    """Return the lock for a `with`. Raises Reentered when this thread has it."""
    if lock._is_owned():  # type: ignore[attr-defined]
        raise reentered(path)
    return lock


def reentered(path: str) -> Reentered:
    """Return the error for a call inside another call."""
    return Reentered(
        "this thread is in the middle of another call of this handle",
        path=path,
        hint="give signal handlers and destructors a handle of their own",
    )
