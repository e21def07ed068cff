"""The seam to Kafka: what the service needs of a cluster, and no more.

confluent.py implements it with confluent-kafka, the tests with a cluster in memory. The service never sees a client.
`RecordSource` reads as a member of the group. `Sink` is the way out of one partition: its records, then its marker.
`Markers` reads what was published. `LogFollower` reads without a group, for the wheels of a standby.
Invariant: an outcome never claims more than the cluster confirmed. What may or may not have happened is `UNDECIDED`,
and only a marker that is read after the next `Sink.open` decides it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from filewheel.kafka.records.last_read import NO_EPOCH, LastRead
from filewheel.kafka.records.record import Outgoing, Record

Place = tuple[str, int]
"""A topic's name, and the number of one of its partitions."""
K = TypeVar("K", bound=Hashable)
"""How a member of a group names its partitions: a number of its one topic, or a Place of several."""
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
BEGINNING = -2
"""As an offset to start from: the first record that the log still holds."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cluster refused one record, and the record or its target is the reason."""

    reason: str
    is_lasting: bool = False
    """No repetition helps, e.g. the record is too large."""
    is_missing: bool = False
    """The target topic, or its partition, does not exist."""


class End(Enum):
    """How a unit ended."""

    DELIVERED = "delivered"
    """Each record and the marker are in the log."""
    REFUSED = "refused"
    """Some records were refused; the marker was not produced."""
    FAILED = "failed"
    """The cluster did not answer, or refused for a reason of its own; the marker is not in the log."""
    UNDECIDED = "undecided"
    """The unit is in the log, or it is not. The sink is finished; the next one decides it."""
    FENCED = "fenced"
    """Another sink of this partition was opened. The unit is in the log, or it is not; this sink is finished."""


@dataclass(frozen=True, slots=True)
class UnitOutcome:
    """What became of a unit."""

    end: End
    left: frozenset[int] = frozenset()
    """The indexes of the records that must be sent again. The others are in the log."""
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    """A part of `left`."""
    reason: str = ""


Done = Callable[[UnitOutcome], None]
"""Called once for each unit, on any thread. It must not block."""


