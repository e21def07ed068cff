"""Keeps the parent's Kafka clients alive in a forked child.

Freeing a client joins its threads. A forked child has none of them, so it hung, or ended with SIGSEGV, when a
collection met a client of the parent. The child can use none of these clients, so keeping them costs memory only.
Owns a weak reference to each client of this process.
Invariant: only the process that made a client by `keepable` frees it.
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
    """Keep a client until the process ends. Freeing it would wait for an answer that may never come."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


@functools.cache
def _referable(kind: Callable[..., Any]) -> Any:
    """Return a subclass with weak references: the classes of the C module have none."""
    if not isinstance(kind, type) or kind.__weakrefoffset__:
        return kind
    return type(kind.__name__, (kind,), {"__slots__": ("__weakref__",)})


def _in_child() -> None:
    for one in list(_open):
        never_free(one)


os.register_at_fork(after_in_child=_in_child)
