"""The producer for asyncio: the same calls as coroutines. No call blocks the event loop.

Owns a sender. Answers come on its thread, and go to the loop by `call_soon_threadsafe`.
Invariant: each `send` that was not cancelled returns or raises; a cancelled one may have sent its record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from filewheel.checks import check_number
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import FilewheelError, NoBroker, OtherLoop
from filewheel.journal.columns import At, Delay
from filewheel.kafka.client.sender import ROOM_S, TopicSender
from filewheel.kafka.produce.delivery import Delivered, delivered
from filewheel.kafka.produce.handle import TIMEOUT_MAX_S, SenderHandle
from filewheel.kafka.produce.producer import GRACE_S, INTERRUPTED_S, TIMEOUT_S
from filewheel.kafka.produce.request import Headers, Requests, Text
from filewheel.kafka.records.record import Outgoing

log = logging.getLogger("filewheel.kafka")


class AsyncDelayProducer:
    """Sends records to a delay topic from one event loop. Any number of tasks at once.

    The arguments are those of DelayProducer. Use it in an `async with`, or call `close`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        topic: str,
        horizon: Delay | None = None,
        keyed: bool = False,
        timeout_s: float = TIMEOUT_S,
        properties: Mapping[str, str | int | float | bool] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Check the arguments. The client is made on first use. Raises BadArgument."""
        self._requests = Requests(topic, horizon=horizon, keyed=keyed, clock=clock)
        self._handle = SenderHandle(bootstrap, topic, properties, timeout_s=timeout_s, clock=SYSTEM_CLOCK)
        self._topic = topic
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Open it, and ask a broker for the delay topic. Raises NoBroker, MissingTopic, NotAllowed, BadArgument."""
        try:
            sender = await self._opened()
            await asyncio.to_thread(sender.check)
        except BaseException:
            await self._close_sender()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close(INTERRUPTED_S if exc is not None and not isinstance(exc, Exception) else None)
        except FilewheelError as other:
            if exc is None:
                raise
            log.error("%s", other)  # the error of the body counts

    async def send(
        self,
        target: str,
        value: bytes | None,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        key: Text | None = None,
        target_key: Text | None = None,
        target_partition: int | None = None,
        headers: Headers | None = None,
    ) -> Delivered:
        """Send one record, which goes to the topic `target` when it is due; return its place once it is in the log.

        The arguments are those of DelayProducer.send. Tasks that send at the same time share a request to the broker.
        While the queue is full, the task waits. A cancelled send may have sent its record.

        Raises BadArgument, NoBroker, MissingTopic, NotAllowed, ClusterError, TooLarge, Closed, Forked, OtherLoop.
        """
        record = self._requests.record(
            target,
            value,
            delay=delay,
            at=at,
            key=key,
            target_key=target_key,
            target_partition=target_partition,
            headers=headers,
        )
        return await self._send(record)

    def check(
        self,
        target: str,
        value: bytes | None,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        key: Text | None = None,
        target_key: Text | None = None,
        target_partition: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Return if `send` takes these arguments. Nothing is sent, and no broker is asked. Raises BadArgument."""
        self._requests.record(
            target,
            value,
            delay=delay,
            at=at,
            key=key,
            target_key=target_key,
            target_partition=target_partition,
            headers=headers,
        )

    async def cancel(self, key: Text) -> Delivered:
        """Cancel the waiting record with this key; return once the cancellation is in the log. Only with `keyed`."""
        return await self._send(self._requests.cancellation(key))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Return once each record that was sent was answered: the sends raise their own errors.

        Raises NoBroker after `timeout_s` (None: that of the producer), Closed, Forked, OtherLoop.
        """
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, least=0, most=TIMEOUT_MAX_S)
        await self._flush(await self._opened(), timeout_s)

    async def close(self) -> None:
        """Flush, and close the client. A second call does nothing. Raises NoBroker; it is closed in any case."""
        await self._close(None)

    async def _close(self, timeout_s: float | None) -> None:
        try:
            sender = self._handle.opened()
            if sender is not None:
                await self._flush(sender, timeout_s)
        finally:
            await self._close_sender()

    async def _opened(self) -> TopicSender:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise OtherLoop(
                "this producer was opened in another event loop",
                hint="make an AsyncDelayProducer in each loop, or use DelayProducer, which threads can share",
            )
        sender = self._handle.opened()
        return sender if sender is not None else await asyncio.to_thread(self._handle.get)

    async def _send(self, record: Outgoing) -> Delivered:
        sender = await self._opened()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Delivered] = loop.create_future()

        def answered(answer: tuple[int, int] | FilewheelError) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future, delivered(self._topic, answer))
            except RuntimeError:  # the loop is closed: no task is left that waits for it
                log.warning("%s: a record was answered after its event loop had ended", self._topic)

        end = sender.deadline_us()
        while not sender.send(record, answered):
            if self._handle.clock.steady_us() >= end:
                raise sender.full()
            await asyncio.sleep(ROOM_S)
            sender = await self._opened()
        return await future

    async def _flush(self, sender: TopicSender, timeout_s: float | None) -> None:
        limit_s = self._handle.timeout_s + GRACE_S if timeout_s is None else timeout_s
        left = await asyncio.to_thread(sender.flush, limit_s)
        if left:
            raise NoBroker(f"{self._topic}: {left} records have no answer after {limit_s:g} s", hint="call flush again")

    async def _close_sender(self) -> None:
        sender = self._handle.end()
        if sender is not None:
            await asyncio.to_thread(sender.close)


def _resolve(future: asyncio.Future[Delivered], result: Delivered | FilewheelError) -> None:
    if future.done():
        return  # its task was cancelled
    if isinstance(result, Delivered):
        future.set_result(result)
    else:
        future.set_exception(result)
