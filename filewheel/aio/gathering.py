"""Messages that tasks enqueue at the same time: gathered in the event loop, given to the writing thread as one batch.

While the thread is busy the next batch gathers. Who finds no room waits in line, in order.
Invariant: what is withdrawn before its batch was handed over was never there; everything else is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from filewheel.aio.batching import BatchingWheel, Put, Waiting, commit
from filewheel.aio.thread import LoopThread, fail, resolve
from filewheel.errors import Closed
from filewheel.message import MessageId


class Gathering:
    """What waits to be written, and who waits for room. Used in the writer's loop only."""

    def __init__(self, wheel: BatchingWheel, writer: LoopThread, room: int) -> None:
        self._wheel = wheel
        self._writer = writer
        self._room = room
        self._gathering: list[Waiting] = []
        self._busy = False
        """A batch is being written, or is about to be handed over."""
        self._line: deque[asyncio.Future[None]] = deque()
        """Those who wait for room, in order. There is a line only while there is no room."""

    async def put(self, put: Put) -> MessageId:
        """Have a message written with the next batch; return its id once it is as durable as it asked for."""
        if self._room:
            self._room -= 1
        else:
            await self._wait_for_room()
        future: asyncio.Future[MessageId] = self._writer.loop.create_future()
        self._gathering.append((future, put))
        if not self._busy:
            self._busy = True
            # Not now: tasks that run in this turn of the loop join.
            self._writer.loop.call_soon(self._hand_over)
        return await future

    def end(self) -> None:
        """Hand over what gathers, and refuse who waits for room."""
        self._hand_over()
        line, self._line = self._line, deque()
        for gate in line:
            closed = Closed("this wheel was closed; nothing of this call was enqueued", path=self._wheel.path)
            fail(gate, closed)

    async def _wait_for_room(self) -> None:
        """Wait in line. On return the room is taken."""
        gate: asyncio.Future[None] = self._writer.loop.create_future()
        self._line.append(gate)
        try:
            await gate
            self._writer.check()
        except BaseException:
            if gate.done() and not gate.cancelled() and gate.exception() is None:
                self._give_room(1)  # it was given, and is not used
            raise

    def _give_room(self, count: int) -> None:
        self._room += count
        while self._room and self._line:
            gate = self._line.popleft()
            if not gate.done():
                self._room -= 1
                gate.set_result(None)

    def _hand_over(self) -> None:
        """Give the thread what has gathered. What was cancelled until now was never there."""
        batch = [waiting for waiting in self._gathering if not waiting[0].done()]
        withdrawn = len(self._gathering) - len(batch)
        self._gathering = []
        self._busy = bool(batch)
        if withdrawn:
            self._give_room(withdrawn)
        if batch:
            self._writer.post(partial(commit, self._wheel, batch, self._writer.loop, self._written))

    def _written(self, batch: Sequence[Waiting], results: Sequence[MessageId | BaseException]) -> None:
        """In the loop again: hand over the next batch first, then answer everyone."""
        self._hand_over()
        for (future, _), result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                fail(future, result)
            else:
                resolve(future, result)
        self._give_room(len(batch))
