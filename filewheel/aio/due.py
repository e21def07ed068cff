"""Messages as they become due, to iterate over in an event loop, and the keeper that iterations share.

The first iteration of a wheel opens the keeper, the last one closes it.
Invariants: asking for the next message acknowledges the previous one, and a message in hand is put back when the
iteration ends; a keeper that the program opened itself is used and never closed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakSet

from filewheel.checks import check_whole
from filewheel.env import SYSTEM_CLOCK
from filewheel.errors import Closed, NotClaimed
from filewheel.journal.settlement import Settlement
from filewheel.message import Message, MessageId
from filewheel.schedules.occurrences import Now, PlainOccurrences


class DueKeeper(Protocol):
    """The keeper that iterations use: an AsyncKeeper."""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def is_used(self) -> bool:
        """Whether this is the keeper, or is about to become it."""

    async def open(self, *, wait: bool | None = None) -> Self:
        """Become the keeper; does nothing if it is the keeper already."""

    async def close(self) -> None:
        """Release the lock to the next keeper."""

    async def next_message(self, limit: int, *, wait: bool) -> Message | None:
        """Return the next message; None at the end."""

    def ack_soon(self, message: Message) -> None:
        """Acknowledge a message without waiting for it."""

    def give_back(self, message: Message) -> None:
        """Put back an unhandled message."""

    async def ack(self, message: Message, /) -> int:
        """Acknowledge a message; return how many were acknowledged."""

    async def nack(self, message: Message, *, delay: float | timedelta = 0) -> MessageId | None:
        """Put a message back, to fire again after `delay`."""

    async def bury(self, message: Message, *, reason: str = "") -> MessageId | None:
        """Move a message to the dead letters."""

    async def settle(self, settlements: Sequence[Settlement], /) -> list[MessageId | None]:
        """Settle messages; return the new id of each that has one."""


class Due(AsyncIterator[Message]):
    """Messages as they become due, for an `async for`.

    Asking for the next message acknowledges the previous one. When the body raises or breaks, the present message,
    unless it was given to `ack`, is put back with its attempt raised by one, as soon as this iterator is dropped or
    closed. If the keeper is closed while the iteration waits, the iteration ends; with a message in hand it raises
    Closed, and the next keeper offers the message.

    An occurrence of a schedule of plain messages is acknowledged together with its next one, which is waited for.

    Closing it (`async with wheel.due() as due`, or `await due.close()`) closes the keeper that it opened, if no other
    iteration uses it: another process can fire then.
    """

    _present: Message | None = None

    def __init__(
        self,
        keeper: Callable[[Due], Awaitable[DueKeeper]],
        limit: int,
        wait: bool,
        ended: Callable[[Due], Awaitable[None]] | None = None,
        *,
        clock: Now = SYSTEM_CLOCK,
    ) -> None:
        """`keeper` returns the keeper for an iteration that starts; `ended` is called when it was closed."""
        check_whole("limit", limit)
        self._open = keeper
        self._close = ended
        self._limit = limit
        self._wait = wait
        self._keeper: DueKeeper | None = None
        self._clock = clock
        self._occurrences = PlainOccurrences(clock)
        self._began_us = 0
        """When the present message was handed out."""
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._ended:
            raise StopAsyncIteration
        keeper = self._keeper
        if keeper is None:
            try:
                keeper = self._keeper = await self._open(self)
            except Closed:
                if self._ended:  # closed by another task while it was opened
                    raise StopAsyncIteration from None
                raise
        present = self._present
        if present is not None:
            if self._occurrences.recurs(present):
                with contextlib.suppress(NotClaimed):  # the body has put it back, or buried it
                    await keeper.settle([self._occurrences.succeeded(present, self._began_us)])
            else:
                keeper.ack_soon(present)
            self._present = None
        while (message := await keeper.next_message(self._limit, wait=self._wait)) is not None:
            late = self._occurrences.passed_over(message)
            if late is None:
                self._present, self._began_us = message, self._clock.now_us()
                return message
            await keeper.settle([late])
        raise StopAsyncIteration

    async def ack(self, message: Message) -> None:
        """Acknowledge a message of this iteration at once; a `break` does not put it back then.

        Raises NotClaimed when it is not in hand, or no longer.
        """
        if self._occurrences.recurs(message):
            await self._held().settle([self._occurrences.succeeded(message, self._began_us)])
        else:
            await self._held().ack(message)
        if self._present is not None and self._present.id == message.id:
            self._present = None

    async def nack(self, message: Message, *, delay: float | timedelta = 0) -> MessageId | None:
        """Put back a message of this iteration, to fire again after `delay`; it is not acknowledged later."""
        return await self._held().nack(message, delay=delay)

    async def bury(self, message: Message, *, reason: str = "") -> MessageId | None:
        """Move a message of this iteration to the dead letters; it is not acknowledged later."""
        if not self._occurrences.recurs(message):
            return await self._held().bury(message, reason=reason)
        outcome = self._occurrences.failed(message, self._began_us, delay_us=None, reason=reason)
        return (await self._held().settle([outcome]))[0]

    def _held(self) -> DueKeeper:
        if self._keeper is None:
            raise NotClaimed("no message of this iteration was handed out yet", hint="call it inside of `async for`")
        return self._keeper

    async def close(self) -> None:
        """End the iteration, put the present message back, and close the keeper if no other iteration uses it.

        A keeper from `wheel.keeper()` stays open. It may be called twice.
        """
        self._ended = True
        self._release()
        if self._close is not None:
            await self._close(self)

    async def aclose(self) -> None:
        """Call `close`: for contextlib.aclosing."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _release(self) -> None:
        present, self._present = self._present, None
        if present is not None and self._keeper is not None:
            self._keeper.give_back(present)

    def __del__(self) -> None:
        # A loop that ends by `break` or an exception drops the iterator without another call.
        self._release()


class SharedKeeper:
    """The keeper that the iterations of one AsyncWheel share. Used in its event loop only."""

    def __init__(self) -> None:
        self._own: DueKeeper | None = None
        """The keeper that was opened for iterations."""
        self._users = WeakSet[Due]()
        """The iterations that use it. A `break` drops its iteration from the set."""

    async def begin(
        self, due: Due, keepers: Callable[[], Sequence[DueKeeper]], make: Callable[[], DueKeeper], *, wait: bool
    ) -> DueKeeper:
        """Return the open keeper for an iteration: one of the wheel's, or a new one.

        Raises the errors of AsyncKeeper.open.
        """
        for closed in [keeper for keeper in keepers() if keeper.is_closed]:
            await closed.close()  # waits until it has freed the lock
        keeper = next((keeper for keeper in keepers() if keeper.is_used), None)
        if keeper is None:
            keeper = self._own = make()
            self._users.clear()
        if keeper is self._own:
            self._users.add(due)
        return await keeper.open(wait=wait)

    async def end(self, due: Due) -> None:
        """Close the keeper when this was the last iteration that used it."""
        if due in self._users:
            self._users.discard(due)
            if not self._users and self._own is not None:
                await self._own.close()
