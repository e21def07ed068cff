"""Handlers of results that a process of the pool imports."""

from __future__ import annotations

from uuid import UUID


def double(n: int) -> dict[str, object]:
    """Return plain data, and a value that needs a tag."""
    return {"n": n * 2, "id": UUID(int=n)}


def odd() -> object:
    """Return what cannot be stored."""
    return object()


def silent() -> None:
    """Return nothing."""
