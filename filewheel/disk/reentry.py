"""Calls inside of calls: a signal handler or a destructor that uses the handle that its own thread is using.

Python runs both in the middle of whatever its thread does. A plain lock would be waited for without end; a reentrant
one would let a second call see the first one's work half done, and write where that is about to write.
Invariant: such a call is refused before it has done anything.
"""

from __future__ import annotations

import threading

from filewheel.errors import Reentered


def one_call(lock: threading.RLock, path: str, busy: int = 0) -> threading.RLock:
    """Return a lock for a `with`. Raises Reentered when this thread has it, or is the thread `busy`."""
    # mutant: call-in-call call-in-flush
    if lock._is_owned() or busy == threading.get_ident():  # type: ignore[attr-defined]
        raise reentered(path)
    return lock


def reentered(path: str) -> Reentered:
    """Return the error that refuses a call inside of a call."""
    return Reentered(
        "this thread is in the middle of another call of this handle",
        path=path, hint="give signal handlers and destructors a handle of their own",
    )  # fmt: skip
