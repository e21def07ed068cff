"""Clients that a forked child may forget, but never frees.

To free a client waits for its threads, and a forked child has none of them: it ended with SIGSEGV, or hung, as soon as
a collection met a client of the parent. So a child keeps the parent's clients for ever; it can use none of them anyway.
Owns a weak reference to each client of this process.
Invariant: a client that was made by `keepable` is freed by the process that made it, or by nobody.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def keepable(kind: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Make a client of this class. Raises what the class does."""
    made = _referable(kind)(*args, **more)
    _open.add(made)  # mutant: kafka-client-freed-in-child
    return made


def never_free(one: Any) -> None:
    """Keep a client until the process ends: its end would wait for an answer that may never come."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


@functools.cache
def _referable(kind: Callable[..., Any]) -> Any:
    """Return a class of the same instances that can be referred to weakly: those of the C module cannot."""
    if not isinstance(kind, type) or kind.__weakrefoffset__:
        return kind
    return type(kind.__name__, (kind,), {"__slots__": ("__weakref__",)})


def _in_child() -> None:
    for one in list(_open):
        never_free(one)


os.register_at_fork(after_in_child=_in_child)
