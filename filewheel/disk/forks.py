"""What a fork means here: a child is another process, and no copy of its parent's locks lives on in it.

A kernel lock lives as long as any copy of its descriptor does. So a child loses its copies at once: each is replaced by
a descriptor of "/", so that its number stays taken, and a handle that was inherited can neither write to the wheel nor
close another file. What is compiled (`_forks.c`) sees every fork() of the process, also of other C code; without it
only those of Python are seen, and the copies that another fork leaves go when the child ends or runs another program.
Invariant: a descriptor is kept from children from before its lock is taken until after it was let go.
"""

from __future__ import annotations

import contextlib
import os

from filewheel.native import compiled

_held: set[int] = set()


def _keep(fd: int) -> None:
    _held.add(fd)


def _let_go(fd: int) -> None:
    _held.discard(fd)


def _in_child() -> None:
    if not _held:
        return
    with contextlib.suppress(OSError):
        spare = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
        for fd in _held:
            os.dup2(spare, fd, inheritable=False)  # mutant: child-closes-other
        os.close(spare)
    _held.clear()


now = compiled.count_forks or os.getpid
"""Returns a number that is another in a child than in its parent."""
keep_from_children = compiled.keep_from_children or _keep
"""Have each child lose its copy of a descriptor."""
let_children_have = compiled.let_children_have or _let_go
"""The opposite: before the descriptor is closed."""

if compiled.keep_from_children is None:
    os.register_at_fork(after_in_child=_in_child)  # mutant: lock-in-child
