"""What the harness asks of a store: to take messages with a due time, and to give back those that are due.

A `Store` is one peer in one directory, with the processes that work for it; a `Session` is one connection to it, for
one thread. A peer that has no such thing (a cancel, a second process) says so with `Missing`, and its cell is left
blank with the reason. Every peer has an enqueue and a session: one without cannot be made.
"""
# ruff: noqa: B027 (what is empty here, a peer may need and most do not)

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

US = 1_000_000
Due = int
"""Microseconds since the epoch."""


class Missing(Exception):
    """This peer cannot do that, or this machine lacks the peer."""


class Session(ABC):
    """One connection. Whatever it returns from an enqueue is as durable as the store's setting says."""

    poll_s = 0.01
    """How long a consumer sleeps at most where nothing wakes it."""

    def __init__(self, ahead_us: int = 0) -> None:
        self.ahead_us = ahead_us

    def now_us(self) -> int:
        """The time, for what is due; a session may live in the future."""
        return time.time_ns() // 1000 + self.ahead_us

    @abstractmethod
    def enqueue(self, payload: bytes, due_us: Due) -> Any:
        """Enqueue one message; return what `cancel` takes."""

    def enqueue_many(self, payloads: Sequence[bytes], dues_us: Sequence[Due]) -> Sequence[Any]:
        """Enqueue a batch, in the cheapest way this peer has; durable as a whole on return."""
        raise Missing("no batches")

    def cancel(self, handle: Any) -> None:
        """Take a pending message out."""
        raise Missing("no cancel")

    def cancel_many(self, handles: Sequence[Any]) -> None:
        """Take pending messages out."""
        raise Missing("no cancel in batches")

    def claim(self, limit: int) -> Any:
        """Return up to `limit` messages that are due, with a length; payloads are in memory."""
        raise Missing("nothing fires")

    def ack(self, batch: Any) -> None:
        """Finish a batch."""
        raise Missing("nothing fires")

    def dues_us(self, batch: Any) -> list[Due]:
        """Return when the messages of a batch were due."""
        raise Missing("the batch does not say when it was due")

    def payloads(self, batch: Any) -> list[bytes]:
        """Return the payloads of a batch."""
        raise Missing("the batch does not give payloads")

    def next_due_us(self) -> Due | None:
        """Return when the next message is due, if that can be asked cheaply."""
        return None

    def wait(self, timeout_s: float) -> None:
        """Sleep until something may be due, as long as a consumer of this kind would."""
        limit = min(timeout_s, self.poll_s)
        due = self.next_due_us()
        if due is not None:
            limit = min(limit, (due - self.now_us()) / US)
        if limit > 0:
            time.sleep(limit)

    def close(self) -> None:
        """Let go."""


class Store(ABC):
    """One peer in one directory."""

    threads = True
    """Whether threads may each have a session."""
    processes = True
    """Whether several processes may enqueue at once."""
    shifts = True
    """Whether the consumer's clock can be set ahead; if not, a backlog is of messages that are due at once."""
    slow = False
    """Whether populating a million would take hours: it is given fewer messages, and says so."""

    def __init__(self, directory: Path, setting: str) -> None:
        self.directory = directory
        self.setting = setting

    def start(self, *, consume: bool = False) -> None:
        """Make the store, and start what works for it. With `consume`, the caller is the one who fires."""

    def stop(self) -> None:
        """Stop what works for it. The directory stays."""

    @abstractmethod
    def session(self, ahead_us: int = 0) -> Session:
        """Connect; also from a process that did not start the store."""

    def settle(self, session: Session) -> None:
        """Return when the work is done that an enqueue leaves for later."""

    def pids(self) -> list[int]:
        """The processes that work for this store beside the caller's."""
        return []
