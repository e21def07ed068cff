"""A handler of an AsyncScheduler: the function as it was, and what enqueues a call of it and is awaited.

Invariant: it stands for one handler of the scheduler for code that cannot await, `blocking`.
"""

from __future__ import annotations

import functools
from collections.abc import Coroutine, Mapping
from typing import Any, Generic

from filewheel.disk.directory import Sync
from filewheel.message import MessageId
from filewheel.scheduling.handler import At, Enqueues, Handler, OnConflict, Options, P, R, Sender

Soon = Coroutine[Any, Any, MessageId]


class AsyncBound(Enqueues[P, Soon]):
    """A handler with options for the calls that are enqueued through it."""


class AsyncHandler(Enqueues[P, Soon], Generic[P, R]):
    """A decorated function: call it as before, or await the enqueue of a call of it."""

    def __init__(self, blocking: Handler[P, R], sender: Sender[Soon]) -> None:
        functools.update_wrapper(self, blocking.function)  # first: what the function has as attributes must not win
        super().__init__(blocking.name, sender, blocking._options, blocking._signature)
        self.name = blocking.name
        self.function = blocking.function
        self.terms = blocking.terms
        self.blocking = blocking
        """The same handler for code that cannot await: its `enqueue`, `after` and `at` return when it is written."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        key: str | None = None,
        on_conflict: OnConflict = "reject",
        headers: Mapping[str, str] | None = None,
        deadline: At | None = None,
        skip_late_s: float | None = None,
        coalesce: str | bool | None = None,
        sync: Sync | None = None,
    ) -> AsyncBound[P]:
        """Return this handler with options for what is enqueued through it (see Handler.options)."""
        given = Options(key, on_conflict, headers, deadline, skip_late_s, coalesce, sync)
        given.check()
        return AsyncBound(self._name, self._sender, given.over(self._options), self._signature)

    def __repr__(self) -> str:
        return f"<AsyncHandler {self.name}>"
