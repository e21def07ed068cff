"""The seam to Kafka of a worker: a member of the group that reads calls, and the way out for what they end with.

`client/` implements it, and the tests do with a cluster in memory.
Invariant: an outcome never claims more than the cluster confirmed (node/transport.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from filewheel.kafka.node.topic_look import ReadTopics
from filewheel.kafka.node.transport import Done, Listener, Polled
from filewheel.kafka.records.record import Outgoing

Place = tuple[int, str]
"""A committed position of a partition, and its metadata (progress.py)."""
Group = Callable[[], Any]


class CallSource(Protocol):
    """A member of the workers' group. All calls come from one thread."""

    def poll(self, limit: int, timeout_s: float) -> Polled:
        """Return up to `limit` records of the partitions that were started. Calls the listener. Raises ClusterError."""

    def committed(self, partitions: Sequence[int]) -> Mapping[int, Place | None] | None:
        """Return what the group has for partitions, after all transactions ended; None when it did not answer."""

    def start(self, partition: int, offset: int) -> None:
        """Read an owned partition from this offset on; `BEGINNING` is allowed."""

    def pause(self, partition: int) -> None: ...
    def resume(self, partition: int) -> None: ...
    def commit_positions(self, positions: Mapping[int, Place], *, wait: bool = False) -> None:
        """Commit positions, in the background or before it returns. Raises nothing: a later commit says it again."""

    def group(self) -> Any:
        """Return this member and its generation, for a transaction that commits positions."""

    def close(self) -> None:
        """Leave the group. Calls `Listener.revoked` for what is owned."""


class CallSink(Protocol):
    """The way out: records, and with exactly once the positions of the calls that they come from."""

    exactly_once: bool
    """Positions are committed by `send`, one unit at a time; not by the source."""

    def send(self, records: Sequence[Outgoing], positions: Mapping[int, Place], group: Group, done: Done) -> None:
        """Produce records; exactly once: in one transaction with the positions. Returns at once.

        `group` returns this member, on any thread; the transaction is that of the generation of now.
        After UNDECIDED or FENCED the transaction is decided: the committed positions say how.
        """

    def close(self) -> None:
        """Report nothing more."""


class CallTransport(ReadTopics, Protocol):
    """A cluster, for one scheduler. The topic that is read is that of calls."""

    def check(self) -> None:
        """Raise NoBroker, MissingTopic or NotAllowed, with the next command to try, unless all topics are there."""

    def source(self, listener: Listener) -> CallSource:
        """Join the group."""

    def sink(self) -> CallSink:
        """Return the way out."""

    def send(self, record: Outgoing) -> None:
        """Produce one record, and return when all in-sync replicas have it. Raises ClusterError, TooLarge."""

    def close(self) -> None: ...
