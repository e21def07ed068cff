"""The rules of a topic, as the intake and the firing use them: what comes in as puts, what goes out as records.

Invariant: each record of the delay topic becomes one put, and each message one record; none raises for its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.records import fate
from filewheel.kafka.records.envelope import envelope_of, shortened
from filewheel.kafka.records.headers import DUE_END_MS, Cancel, Delayed, delayed_of, poison
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import Message
from filewheel.native.compiled import delayed_puts, deliveries

TARGETS_MAX = 4096
"""Records with another target are understood in Python: one topic has few targets."""


class Rules:
    """The rules of one delay topic, for one node."""

    def __init__(self, policy: Policy, node: str, topic_id: str, *, exactly_once: bool = False) -> None:
        self._policy = policy
        self.delivery = policy.delivery(exactly_once=exactly_once)
        """How records are delivered, in words."""
        self._node = node
        self._topic_id = topic_id
        self._targets: dict[bytes, str] = {}
        """Names of targets that were understood once, by the value of their header."""

    @property
    def options(self) -> str:
        """The digest of the options that give the ids."""
        return self._policy.digest

    def understand(self, records: Sequence[Record]) -> list[LogPut]:
        """Return the puts of records. Cost: 0.5 µs a record, of one that is not plain 8 µs."""
        policy = self._policy
        horizon_ms = -1 if policy.horizon_ms is None else policy.horizon_ms
        puts, is_left = delayed_puts(
            list(records),
            self._targets,
            policy.default_target or None,
            horizon_ms,
            DUE_END_MS,
            PAYLOAD_BYTES_LIMIT,
            policy.keyed,
        )
        if is_left:
            puts = [put or self._put(record) for put, record in zip(puts, records, strict=True)]
        return puts

    def outgoing(self, partition: int, messages: Sequence[Message], fired_ms: int) -> list[Outgoing]:
        """Return the records that due messages become. Cost: 1 µs each, of one that is not plain 9 µs.

        Raises Damaged, or NewerFormat.
        """
        policy = self._policy
        made, is_left = deliveries(list(messages), policy.topic.encode(), partition, fired_ms, policy.keep_routing)
        if is_left:
            pairs = zip(made, messages, strict=True)
            made = [one or fate.outgoing(message, partition, fired_ms, policy) for one, message in pairs]
        return made

    def instead(self, partition: int, message: Message, refusal: Refusal, now_ms: int) -> Outgoing | None:
        """Return the record that takes the place of a refused one; None to send the same one again."""
        policy = self._policy
        if refusal.is_missing:
            policy = policy.for_missing_target  # mutant: kafka-typo-holds
        if refusal.is_lasting and policy.on_target_error == "retry":
            policy = replace(policy, on_target_error="dead-letter")  # no repetition helps
        return fate.refused(message, refusal.reason, partition, now_ms, policy)

    def marker(self, partition: int, marker: Marker) -> Outgoing:
        """Return the record that publishes a marker. It lies in the partition of the same number."""
        signed = replace(
            marker, owner=self._node, topic_id=self._topic_id, options=self.options, delivery=self.delivery
        )
        return Outgoing(self._policy.marker_topic, b"%d" % partition, signed.pack(), (), partition)

    def _put(self, record: Record) -> LogPut:
        policy = self._policy
        verdict = delayed_of(record, policy)
        if isinstance(verdict, Cancel):
            return LogPut(record.offset, 0, "", b"", record.timestamp_ms, verdict.key, True)
        packed = envelope_of(record, verdict).pack()
        if len(packed) > PAYLOAD_BYTES_LIMIT:
            reason = f"it has {len(packed)} bytes, and a wheel takes {PAYLOAD_BYTES_LIMIT}"
            verdict = poison(record, policy, reason)
            packed = shortened(record, reason).pack()
        key, unless_due_us = None, -1
        if policy.keyed and isinstance(verdict, Delayed):
            key, unless_due_us = record.key, verdict.unless_due_us
        if isinstance(verdict, Delayed) and not verdict.is_rolled and len(self._targets) < TARGETS_MAX:
            self._targets[verdict.topic.encode()] = verdict.topic
        return LogPut(
            record.offset, verdict.due_us, verdict.topic, packed, record.timestamp_ms, key, unless_due_us=unless_due_us
        )
