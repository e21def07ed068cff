"""The rules of a topic, as the intake and the firing use them: what comes in as puts, what goes out as records.

Invariant: each record of the delay topic becomes one put, and each message one record; none raises for its content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.packing import Put
from filewheel.kafka.records import fate
from filewheel.kafka.records.envelope import envelope_of, shortened
from filewheel.kafka.records.headers import Cancel, Delayed, delayed_of, poison
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import Message


class Rules:
    """The rules of one delay topic, for one node."""

    def __init__(self, policy: Policy, node: str, topic_id: str) -> None:
        self._policy = policy
        self._node = node
        self._topic_id = topic_id

    @property
    def options(self) -> str:
        """The digest of the options that give the ids."""
        return self._policy.digest

    def understand(self, records: Sequence[Record]) -> list[Put]:
        """Return the puts of records. Cost: 6 µs a record."""
        return [self._put(record) for record in records]

    def outgoing(self, partition: int, message: Message, fired_ms: int) -> Outgoing:
        """Return the record that a due message becomes. Raises Damaged, or NewerFormat."""
        return fate.outgoing(message, partition, fired_ms, self._policy)

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
        signed = replace(marker, owner=self._node, topic_id=self._topic_id, options=self.options)
        return Outgoing(self._policy.marker_topic, b"%d" % partition, signed.pack(), (), partition)

    def _put(self, record: Record) -> Put:
        policy = self._policy
        verdict = delayed_of(record, policy)
        if isinstance(verdict, Cancel):
            return Put(record.offset, 0, "", b"", record.timestamp_ms, verdict.key, True)
        packed = envelope_of(record, verdict).pack()
        if len(packed) > PAYLOAD_BYTES_LIMIT:
            reason = f"it has {len(packed)} bytes, and a wheel takes {PAYLOAD_BYTES_LIMIT}"
            verdict = poison(record, policy, reason)
            packed = shortened(record, reason).pack()
        key = record.key if policy.keyed and isinstance(verdict, Delayed) else None
        return Put(record.offset, verdict.due_us, verdict.topic, packed, record.timestamp_ms, key)
