"""The async context manager of `LoopWheel.timeout`: `asyncio.timeout` over a wheel.

Invariant: a cancellation that this scope requested is taken back once, on leaving; one that others requested stays.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any

from filewheel.checks import check_number
from filewheel.errors import BadArgument

if TYPE_CHECKING:
    from filewheel.native.compiled import LoopTimeout, TimeoutWheel


class _State(Enum):
    CREATED = "created"
    ACTIVE = "active"
    EXPIRING = "expiring"
    EXPIRED = "expired"
    FINISHED = "finished"


class TimeoutScope:
    """Cancels its body at its due. `LoopWheel.timeout` and `.timeout_at` make one."""

    __slots__ = ("_cancelling", "_context", "_state", "_task", "_timeout", "_wheel", "_when")

    def __init__(self, wheel: TimeoutWheel, when: float | None, context: Context) -> None:
        self._wheel = wheel
        self._when = when
        self._context = context
        self._state = _State.CREATED
        self._task: asyncio.Task[Any] | None = None
        self._timeout: LoopTimeout | None = None
        self._cancelling = 0

    def when(self) -> float | None:
        """Return the due, as a time of the loop; None for never."""
        return self._when

    def reschedule(self, when: float | None) -> None:
        """Move the due, inside of the body. One that has passed cancels the body at its next await.

        Raises BadArgument for other times, and outside of the body or after the due.
        """
        if self._state is not _State.ACTIVE:
            raise BadArgument(f"the timeout is {self._state.value}, not active", hint="reschedule it in its body")
        if when is not None:
            check_number("when", when, above=None)
        if self._timeout is not None:
            self._timeout.cancel()
        self._when = when
        self._timeout = None
        if when is not None:
            self._timeout = self._wheel.call_at(when, self._expire, context=self._context)

    def expired(self) -> bool:
        """Return whether the due came before the body ended."""
        return self._state in (_State.EXPIRING, _State.EXPIRED)

    async def __aenter__(self) -> TimeoutScope:
        """Start. Raises BadArgument when it was entered before, and outside of a task."""
        if self._state is not _State.CREATED:
            raise BadArgument(f"the timeout is {self._state.value}", hint="make one for each body")
        task = asyncio.current_task()
        if task is None:
            raise BadArgument("a timeout is entered in a task", hint="asyncio.create_task")
        self._task = task
        self._cancelling = task.cancelling()
        self._state = _State.ACTIVE
        try:
            self.reschedule(self._when)
        except BaseException:
            self._state = _State.FINISHED
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._state is not _State.EXPIRING:
            self._state = _State.FINISHED
            return
        self._state = _State.EXPIRED
        assert self._task is not None
        # More requests than at the start: somebody else cancels the task too, and the cancellation goes on.
        if self._task.uncancel() > self._cancelling:
            return
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from exc

    def _expire(self) -> None:
        assert self._task is not None
        self._state = _State.EXPIRING
        self._timeout = None
        self._task.cancel()

    def __repr__(self) -> str:
        return f"<TimeoutScope {self._state.value} when={self._when}>"
