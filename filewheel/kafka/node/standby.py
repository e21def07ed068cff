"""The wheels of partitions that this node does not own: kept ready, never fired.

Owns a reader outside of the group, and the wheels that it fills. Markers of the owners drop what was produced, so a
wheel here holds what the owner's holds, a moment later.
Invariant: a wheel is open here or with the owner, never with both. `release` returns when it is closed here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from filewheel.errors import BadArgument, ClusterError, FilewheelError
from filewheel.kafka.node.cut_log import check_wheel, is_of_older_log, read_to, true_marker
from filewheel.kafka.node.intake import Understand
from filewheel.kafka.node.owner import OpenWheel, PartitionWheel
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import LogFollower, Polled, Transport
from filewheel.kafka.node.watch import LogFigures
from filewheel.kafka.node.watchdog import Unit
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import NO_EPOCH, epoch_before

log = logging.getLogger("filewheel.kafka")


class StandbyWheels:
    """The wheels of what others own. `step` is a turn of its thread."""

    def __init__(
        self,
        transport: Transport,
        open_wheel: OpenWheel,
        understand: Understand,
        settings: NodeSettings,
        partitions: int,
        readable: Callable[[int, Marker], Marker] = lambda partition, marker: marker,
    ) -> None:
        self._transport = transport
        self._follower: LogFollower = transport.follower()
        self._open_wheel = open_wheel
        self._understand = understand
        self._settings = settings
        self._readable = readable
        """Returns what a marker says to this node. Raises BadArgument, which ends the node."""
        self._every = frozenset(range(partitions))
        self._lock = threading.Lock()
        """Held while a wheel here is used, opened or closed."""
        self._wheels: dict[int, PartitionWheel] = {}
        self._followed: dict[int, PartitionWheel] = {}
        """The wheels that the follower reads for."""
        self._failed: dict[int, str] = {}
        """Partitions that are not followed until the next try, and why."""
        self._said: dict[int, str] = {}
        """What the log has of each already."""
        self._compared: set[int] = set()
        """Partitions that the client did not find by an epoch: their logs are compared by the last record alone."""

    def step(self, busy: Callable[[], Collection[int]], timeout_s: float = 0.0) -> bool:
        """Follow all partitions but the busy ones, whose wheels the owner has; return whether anything was read."""
        with self._lock:
            wanted = self._every - set(busy()) - self._failed.keys()  # asked under the lock: after `release` it is busy
            for partition in self._wheels.keys() - wanted:
                self._close(partition)
            for partition in wanted - self._wheels.keys():
                self._open(partition)
            starts = {p: (w.ingested, self._epoch(p, w)) for p, w in self._wheels.items()}
            kept = {p: starts[p] for p, w in self._wheels.items() if self._followed.get(p) is w}
            if kept != starts:
                # A wheel that was closed and opened again may be behind what was read for it before.
                self._follower.follow(kept)  # mutant: kafka-standby-reads-on
            self._followed = dict(self._wheels)
            self._follower.follow(starts)
        polled, markers = self._follower.poll(self._settings.poll, timeout_s)
        for error in polled.errors:
            log.warning("standby: %s", error)
        with self._lock:
            self._take_in(polled)
            for partition, packed in markers:
                self._apply(partition, packed)
        return bool(polled.records or markers)

    def _epoch(self, partition: int, wheel: PartitionWheel) -> int:
        return NO_EPOCH if partition in self._compared else epoch_before(wheel.ingested, wheel.last_read)

    def grow(self, partitions: int) -> None:
        """Follow the partitions that were added, too: there are so many now."""
        with self._lock:
            self._every |= frozenset(range(partitions))

    def try_again(self) -> None:
        """Follow the partitions again that were given up: a disk has room again, an owner is done with what is gone."""
        with self._lock:
            self._failed.clear()  # mutant: kafka-standby-gives-up-for-good

    def look_for_wheels(self) -> None:
        """Begin anew with the wheels whose directories were removed."""
        with self._lock:
            for partition in [p for p, wheel in self._wheels.items() if wheel.is_gone]:
                log.error("standby of partition %d: its directory was removed; it is filled anew", partition)
                self._close(partition)

    def release(self, partition: int) -> None:
        """Close the wheel of a partition that this node takes over."""
        with self._lock:
            self._failed.pop(partition, None)
            self._compared.discard(partition)
            if partition in self._wheels:
                self._close(partition)

    def failed(self, wheel: object, exc: FilewheelError) -> None:
        """Follow the partition of this wheel no more: its upkeep failed."""
        with self._lock:
            for partition in [p for p, one in self._wheels.items() if one is wheel]:
                self._give_up(partition, exc)

    def units(self, figures: Mapping[int, LogFigures]) -> Iterator[Unit]:
        """Return the units of the watchdog: what is followed, and what should be. From any thread; does not wait."""
        for partition, reason in list(self._failed.items()):
            yield Unit(f"the standby of partition {partition} took nothing in", None, reason, severity="warning")
        for partition, wheel in list(self._wheels.items()):
            at, end = wheel.ingested, figures[partition].end if partition in figures else None
            waits_for = None if end in (None, at) else f"it has read up to offset {at}, and the log ends at {end}"
            yield Unit(f"the standby of partition {partition} took nothing in", at, waits_for, severity="warning")

    def positions(self) -> dict[int, int]:
        """Return how far each followed partition was taken in."""
        with self._lock:
            return {partition: wheel.ingested for partition, wheel in self._wheels.items()}

    def close(self) -> None:
        """Close all wheels and the reader. Follow nothing afterwards."""
        with self._lock:
            for partition in list(self._wheels):
                self._close(partition)
        self._follower.close()

    def _open(self, partition: int) -> None:
        """Open a wheel at the place where its owner's marker says that anything is left."""
        markers = self._transport.markers()
        try:
            packed = markers.last(partition)
            marker = Marker() if packed is None else self._readable(partition, Marker.unpack(packed))
            first, end = self._transport.range_of(partition)
            wheel = self._open_wheel(partition)
        except ClusterError as exc:
            log.warning("standby of partition %d: %s; trying again", partition, exc)
            return
        except BadArgument:
            raise  # this node has other options
        except FilewheelError as exc:
            self._note_failure(partition, str(exc))
            return
        self._wheels[partition] = wheel
        try:
            if read_to(0, wheel.last_read, marker.last_read) <= end:
                check_wheel(self._transport, partition, wheel.last_read, first)
                marker = true_marker(self._transport, partition, marker, first, wheel.last_read)
        except ClusterError as exc:
            log.warning("standby of partition %d: %s; trying again", partition, exc)
            self._close(partition)
            return
        except FilewheelError as exc:
            self._give_up(partition, exc)
            return
        wheel.apply(marker)
        start = max(wheel.position or 0, marker.low)
        if start < first:
            if wheel.position is not None or marker != Marker():
                self._give_up(partition, None)
                return
            start = first
        wheel.advance(start)

    def _take_in(self, polled: Polled[int]) -> None:
        for partition, records in polled.records.items():
            wheel = self._wheels.get(partition)
            if wheel is None:
                continue
            if partition in polled.last_read:
                wheel.note_read(polled.last_read[partition])
            self._compared.discard(partition)  # the client knows the epoch now
            missing = [record for record in records if record.offset >= wheel.ingested]
            try:
                if missing:
                    wheel.take_in(self._understand(missing))
            except FilewheelError as exc:
                self._give_up(partition, exc)
        for partition, offset in polled.ends.items():
            if partition in self._wheels:
                self._wheels[partition].advance(offset)
        for partition in polled.gone:
            if partition in self._compared:
                self._give_up(partition, None)
            elif partition in self._wheels:  # opened again, it is compared with its log
                self._compared.add(partition)
                self._close(partition)

    def _apply(self, partition: int, packed: bytes) -> None:
        wheel = self._wheels.get(partition)
        if wheel is None:
            return
        try:
            marker = self._readable(partition, Marker.unpack(packed))  # mutant: kafka-standby-other-options
            if is_of_older_log(marker, wheel.last_read):  # mutant: kafka-standby-of-a-cut-log
                return
            wheel.apply(marker)
        except BadArgument:
            raise  # this node has other options
        except FilewheelError as exc:
            self._give_up(partition, exc)

    def _give_up(self, partition: int, exc: FilewheelError | None) -> None:
        """Follow this partition no more."""
        self._note_failure(partition, str(exc or "its log was cut, or lost the next record"))
        self._close(partition)

    def _note_failure(self, partition: int, reason: str) -> None:
        if self._said.get(partition) != reason:
            log.error("standby of partition %d: %s", partition, reason)
        self._failed[partition] = self._said[partition] = reason

    def _close(self, partition: int) -> None:
        wheel = self._wheels.pop(partition)
        try:
            wheel.close()
        except FilewheelError as exc:
            log.error("standby of partition %d: closing its wheel failed: %s", partition, exc)
