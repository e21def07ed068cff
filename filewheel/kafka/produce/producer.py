"""The producer for programs with threads: sends delayed records, and cancels them.

Owns a sender, and the errors of sends that no caller has looked at.
Invariant: no failed send passes in silence: its Delivery raises, or `flush`, or the end of the `with`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from filewheel.checks import check_number
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import FilewheelError, NoBroker, anew
from filewheel.journal.columns import At, Delay
from filewheel.kafka.client.sender import TopicSender
from filewheel.kafka.produce.delivery import Delivered, Delivery, delivered
from filewheel.kafka.produce.handle import TIMEOUT_MAX_S, SenderHandle
from filewheel.kafka.produce.request import Headers, Requests, Text
from filewheel.kafka.records.record import Outgoing

log = logging.getLogger("filewheel.kafka")

TIMEOUT_S = 30.0
GRACE_S = 30.0
"""How much later than its time-out the client may answer."""
INTERRUPTED_S = 2.0
"""How long records that were sent may take to arrive after a Ctrl-C."""
_FAILED_MAX = 1000


class DelayProducer:
    """Sends records to a delay topic. Thread-safe.

    `topic` is the delay topic. `horizon` (seconds or timedelta) refuses a longer delay: give the one of the nodes, a
    topic cannot refuse it. `keyed` says that the nodes run with --keyed. `timeout_s` is how long a record may take,
    and how long a call may wait. `properties` are settings of librdkafka.

    In a `with` it asks for the topic at the begin, and flushes at the end. Without one, call `close`.
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
        """Check the arguments. The client is made on first use, so this may come before a fork. Raises BadArgument."""
        self._requests = Requests(topic, horizon=horizon, keyed=keyed, clock=clock)
        self._handle = SenderHandle(bootstrap, topic, properties, timeout_s=timeout_s, clock=SYSTEM_CLOCK)
        self._topic = topic
        self._failed: deque[Delivery] = deque(maxlen=_FAILED_MAX)

    def __enter__(self) -> Self:
        """Open it, and ask a broker for the delay topic. Raises NoBroker, MissingTopic, NotAllowed, BadArgument."""
        try:
            self._handle.get().check()
        except BaseException:
            self._close_sender()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
            return
        try:
            # Ctrl-C must not wait for a broker that is away.
            self._close(None if isinstance(exc, Exception) else INTERRUPTED_S)
        except FilewheelError as other:  # the error of the body counts
            log.error("%s", other)

    def send(
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
    ) -> Delivery:
        """Send one record, which goes to the topic `target` when it is due; return its future.

        It is due after `delay` (seconds or timedelta; counted from the broker's timestamp), or at the time `at` (an
        aware datetime or epoch seconds); with neither, now. `key` is the record's key in the delay topic: on a keyed
        topic it replaces the waiting record with the same one. `target_key`, `target_partition` and `headers` are those
        of the record at the target. Headers of the service are left out, so those of a received record can be given.

        Once the future has a result, the record survives the loss of all brokers but one in-sync replica. While the
        queue is full, the call waits. Cost: 20 µs.

        Raises BadArgument, NoBroker when the queue stays full for `timeout_s`, Closed, Forked, Reentered.
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
        return self._send(record)

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

    def cancel(self, key: Text) -> Delivery:
        """Cancel the waiting record with this key; return the future of the cancellation.

        Only with `keyed`. A node that reads it before the record is due drops the record. One that is due is produced.
        Raises as `send`.
        """
        return self._send(self._requests.cancellation(key))

    def flush(self, timeout_s: float | None = None) -> None:
        """Return once each record that was sent is in the log.

        Raises the error of the first failed send that the caller has not looked at; NoBroker after `timeout_s` (None:
        that of the producer); Closed, Forked, Reentered.
        """
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, least=0, most=TIMEOUT_MAX_S)
        self._flush(self._handle.get(), timeout_s)

    def close(self) -> None:
        """Flush, and close the client. A second call does nothing. Raises as `flush`; it is closed in any case."""
        self._close(None)

    def _close(self, timeout_s: float | None) -> None:
        try:
            sender = self._handle.opened()
            if sender is not None:
                self._flush(sender, timeout_s)
        finally:
            self._close_sender()

    def _send(self, record: Outgoing) -> Delivery:
        sender = self._handle.get()
        future = Delivery()

        def answered(answer: tuple[int, int] | FilewheelError) -> None:
            result = delivered(self._topic, answer)
            if isinstance(result, Delivered):
                future.set_result(result)
            else:
                self._failed.append(future)
                future.set_exception(result)

        sender.send_within(record, answered)
        return future

    def _flush(self, sender: TopicSender, timeout_s: float | None) -> None:
        limit_s = self._handle.timeout_s + GRACE_S if timeout_s is None else timeout_s
        left = sender.flush(limit_s)
        self._raise_failed()
        if left:
            raise NoBroker(f"{self._topic}: {left} records have no answer after {limit_s:g} s", hint="call flush again")

    def _raise_failed(self) -> None:
        """Raise the first error that nobody has seen."""
        unseen: list[Delivery] = []
        while self._failed:
            future = self._failed.popleft()
            if not future.is_seen:  # mutant: kafka-producer-silent
                unseen.append(future)
        if unseen:
            error = unseen[0].exception()
            if len(unseen) > 1:
                log.error("%d records were not sent; the first error: %s", len(unseen), error)
            assert error is not None
            raise anew(error)

    def _close_sender(self) -> None:
        sender = self._handle.end()
        if sender is not None:
            sender.close()
