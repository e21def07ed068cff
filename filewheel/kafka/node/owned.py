"""One partition of this node: where it stands, its wheel, its sink, and what was read for it and not taken in yet.

Invariant: the queue has batches in the order of their offsets; only the thread of the poll appends to it, but for the
first offset behind a gap.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

from filewheel.errors import FilewheelError
from filewheel.kafka.node.fire import FiringWheel, PartitionFiring
from filewheel.kafka.node.transport import Sink
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.record import Record


class PartitionState(Enum):
    """Where a partition of this node stands."""

    RESTORING = "restoring"
    """Ours; its wheel is opened and the log is read up to the end it had."""
    ACTIVE = "active"
    DRAINING = "draining"
    FAILED = "failed"
    """Ours, and not served: `error` says why."""
    GONE = "gone"


class PartitionWheel(FiringWheel, Protocol):
    """The wheel of a partition, as its owner uses it."""

    @property
    def position(self) -> int | None:
        """The next offset to read; None if nothing was taken in yet."""

    @property
    def is_keyed(self) -> bool:
        """Whether a later record may replace or cancel one that waits."""

    @property
    def has_lost(self) -> bool:
        """Whether it lost records since it was opened. Opened again, it has a position before them."""

    @property
    def is_gone(self) -> bool:
        """Whether its directory was removed. Opened again, it is empty."""

    def take_in(self, puts: Sequence[Any]) -> None: ...
    def note_read(self, last_read: LastRead) -> None:
        """Note a record that was read, with its epoch: before it is taken in."""

    def advance(self, offset: int) -> None:
        """Note that the log has no record between `ingested` and this offset."""

    def apply(self, marker: Marker) -> int:
        """Drop what a marker says is done, and take in none of it afterwards."""

    def housekeep(self) -> int | None: ...
    def close(self) -> None: ...


OpenWheel = Callable[[int], PartitionWheel]
"""Opens the wheel of a partition. Raises what the directory is wrong with."""


class Owned:
    """One partition of this node."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.state = PartitionState.RESTORING
        self.lock = threading.RLock()
        """Held while the wheel takes in, is claimed from, or is closed."""
        self.wheel: PartitionWheel | None = None
        self.sink: Sink | None = None
        self.marker = Marker()
        """The marker that was read at the takeover."""
        self.firing: PartitionFiring | None = None
        self.end = 0
        """Where the log ended at the takeover: it fires once all before it was taken in."""
        self.is_reading = False
        self.restarted_at = -1
        """Where reading was last begun again."""
        self.is_paused = False
        self.queue: deque[list[Record] | LastRead | int] = deque()
        """Batches of records in their order, each behind the place of its last record; a number is the offset that the
        end of the log was seen at."""
        self.queued = 0
        self.queued_bytes = 0
        self.error: FilewheelError | None = None
        self.full_until_us = 0
        """No attempt to take in is made before this steady time: the disk was full."""
        self.full_wait_us = 0
        """How long the last wait was."""
        self.skipped = 0
        """Offsets that the log no longer held."""

    def next_to_read(self) -> int:
        """Return the offset after all that was taken in or is queued. Called under its lock."""
        last = self.wheel.ingested if self.wheel is not None else 0
        for item in reversed(list(self.queue)):
            if not isinstance(item, LastRead):
                return max(last, item if isinstance(item, int) else item[-1].offset + 1)
        return last

    def last_read(self) -> LastRead | None:
        """Return the last record that was read and whose epoch is known. Called under its lock."""
        queued = [item for item in list(self.queue) if isinstance(item, LastRead)]
        return queued[-1] if queued else self.wheel.last_read if self.wheel is not None else None
