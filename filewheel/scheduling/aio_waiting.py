"""The jobs that wait, for an AsyncScheduler: the calls of waiting.py, awaited.

Invariant: each call has the arguments of its sibling, and does its disk work in the threads of the AsyncWheel.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from filewheel.aio.wheel import AsyncWheel
from filewheel.changes import CLEAR_AT_ONCE
from filewheel.checks import check_number, check_whole
from filewheel.firing.cancelled import Cancelled
from filewheel.message import Message, MessageId
from filewheel.reader import given, one_of
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.options import At, Delay
from filewheel.scheduling.results import FIRST_WAIT_S, LAST_WAIT_S, Look, value_of
from filewheel.scheduling.waiting import Named, cancels, checked, is_job, report, topic_of


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
        if limit is not None:
            check_whole("limit", limit, least=0)
        wheel = await self._opened()
        left = sys.maxsize if limit is None else limit
        async with aclosing(wheel.list(after=after, before=before, topic=topic, dead=dead)) as found:
            while left and (message := await anext(found, None)) is not None:
                if is_job(message):
                    left -= 1
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

    async def result(self, id_: MessageId | str, *, timeout_s: float = 0) -> Any:
        """Return what a call has returned; wait for it for `timeout_s` seconds (see Scheduler.result)."""
        look = Look(id_)
        check_number("timeout_s", timeout_s, least=0, most=1e9)
        wheel = await self._opened()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        pause_s = FIRST_WAIT_S
        while (found := await wheel._read(look.look)) is None:
            left_s = end_s - loop.time()
            if left_s <= 0:
                raise look.timed_out(wheel.path, timeout_s)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LAST_WAIT_S)
        return value_of(found)

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
