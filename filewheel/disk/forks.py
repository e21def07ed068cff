"""Forks: a child has no copy of its parent's locks, and an inherited handle is refused or opened again.

A kernel lock lives until every copy of its descriptor is closed. So a child replaces its copies at once by descriptors
of "/". The numbers stay in use: an inherited handle can neither write to the wheel nor close another file. The C code
(`_forks.c`) detects every fork() of the process, also those of other C code. Without it only Python's forks are
detected; after another fork the copies live until the child ends or runs another program.
Invariant: children lose a descriptor from before its lock is taken until after the release.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Literal

from filewheel.disk.threads import one_call
from filewheel.native import compiled

_held: set[int] = set()


def _keep(fd: int) -> None:
    _held.add(fd)


def _forget(fd: int) -> None:
    _held.discard(fd)


def _in_child() -> None:
    if not _held:
        return
    with contextlib.suppress(OSError):
        spare = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
        for fd in _held:
            os.dup2(spare, fd, inheritable=False)
        os.close(spare)
    _held.clear()


now = compiled.count_forks or os.getpid
"""Returns a number that differs between a child and its parent."""
keep_from_children = compiled.keep_from_children or _keep
"""Makes each child lose its copy of a descriptor."""
let_children_have = compiled.let_children_have or _forget
"""Undoes that, before the descriptor is closed."""

if compiled.keep_from_children is None:
    os.register_at_fork(after_in_child=_in_child)

IMPORTS = threading.RLock()
"""Held during an import on demand. A fork waits for its end: in a child of the middle of it, the import never ends."""
_take, _free = IMPORTS.acquire, IMPORTS.release
os.register_at_fork(before=_take, after_in_parent=_free, after_in_child=_free)

_PR_SET_PDEATHSIG = 1


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, and at once if that has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


AfterFork = Literal["raise", "reopen"]
"""The mode of an inherited handle in a forked child: each call raises Forked, or the first call reopens it."""

_OF_THE_PROCESS = ("_pid", "_forks")
_one_at_once = threading.RLock()


def _new_guard() -> None:
    """Replace the lock: a thread of the parent may have held it."""
    global _one_at_once
    _one_at_once = threading.RLock()


os.register_at_fork(after_in_child=_new_guard)


def reopen(handle: object, anew: Callable[[], object], path: str) -> None:
    """Replace the inside of an inherited handle by that of a new one from `anew`, once for all threads."""
    with one_call(_one_at_once, path):
        inside = vars(handle)
        if inside["_pid"] == os.getpid():
            return
        opened: dict[str, Any] = vars(anew())
        inside.update({name: value for name, value in opened.items() if name not in _OF_THE_PROCESS})
        # Last: other threads check these and then use the rest without a lock.
        inside.update({name: opened[name] for name in _OF_THE_PROCESS})