Positions = Mapping[int, tuple[int, str]]
"""Partition → its committed offset, and the note beside it."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """What a transaction commits beside its records."""

    positions: Positions
    group: Callable[[], Any]
    """Returns this member of the group with its generation of now, on any thread."""


class Sink(Protocol):
    """The way out of one partition. One unit at a time."""

    def open(self) -> int:
        """Make this the newest sink of its partition, and put a barrier behind all that earlier ones wrote.

        Returns the barrier's offset in the topic of markers. A transactional sink fences its predecessors first: their
        last transaction is decided when this returns, and they commit none afterwards. Waits for the cluster.

        Raises ClusterError.
        """

    def publish(self, marker: Outgoing) -> None:
        """Put a marker into the log, alone, before the first unit. Waits for the cluster. Raises ClusterError."""

    def send(self, records: Sequence[Outgoing], marker: Outgoing | None, done: Done) -> None:
        """Produce the records, and the marker once each record is in the log; or all of them in one transaction.

        Returns at once; `done` reports the outcome. A unit without a marker ends with its records.
        """

    def close(self) -> None:
        """Drop the sink and what it has not sent yet. A unit under way is undecided; its `done` may not be called."""


class CallSink(Protocol):
    """The way out: records, and with exactly once the positions of the calls that they come from."""

    exactly_once: bool
    """Positions are committed by `send`, one unit at a time; not by the source."""

    def send(self, records: Sequence[Outgoing], commit: GroupCommit | None, done: Done) -> None:
        """Produce records; exactly once: in one transaction with the positions. Returns at once.

        After UNDECIDED or FENCED the transaction is decided: the committed positions say how.
        """

    def close(self) -> None:
        """Report nothing more."""


class Markers(Protocol):
    """The published markers."""

    def read(self, partition: int, barrier: int) -> bytes | None:
        """Return the last committed marker of a partition before `barrier`, packed; None if there is none.

        Raises ClusterError.
        """

    def last(self, partition: int) -> bytes | None:
        """Return the last committed marker that can be seen now, packed; a later one may exist. Raises ClusterError."""

    def close(self) -> None: ...


class Listener(Protocol[K_contra]):
    """Learns which partitions this member of the group owns. Called on the thread that polls the source."""

    def assigned(self, partitions: Sequence[K_contra]) -> None:
        """These partitions are ours from now on. Nothing is read from them until `RecordSource.start`."""

    def revoked(self, partitions: Sequence[K_contra]) -> None:
        """These partitions go to another member when this returns."""

    def lost(self, partitions: Sequence[K_contra]) -> None:
        """These partitions may have another owner already."""


@dataclass(frozen=True, slots=True)
class Polled(Generic[K]):
    """What one poll brought."""

    records: Mapping[K, Sequence[Record]] = field(default_factory=dict)
    """By partition, in the order of offsets."""
    ends: Mapping[K, int] = field(default_factory=dict)
    """Partitions whose end was reached, with the offset that the next record will have at least."""
    gone: Sequence[K] = ()
    """Partitions whose next offset is not in the log any more, or whose log was cut before it."""
    errors: Sequence[str] = ()
    """Troubles that the client mends by itself; for the log."""
    last_read: Mapping[K, LastRead] = field(default_factory=dict)
    """The last record of each partition in `records`; without one whose epoch is not known."""


class RecordSource(Protocol[K]):
    """A member of a consumer group. All calls come from one thread."""

    def poll(self, limit: int, timeout_s: float) -> Polled[K]:
        """Return up to `limit` records of the partitions that were started. Calls the listener.

        Raises ClusterError when the client cannot go on.
        """

    def committed(self, partitions: Sequence[K]) -> Mapping[K, tuple[int, str] | None] | None:
        """Return the offsets that the group has, with their notes, after all transactions ended.

        None when the group did not answer.
        """

    def start(self, partition: K, offset: int, epoch: int = NO_EPOCH) -> None:
        """Read an owned partition from exactly this offset on; `BEGINNING` is allowed.

        With the epoch of the last known record before it, the partition is `gone` when the log has that epoch only up
        to an earlier offset: it was cut, or it has records of later epochs in between.
        """

    def stop(self, partition: K) -> None:
        """Return nothing more of an owned partition until it is started again."""

    def pause(self, partition: K) -> None:
        """Fetch nothing of this partition; what was fetched already may still come."""

    def resume(self, partition: K) -> None:
        """Fetch again."""

    def commit(self, positions: Mapping[K, tuple[int, str]], *, wait: bool = False) -> None:
        """Tell the group offsets of owned partitions, with their notes: in the background, or before it returns.

        Raises nothing: a later poll reports a failure.
        """

    def group(self) -> Any:
        """Return this member and its generation, for a transaction that commits offsets."""

    def close(self) -> None:
        """Leave the group. Calls `Listener.revoked` for what is owned."""


class LogFollower(Protocol):
    """Reads partitions of the delay topic and their markers outside of the group. All calls come from one thread."""

    def follow(self, starts: Mapping[int, tuple[int, int]]) -> None:
        """Follow exactly these partitions, each new one from its offset on, with all of its markers.

        A start is an offset and an epoch, as `RecordSource.start` takes them.
        """

    def poll(self, limit: int, timeout_s: float) -> tuple[Polled[int], Sequence[tuple[int, bytes]]]:
        """Return records, and (partition, packed marker) pairs of committed markers in their order."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a delay service, as the cluster has them."""

    cluster_id: str
    topic_id: str
    """The cluster's id of the delay topic: another one when the topic is deleted and made again."""
    partitions: int


class Transport(Protocol):
    """A cluster, for one delay topic and one node."""

    def check(self) -> Topics:
        """Return what the cluster has. Raises NoBroker, MissingTopic or NotAllowed, with the next command to try."""

    def source(self, listener: Listener[int]) -> RecordSource[int]: ...
    def sink(self, partition: int) -> Sink: ...
    def markers(self) -> Markers: ...
    def follower(self) -> LogFollower: ...
    def stamp(self) -> int | None:
        """Append a record to the topic of markers; return the broker's time of it, in ms. Raises ClusterError.

        None if the topic has the producers' times.
        """

    def range_of(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition of the delay topic and the one after its last. Raises ClusterError."""

    def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Return what `range_of` does for many partitions with two questions; one that is not known now is left out.

        Raises ClusterError.
        """

    def retention_ms(self) -> int | None:
        """Return how long the delay topic keeps a record; None: for ever, or this user may not ask."""

    def first_at(self, partition: int, offset: int) -> LastRead:
        """Return the first record at or after an offset that was read before; one before it if the log is shorter.

        Raises ClusterError when it does not come soon.
        """

    def parted_at(self, partition: int, before: LastRead) -> int | None:
        """Return from which offset on a log that does not have this record has others; None if it is not known.

        Raises ClusterError.
        """

    def timestamp_at(self, partition: int, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset, in ms; None if it does not come soon.

        Raises ClusterError.
        """

    def interrupt(self) -> None:
        """Let questions that wait for an answer end with NoBroker, soon, and all later ones: the node stops."""

    def close(self) -> None: ...
