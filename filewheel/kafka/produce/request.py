"""Builds the record that asks for a delay, out of the arguments of a call. It sends nothing.

Invariant: each record that is returned is one that a node understands; a wrong argument raises BadArgument with its
name, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from filewheel.checks import check_flag, shown
from filewheel.env import Clock
from filewheel.errors import BadArgument
from filewheel.journal.columns import At, Delay
from filewheel.kafka.records import headers as h
from filewheel.kafka.records.options import TOPIC_CHARS_MAX, Policy, is_topic
from filewheel.kafka.records.record import Outgoing
from filewheel.message import US_PER_S
from filewheel.timespec import delay_us, due_from

Text = str | bytes
Headers = Mapping[str, Text | None] | Iterable[tuple[str, Text | None]]

_OURS = h.ROUTING | h.STAMPS | h.BACK
_ASKS = h.ROUTING | {h.DUE_MS}
"""Headers by which any client asks for a delay; here the arguments do."""
_INSTEAD = {
    h.DUE_MS: "give at=",
    h.EPOCH_S: "give at=",
    h.DELAY_MS: "give delay=",
    h.TARGET_TOPIC: "give target",
    h.TARGET_KEY: "give target_key=",
    h.TARGET_PARTITION: "give target_partition=",
}
_PARTITION_END = 1 << 31


class Requests:
    """Builds the records of one delay topic."""

    def __init__(self, topic: str, *, horizon: Delay | None, keyed: bool, clock: Clock) -> None:
        """Check the options. Raises BadArgument."""
        self._policy = Policy(topic, keyed=check_flag("keyed", keyed))
        self._horizon_us = None if horizon is None else delay_us(horizon)
        if self._horizon_us is not None and self._horizon_us <= 0:
            raise BadArgument(f"horizon is more than 0 seconds, not {shown(horizon)}")
        self._clock = clock

    def record(
        self,
        target: str,
        value: bytes | None,
        *,
        delay: Delay | None,
        at: At | None,
        key: Text | None,
        target_key: Text | None,
        target_partition: int | None,
        headers: Headers | None,
    ) -> Outgoing:
        """Return the record for one message. Raises BadArgument."""
        asked = [*_headers(headers), *self._due(delay, at), (h.TARGET_TOPIC, self._target(target))]
        if target_key is not None:
            asked.append((h.TARGET_KEY, _bytes("target_key", target_key)))
        if target_partition is not None:
            asked.append((h.TARGET_PARTITION, _partition(target_partition)))
        body = None if value is None else _value(value)
        name = None if key is None else _bytes("key", key)
        if body is None and name is not None and self._policy.keyed:
            raise BadArgument("a record with a key and without a value cancels", hint="cancel(key)")
        return Outgoing(self._policy.topic, name, body, asked)

    def cancellation(self, key: Text) -> Outgoing:
        """Return the record that cancels what waits with this key. Raises BadArgument."""
        if not self._policy.keyed:
            raise BadArgument(
                f"the records of {self._policy.topic} have no unique keys",
                hint="keyed=True, if its nodes run with --keyed",
            )
        return Outgoing(self._policy.topic, _bytes("key", key), None)

    def _due(self, delay: Delay | None, at: At | None) -> list[tuple[str, bytes | None]]:
        """Return the header of the due, rounded up to milliseconds. A delay counts from the broker's timestamp."""
        now_us = self._clock.now_us()
        due_us = due_from(now_us, delay=delay, at=at)
        if at is None and due_us < now_us:  # the timestamp that it counts from is not known yet
            raise BadArgument(f"delay is at least 0 seconds, not {shown(delay)}", hint="at= takes a time in the past")
        wait_us = max(due_us - now_us, 0)
        if self._horizon_us is not None and wait_us > self._horizon_us:  # mutant: kafka-producer-no-horizon
            raise BadArgument(
                f"it is due in {wait_us / US_PER_S:g} s; the horizon is {self._horizon_us / US_PER_S:g} s",
                hint="send it again later, or raise horizon and the retention of the topic",
            )
        if at is None:
            return [(h.DELAY_MS, b"%d" % -(-wait_us // 1000))]  # mutant: kafka-producer-early
        return [(h.DUE_MS, b"%d" % -(-due_us // 1000))]

    def _target(self, target: str) -> bytes:
        if not isinstance(target, str) or not is_topic(target):
            raise BadArgument(
                f"target is the name of a topic, not {shown(target)}",
                hint=f"1 to {TOPIC_CHARS_MAX} letters, digits, `.`, `_` and `-`",
            )
        if reason := self._policy.not_a_target(target):
            raise BadArgument(f"target is {target!r}, {reason}")
        return target.encode()


def _headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    """Return the caller's headers without those of the service: a received message may be passed on with its own.

    Raises BadArgument for a header that asks for a delay, unless the service delivered the message, or gave it up.
    """
    if headers is None:
        return []
    pairs: object = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise BadArgument(f"headers are a dict, or pairs of a name and a value, not {shown(headers)}")
    found: list[tuple[str, bytes | None]] = []
    asks: list[str] = []
    is_received = False
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadArgument(f"headers are a dict, or pairs of a name and a value; one is {shown(pair)}")
        name, value = pair
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadArgument(f"the name of a header is {shown(name)}, which is not valid Unicode") from None
        is_received |= name in (h.FIRED_MS, h.ERROR)
        if name in _ASKS:
            asks.append(name)
        if name not in _OURS:
            found.append((name, None if value is None else _bytes(f"header {name}", value)))
    if asks and not is_received:  # mutant: kafka-own-due-replaced
        raise BadArgument(f"the header {asks[0]} is set by the arguments", hint=_INSTEAD.get(asks[0], "leave it out"))
    return found


def _bytes(name: str, value: Text) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadArgument(f"{name} is {shown(value)}, which is not valid Unicode") from None
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise BadArgument(f"{name} is text or bytes, not {shown(value)}")
    return bytes(value)


def _value(value: bytes) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        hint = "value.encode()" if isinstance(value, str) else None
        raise BadArgument(f"value is bytes, or None, not {shown(value)}", hint=hint)
    return bytes(value)


def _partition(number: int) -> bytes:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _PARTITION_END:
        raise BadArgument(f"target_partition is a number from 0 to {_PARTITION_END - 1}, not {shown(number)}")
    return b"%d" % number
