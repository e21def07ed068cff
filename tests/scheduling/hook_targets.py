"""Hooks and a handler for tests of processes: at the top level of a module other than the handlers'."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar

from filewheel import Job

tenant: ContextVar[str] = ContextVar("tenant")


def set_tenant(jobs: list[Job]) -> Iterator[None]:
    """Set the tenant for a call."""
    token = tenant.set(f"tenant of {jobs[0].args[0]}")
    try:
        yield
    finally:
        tenant.reset(token)


def give_up(jobs: list[Job]) -> Iterator[None]:
    """Raise before the call."""
    raise PermissionError("no call today")
    yield
