"""A handle that opens anew in a child of a fork, for those who chose it.

Pre-forking servers and multiprocessing hand a program's handles to children, where no lock and no journal of the parent
works. The first call in the child opens the wheel once more and puts what was opened in the place of what was
inherited; nothing of that is used any more, nor waited for.
Invariant: a thread that finds the handle to be of this process finds nothing of the parent's in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Literal

from filewheel.disk.reentry import one_call

AfterFork = Literal["raise", "reopen"]
"""What an inherited handle does in a child of a fork: each call raises Forked, or the first one opens it anew."""

_OF_THE_CALLER = "on_flush"
_OF_THE_PROCESS = ("_pid", "_forks")
_one_at_once = threading.RLock()


def _in_child() -> None:
    """A thread of the parent may have had it."""
    global _one_at_once
    _one_at_once = threading.RLock()


os.register_at_fork(after_in_child=_in_child)


def reopen(handle: object, anew: Callable[[], object], path: str) -> None:
    """Put a handle that `anew` opens in the place of an inherited one, unless another thread has done so."""
    with one_call(_one_at_once, path):
        inside = vars(handle)
        if inside["_pid"] == os.getpid():
            return
        opened: dict[str, Any] = {**vars(anew()), _OF_THE_CALLER: inside[_OF_THE_CALLER]}
        inside.update({name: value for name, value in opened.items() if name not in _OF_THE_PROCESS})
        # Last: other threads go by these, and use the rest without a lock.
        inside.update({name: opened[name] for name in _OF_THE_PROCESS})
