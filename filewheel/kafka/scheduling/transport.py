"""The seam to Kafka of a worker: a member of the group that reads calls, and the way out for what they end with.

`client/` implements it, and the tests do with a cluster in memory.
Invariant: an outcome never claims more than the cluster confirmed (node/transport.py).
"""

from __future__ import annotations

from typing import Protocol

from filewheel.kafka.node.topic_look import ReadTopics
from filewheel.kafka.node.transport import CallSink, Listener, RecordSource
from filewheel.kafka.records.record import Outgoing


class CallTransport(ReadTopics, Protocol):
    """A cluster, for one scheduler. The topic that is read is that of calls."""

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all topics are there."""

    def source(self, listener: Listener[int]) -> RecordSource[int]:
        """Join the group."""

    def sink(self) -> CallSink:
        """Return the way out."""

    def send(self, record: Outgoing) -> None:
        """Produce one record, and return when all in-sync replicas have it. Raises ClusterError, TooLarge."""

    def close(self) -> None: ...
