"""The outcome of a call: it returned, or why it failed, and whether and when it is tried again.

An outcome is data that can cross a process, and what is stored of a failure. `RetryLater` and `GiveUp` are raised by
handlers to decide themselves. Delays grow by a factor up to a bound; random jitter only adds, so that no retry is
earlier than its delay.
Invariant: a delay is finite and at least 0 for any attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from filewheel.checks import check_number, check_whole, shown
from filewheel.errors import BadArgument
from filewheel.message import DUE_END_US, US_PER_S, Attempt, attempts_of
from filewheel.runs.run import KILLED_TEXT
from filewheel.scheduling.job import EMPTY_OUTBOX, Outbox
from filewheel.timespec import delay_us


class RetryLater(Exception):
    """Raised by a handler: retry this job after a delay, regardless of its Retry; it counts as an attempt."""

    def __init__(self, delay: float | timedelta, why: str = "retry later") -> None:
        super().__init__(why)
        self.delay_us = min(max(0, delay_us(delay)), DUE_END_US)


class GiveUp(Exception):
    """Raised by a handler: do not retry this job; it becomes a dead letter with this reason."""


class Kept(NamedTuple):
    """What is kept of a call: how the payload is packed (results.py), and the payload."""

    how: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler did with one message."""

    error: str | None = None
    """Why it failed; None when it returned."""
    ancestry: frozenset[str] = frozenset()
    """The qualified names of the exception's class and its base classes."""
    trace: str = ""
    retry_in_us: int | None = None
    """The delay that the handler asked for with RetryLater."""
    gives_up: bool = False
    is_time_out: bool = False
    is_killed: bool = False
    """`filewheel kill` has ended the call."""
    is_too_late: bool = False
    """It did not start, because it was too late under its own policy."""
    puts: Outbox = EMPTY_OUTBOX
    """What it enqueued in its transactions, if it returned."""
    result: Kept | None = None
    """What the function returned, if its handler keeps results."""

    def to_plain(self) -> list[object]:
        """Return a failure as plain data, for `of_plain` in another process."""
        return [self.error, sorted(self.ancestry), self.trace, self.retry_in_us, self.gives_up, self.is_too_late]

    @classmethod
    def of_plain(cls, plain: Any) -> Outcome:
        """Read the result of `to_plain`."""
        error, ancestry, trace, retry_in_us, gives_up, is_too_late = plain
        return cls(error, frozenset(ancestry), trace, retry_in_us, gives_up, is_too_late=is_too_late)

    @classmethod
    def of(cls, exc: BaseException, trace: str = "") -> Outcome:
        """Describe an exception."""
        says = str(exc) if isinstance(exc, (RetryLater, GiveUp)) else _says(exc)
        return cls(
            storable(says),
            frozenset(name_of(t) for t in type(exc).__mro__ if issubclass(t, BaseException)),
            trace,
            exc.delay_us if isinstance(exc, RetryLater) else None,
            isinstance(exc, GiveUp),
        )


RETURNED = Outcome()


def killed() -> Outcome:
    """Return the outcome of a call that `filewheel kill` has ended."""
    return Outcome(KILLED_TEXT, is_killed=True)


def name_of(kind: type | str) -> str:
    """Return a name of a class that is the same in the parent and in its processes; a name is returned as it is."""
    if isinstance(kind, str):
        return kind
    # multiprocessing imports the started script under this other name, so that its `main` does not run again.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _says(exc: BaseException) -> str:
    try:
        text = str(exc)
    except (Exception, SystemExit):
        text = "(its text cannot be had)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def storable(text: str) -> str:
    """Return a text that can be encoded: file names may contain invalid Unicode."""
    return text.encode("utf-8", "backslashreplace").decode()


def history_of(headers: Mapping[str, str]) -> list[Attempt]:
    """Read the attempts that failed from a message's headers; an empty list when they are missing or unreadable."""
    return list(attempts_of(headers))


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed call is retried, and after how long.

    After `limit` retries the message is a dead letter. The delay is `delay_s` after the first failure and grows by
    `factor` after each further one, up to `delay_max_s`; a random part, up to `jitter` times the delay, is added.
    Exceptions in `never` are not retried: classes, or their full names, such as "requests.exceptions.HTTPError".
    """

    limit: int = 5
    delay_s: float = 1.0
    factor: float = 2.0
    delay_max_s: float = 3600.0
    jitter: float = 0.25
    never: tuple[type[BaseException] | str, ...] = ()

    def __post_init__(self) -> None:
        check_whole("limit of a Retry", self.limit, least=0)
        for name in ("delay_s", "delay_max_s", "jitter"):
            check_number(f"{name} of a Retry", getattr(self, name), least=0)
        check_number("factor of a Retry", self.factor, least=1)
        if not isinstance(self.never, tuple) or not all(
            (isinstance(t, str) and "." in t) or (isinstance(t, type) and issubclass(t, BaseException))
            for t in self.never
        ):
            raise BadArgument(
                f"never of a Retry is a tuple of exception classes or their full names, not {shown(self.never)}",
                hint='never=(KeyError, "requests.exceptions.HTTPError")',
            )

    def delay_us(self, attempt: int, chance: Callable[[], float]) -> int:
        """Return how long to wait after the failure of an attempt, counted from 0. `chance` returns 0.0 to 1.0."""
        try:
            delay_s = self.delay_s * self.factor**attempt
        except OverflowError:
            delay_s = self.delay_max_s
        delay_s = min(delay_s, self.delay_max_s)
        return math.ceil(delay_s * (1 + self.jitter * chance()) * US_PER_S)

    def forbids(self, ancestry: Collection[str]) -> bool:
        """Return whether an exception with these classes, by their qualified names, is never retried."""
        return any(name_of(t) in ancestry for t in self.never)
