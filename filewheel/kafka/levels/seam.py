"""The seam to Kafka of the levels: what the loop needs of a cluster, and no more.

client/level_client.py implements it with confluent-kafka, the tests with a cluster in memory.
Invariant: an outcome never claims more than the cluster confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from filewheel.kafka.node.transport import Done, Place
from filewheel.kafka.records.record import Outgoing, Record


@dataclass(frozen=True, slots=True)
class PolledLevels:
    """What one poll brought."""

    records: Sequence[tuple[str, Record]] = ()
    """(topic, record), in the order of offsets within each partition."""
    gone: Sequence[Place] = ()
    """Partitions whose next offset is not in the log any more: they go on with the first that is left."""
    ends: Mapping[Place, int] = field(default_factory=dict)
    """Partitions whose end was reached, with the offset that the next record will have at least."""
    errors: Sequence[str] = ()
    """Troubles that the client mends by itself; for the log."""


class LevelListener(Protocol):
    """Learns which partitions this member of the group owns. Called on the thread of `LevelSource.poll`."""

    def assigned(self, places: Sequence[Place]) -> None:
        """These are ours from now on, read from the committed offset or the beginning."""

    def revoked(self, places: Sequence[Place]) -> None:
        """These go to another member when this returns."""

    def lost(self, places: Sequence[Place]) -> None:
        """These may have another owner already."""


class LevelSource(Protocol):
    """A member of the consumer group of all levels. All calls come from one thread."""

    def poll(self, limit: int, timeout_s: float) -> PolledLevels:
        """Return up to `limit` records. Calls the listener. Raises ClusterError when the client cannot go on."""

    def pause(self, place: Place) -> None: ...
    def resume(self, place: Place) -> None: ...
    def commit(self, offsets: Mapping[Place, int], *, wait: bool) -> None:
        """Tell the group from which offsets the next owner reads. A failure is reported by a later poll."""

    def close(self) -> None:
        """Leave the group. Calls `LevelListener.revoked` for what is owned."""


class LevelSink(Protocol):
    """The way out."""

    def send(self, records: Sequence[Outgoing], done: Done) -> None:
        """Produce records. Returns at once; `done` reports the outcome, on any thread."""

    def close(self) -> None:
        """Wait some seconds for what was sent."""
