"""The jobs that wait, for an AsyncScheduler: the calls of waiting.py, awaited.

Invariant: each call has the arguments of its sibling, and does its disk work in the threads of the AsyncWheel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from filewheel.aio.wheel import AsyncWheel
from filewheel.changes import CLEAR_AT_ONCE
from filewheel.firing.cancelled import Cancelled
from filewheel.message import Message, MessageId
from filewheel.reader import given, one_of
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.options import At, Delay
from filewheel.scheduling.waiting import Named, cancels, checked, report, topic_of


class AsyncWaiting:
    """What waits, for an AsyncScheduler."""

    _telemetry: Telemetry

    async def _opened(self) -> AsyncWheel:
        """Return the wheel, which the first call opens."""
        raise NotImplementedError

    async def list(
        self,
        handler: Named | None = None,
        *,
        after: At | None = None,
        before: At | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Yield the jobs that wait, in due order (see Scheduler.list), read in chunks of a few hundred."""
        topic = topic_of(handler)
        wheel = await self._opened()
        found = wheel.list(after=after, before=before, topic=topic, limit=limit, dead=dead)
        async with aclosing(found):
            async for message in found:
                yield message

    async def get(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Message | None:
        """Return the job with this id or key, or None (see Scheduler.get)."""
        wheel = await self._opened()
        return await wheel.get(**given(id_, key))

    async def reschedule(
        self,
        id_: MessageId | str | None = None,
        *,
        key: str | None = None,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> MessageId:
        """Move a job, by its id or key, to another time; return its new id (see Scheduler.reschedule)."""
        wheel = await self._opened()
        return await wheel.reschedule(**given(id_, key), delay=delay, at=at)

    async def cancel(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Cancelled:
        """Cancel a call by its id or its key; return whether it was stopped in time, had begun, or was not found.

        The result is true when it was pending. A call that has begun continues, and is not retried.
        """
        wheel = await self._opened()
        done = await wheel.cancel(**given(id_, key))
        if done:
            self._telemetry.cancelled(one_of(id_, key), done)
        return done

    async def cancel_all(self, handler: Named) -> int:
        """Cancel the jobs of a handler that wait; return how many (see Scheduler.cancel_all)."""
        checked(handler)
        wheel = await self._opened()
        count = 0
        some: list[MessageId] = []
        async with aclosing(self.list(handler)) as found:
            async for message in found:
                if cancels(message):
                    some.append(message.id)
                if len(some) == CLEAR_AT_ONCE:
                    count += report(self._telemetry, await wheel.cancel_many(some))
                    some = []
        return count + (report(self._telemetry, await wheel.cancel_many(some)) if some else 0)
