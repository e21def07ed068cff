"""The clients of a scheduler: a producer for enqueues and outcomes, a consumer for each member of the group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from filewheel.kafka.client.admin import Admin
from filewheel.kafka.client.call_transaction import TransactionCallSink
from filewheel.kafka.client.clients import GroupClients
from filewheel.kafka.client.group import GroupSource, membership
from filewheel.kafka.client.shared_sink import SharedSink
from filewheel.kafka.node.transport import CallSink, Listener
from filewheel.kafka.records.record import Outgoing

ANSWER_S = 30.0
DELIVERY_MS = 25_000
"""A call that was not confirmed in time is given up, so that it does not run after an error."""
TRANSACTION_MS = 15_000
"""A dead worker's open transaction keeps its calls from the next owner for this long, or until it is back."""


class ConfluentCalls(GroupClients):
    """A cluster, for one scheduler."""

    def __init__(
        self,
        config: Mapping[str, Any],
        delay: str,
        calls: str,
        dead: str,
        *,
        group: str,
        worker: str | None,
        session_s: float,
    ) -> None:
        """`worker` names this worker's transactions; None for at least once.

        Raises BadArgument when confluent-kafka is not installed.
        """
        make = "scheduler.make_topics()"
        needed = {delay: f"`filewheel kafka init --topic {delay}`", calls: make, dead: make}
        super().__init__(config, group, needed, [calls], delivery_ms=DELIVERY_MS)
        self.answer_s = ANSWER_S
        self._worker = worker
        self._session_s = session_s

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed unless the cluster has all three topics."""
        self.topics()

    def interrupt(self) -> None:
        """Let questions to the brokers that are under way end without an answer. Later ones have new clients."""
        super().interrupt()
        with self._lock:
            self._reader, self._admin = None, Admin(self._config)

    def source(self, listener: Listener[int]) -> GroupSource[int]:
        """Join the group."""
        config = membership(self._config, self._group, self._session_s)
        return GroupSource(config, self._read, listener, lambda topic, number: number, at_once=True)

    def sink(self) -> CallSink:
        """Return the way out."""
        if self._worker is None:
            return SharedSink(self.producer)
        config = self.transactional(f"{self._group}.{self._worker}", TRANSACTION_MS)
        return TransactionCallSink(config, self._read[0], self._partitions)

    def _partitions(self) -> list[tuple[str, int]]:
        """Return each partition of the three topics; of dead letters there may be none just now."""
        found = self._admin.topics(self._address, self.answer_s).topics
        return [(name, p) for name in self._needed if name in found for p in found[name].partitions]

    def send(self, record: Outgoing) -> None:
        """Produce one record, and wait for all in-sync replicas. Raises ClusterError, TooLarge."""
        self.producer().put(record, ANSWER_S)
