"""A kill for asyncio: the request is made and looked at in the thread that reads, and awaited between the looks.

Invariant: the request is withdrawn at the end, also when the task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from filewheel.aio.thread import LoopThread
from filewheel.message import MessageId
from filewheel.runs.kills import POLL_S, TIMEOUT_S, Killed
from filewheel.runs.run import Then
from filewheel.wheel import Wheel

T = TypeVar("T")


class Reads(Protocol):
    """The part of an AsyncWheel that is needed here."""

    _reader: LoopThread | None

    async def _read(self, function: Callable[[Wheel], T]) -> T:
        """Have the thread that reads call a function with the wheel."""


async def kill(
    self: Reads,
    id_: MessageId | str | bytes | None = None,
    *,
    key: str | None = None,
    then: Then = "cancel",
    timeout_s: float = TIMEOUT_S,
) -> Killed:
    """End the attempt of a message that runs now (see Wheel.kill). A cancelled task withdraws the request."""
    asked = await self._read(lambda wheel: wheel._ask_kill(id_, key, then, timeout_s))
    try:
        async with asyncio.timeout(timeout_s):
            while (answer := await self._read(lambda _: asked.look())) is None:
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return Killed.TIMED_OUT
    finally:
        if self._reader is not None:
            self._reader.post(asked.close)
    return answer
