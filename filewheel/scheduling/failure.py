"""A failure: what went wrong in a call, as data that can cross a process and be kept with the message.

Also the two exceptions by which a handler itself decides what comes next, and the history of attempts in a header.
Invariant: a history stays small, however often a message fails and whatever the errors say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from filewheel.format.limits import HEADERS_BYTES_MAX
from filewheel.headers import HISTORY
from filewheel.timespec import delay_us

_ERROR_LENGTH = 200
_ATTEMPTS_KEPT = 10
_ROOM_BYTES = 2048
"""Left free in the headers for the reason of a death."""


class RetryLater(Exception):
    """Raised by a handler: try this job again after a delay, whatever its Retry says; it counts as an attempt."""

    def __init__(self, delay: float | timedelta, why: str = "retry later") -> None:
        super().__init__(why)
        self.delay_us = max(0, delay_us(delay))


class GiveUp(Exception):
    """Raised by a handler: do not try this job again; it becomes a dead letter with this reason."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call did not end well."""

    text: str
    ancestry: frozenset[str] = frozenset()
    """The qualified names of the exception's class and of those it inherits from."""
    trace: str = ""
    retry_in_us: int | None = None
    """The handler's own wish."""
    gives_up: bool = False
    is_time_out: bool = False
    is_too_late: bool = False
    """It was not begun, because its own policy forbids it by now."""

    def to_plain(self) -> list[object]:
        """Return this as plain data, for `of_plain` in another process."""
        return [self.text, sorted(self.ancestry), self.trace, self.retry_in_us, self.gives_up, self.is_too_late]

    @classmethod
    def of_plain(cls, plain: Any) -> Failure:
        """Read what `to_plain` made."""
        text, ancestry, trace, retry_in_us, gives_up, is_too_late = plain
        return cls(text, frozenset(ancestry), trace, retry_in_us, gives_up, is_too_late=is_too_late)

    @classmethod
    def of(cls, exc: BaseException, trace: str = "") -> Failure:
        """Describe an exception."""
        says = str(exc) if isinstance(exc, (RetryLater, GiveUp)) else _says(exc)
        return cls(
            storable(says),
            frozenset(name_of(t) for t in type(exc).__mro__ if issubclass(t, BaseException)),
            trace,
            exc.delay_us if isinstance(exc, RetryLater) else None,
            isinstance(exc, GiveUp),
        )


def name_of(kind: type) -> str:
    """Return the name of a class that is the same in the parent and in its processes."""
    # In a spawned process the script that was started has this other name, so that its `main` does not run again.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _says(exc: BaseException) -> str:
    try:
        text = str(exc)
    except (Exception, SystemExit):
        text = "(its text cannot be had)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def storable(text: str) -> str:
    """Return a text that can be encoded: names of files may come as text that is not valid Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that failed."""

    at_us: int
    attempt: int
    error: str


def history_of(headers: Mapping[str, str]) -> list[Attempt]:
    """Read a message's history; an empty list when it has none, or none that can be read."""
    try:
        items: Any = json.loads(headers.get(HISTORY, "[]"))
        return [Attempt(int(at), int(attempt), str(error)) for at, attempt, error in items]
    except (ValueError, TypeError, RecursionError):
        return []


def with_history(headers: Mapping[str, str], attempt: Attempt) -> dict[str, str]:
    """Return the headers with one more attempt in the history; the oldest go when there is no room."""
    kept = [*history_of(headers), attempt][-_ATTEMPTS_KEPT:]
    others = {k: v for k, v in headers.items() if k != HISTORY}
    room = HEADERS_BYTES_MAX - _ROOM_BYTES - sum(len(k.encode()) + len(v.encode()) for k, v in others.items())
    while kept:
        text = json.dumps([[a.at_us, a.attempt, a.error[:_ERROR_LENGTH]] for a in kept], separators=(",", ":"))
        if len(text) <= room:
            return {**others, HISTORY: text}
        kept.pop(0)
    return others
