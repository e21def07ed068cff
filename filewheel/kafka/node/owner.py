"""The partitions of this node: taken over, given away, lost.

Owns the table of partitions and their states. Taking over goes in one order: open the sink (which fences the
predecessor), read the marker, open the wheel, drop what the marker says is done, read the log to the end it had, fire.
Invariant: nothing of a partition fires before its wheel holds all that the log held at the assignment, unless the disk
is full and nothing that waits can be cancelled (fire_early); a partition that was lost publishes nothing more; a
takeover that was overtaken by the next assignment leaves nothing behind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from filewheel.env import Event
from filewheel.errors import BadArgument, ClusterError, FilewheelError, Locked, Outlived, WheelFull
from filewheel.kafka.node.cut_log import check_wheel, read_to, true_marker
from filewheel.kafka.node.fire import PartitionFiring, Rendering
from filewheel.kafka.node.loop import FireLoop
from filewheel.kafka.node.owned import OpenWheel as OpenWheel
from filewheel.kafka.node.owned import Owned as Owned
from filewheel.kafka.node.owned import PartitionState as PartitionState
from filewheel.kafka.node.owned import PartitionWheel as PartitionWheel
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import End, Markers, Sink, Transport, UnitOutcome
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import NO_EPOCH, epoch_before

log = logging.getLogger("filewheel.kafka")

RETRY_S = 1.0
"""The wait before a takeover is tried again that the cluster refused or did not answer."""
_OTHERS = (
    "give all nodes the same. To change them without doubles: a new delay topic for the producers, and nodes with the "
    "old options until the other one is empty. Or stop all nodes, remove their data directories, and start the first "
    "with --accept-options: it delivers up to {:,} records of this partition a second time; --dry-run counts all"
)
_PASSING = (ClusterError, Locked, WheelFull)
"""Troubles of a takeover that may pass."""


class Owner:
    """Takes partitions over and gives them away. The thread of the source calls `assigned`, `revoked` and `lost`."""

    def __init__(
        self,
        transport: Transport,
        loop: FireLoop,
        open_wheel: OpenWheel,
        rendering: Rendering,
        settings: NodeSettings,
        *,
        topic_id: str,
        run: Callable[[Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], None],
        start: Callable[[int, int, int], None],
        release: Callable[[int], None],
        before_firing: Callable[[], None] = lambda: None,
        wait: Callable[[Event, float], bool] = Event.wait,
        tally: NodeCounters | None = None,
    ) -> None:
        self._tally = tally or NodeCounters()
        self._transport = transport
        self._markers: Markers | None = None
        self._loop = loop
        self._open_wheel = open_wheel
        self._rendering = rendering
        self._settings = settings
        self._topic_id = topic_id
        self._run = run
        self._later = later
        self._start = start
        self._before_firing = before_firing
        """Called at each takeover; it may wait for the cluster."""
        self._release = release
        """Called before a wheel is opened: the standby closes it."""
        self._wait = wait
        self._lock = threading.Lock()
        self._turns: dict[int, threading.Lock] = {}
        """One takeover of a partition at a time: an overtaken one closes its wheel before the next opens it."""
        self._open: set[int] = set()
        """Partitions whose wheels are open here, also those that are being given away."""
        self.owned: dict[int, Owned] = {}

    # The listener.

    def assigned(self, partitions: Sequence[int]) -> None:
        """Take partitions over, each in the background."""
        if partitions:  # a cooperative rebalance also calls with none
            log.info("partitions %s are ours", shown(partitions))
        for partition in partitions:
            owned = Owned(partition)
            with self._lock:
                self.owned[partition] = owned
                self._turns.setdefault(partition, threading.Lock())
            self._tally.assigned(partition)
            self._run(lambda owned=owned: self._restore(owned))  # type: ignore[misc]

    def revoked(self, partitions: Sequence[int]) -> None:
        """Finish the units of partitions, and close their wheels."""
        if partitions:
            log.info("partitions %s are given up", shown(partitions))
        leaving = [owned for p in partitions if (owned := self._remove(p)) is not None]
        events = [(owned, self._loop.drain(owned.partition)) for owned in leaving]
        for owned, event in events:
            if not self._wait(event, self._settings.drain_s):
                log.warning("partition %d: its unit did not end in time; it is given back", owned.partition)
                self._wait(self._loop.drop(owned.partition), self._settings.drain_s)
        for owned in leaving:
            self._close(owned)

    def lost(self, partitions: Sequence[int]) -> None:
        """Drop partitions at once: another node may own them already."""
        log.warning("partitions %s are lost: another node may own them already", shown(partitions))
        self._tally.count("lost_total", len(partitions))
        leaving = [owned for p in partitions if (owned := self._remove(p)) is not None]
        for owned in leaving:
            if owned.sink is not None:
                owned.sink.close()
        for event in [self._loop.drop(owned.partition) for owned in leaving]:
            self._wait(event, self._settings.drain_s)
        for owned in leaving:
            self._close(owned)

    def _remove(self, partition: int) -> Owned | None:
        with self._lock:
            owned = self.owned.pop(partition, None)
        if owned is not None:
            with owned.lock:
                owned.state = PartitionState.DRAINING
        return owned

    def _close(self, owned: Owned) -> None:
        """Close what a partition has. A takeover that is under way sees the state and closes what it opens."""
        self._tally.gave_away(owned.partition)
        with owned.lock:
            owned.state = PartitionState.GONE
            sink, owned.sink = owned.sink, None
            wheel, owned.wheel = owned.wheel, None
            owned.queue.clear()
        if sink is not None:
            sink.close()
        if wheel is not None:
            self._closed(wheel, owned.partition)

    # The takeover.

    def _restore(self, owned: Owned) -> None:
        with self._turns[owned.partition]:
            if owned.state is not PartitionState.RESTORING:
                return
            try:
                self._take_over(owned)
            except BadArgument:
                raise  # no partition can be served
            except FilewheelError as exc:
                self._again_or_fail(owned, exc, lambda: self._restore(owned))

    def _take_over(self, owned: Owned) -> None:
        """Open the sink, read the marker, open the wheel: then what the log holds from `start` on is missing."""
        partition = owned.partition
        self._before_firing()
        sink, marker = self._fresh_sink(partition)
        try:
            first, end = self._transport.range_of(partition)
            wheel = owned.wheel or self._opened(partition)
            try:
                last_read = None if owned.is_reading else wheel.last_read  # the client watches over a log that it reads
                read = read_to(max(wheel.position or 0, marker.ingested), last_read, marker.last_read)
                if read > end:  # mutant: kafka-marker-ahead
                    raise _too_short(partition, end, read)
                check_wheel(self._transport, partition, last_read, first)
                marker = true_marker(self._transport, partition, marker, first, wheel.last_read)
                if wheel.position is None and marker == Marker():
                    marker = marker.with_low(first)  # nothing of it was ever read: it begins where its log does
                marker = self._signed(partition, marker, sink)
            except FilewheelError:
                if wheel is not owned.wheel:
                    self._closed(wheel, partition)
                raise
        except FilewheelError:
            sink.close()
            raise
        with owned.lock:
            if owned.state is not PartitionState.RESTORING:
                sink.close()
                self._closed(wheel, partition)
                return
            owned.sink, owned.wheel, owned.marker = sink, wheel, marker
            owned.end = end
            owned.error = None
            wheel.apply(marker)  # mutant: kafka-wheel-without-marker
            if not owned.is_reading:
                start = max(wheel.position or 0, marker.low)
                if start < first:
                    self._pass_gap(owned, start, first)
                    start = first
                wheel.advance(start)
                owned.is_reading = True
                epoch = epoch_before(start, wheel.last_read)  # mutant: kafka-start-without-epoch
                self._start(partition, start, epoch)
            self.activate_if_whole(owned)

    def _pass_gap(self, owned: Owned, start: int, first: int) -> None:
        """Go on at the first offset that is left, and count the others. Raises Outlived unless that was asked for."""
        if self._settings.on_gap == "stop":
            raise Outlived(
                f"the log of partition {owned.partition} begins at offset {first}; offset {start} is the next to read",
                hint="give the topic a longer retention; `filewheel kafka run --on-gap skip` goes on without them",
            )
        owned.skipped += first - start
        self._tally.count("skipped_offsets_total", first - start)
        log.error("partition %d: %d offsets were deleted before they were read", owned.partition, first - start)

    def _fresh_sink(self, partition: int) -> tuple[Sink, Marker]:
        """Open a sink, then read the marker: in this order, so that no predecessor publishes one afterwards."""
        sink = self._transport.sink(partition)
        try:
            barrier = sink.open()
            with self._lock:
                if self._markers is None:
                    self._markers = self._transport.markers()
            packed = self._markers.read(partition, barrier)
            marker = Marker() if packed is None else Marker.unpack(packed)
            self._check_topic(partition, marker)
            if marker.delivery not in ("", self._rendering.delivery) and self._tally.may_say(marker.delivery):
                log.warning(
                    "partition %d was served by %s %s; this node serves it %s: give all nodes the same options",
                    partition,
                    marker.owner or "a node",
                    marker.delivery,
                    self._rendering.delivery,
                )
            return sink, self.readable(partition, marker)
        except FilewheelError:
            sink.close()
            raise

    def _signed(self, partition: int, marker: Marker, sink: Sink) -> Marker:
        """Return the marker that counts. It names the options in the log before anything is taken in with them."""
        options = self._rendering.options
        if marker.options == options:
            return marker
        marker = replace(marker, options=options)
        sink.publish(self._rendering.marker(partition, marker))  # mutant: kafka-marker-unsigned
        return marker

    def readable(self, partition: int, marker: Marker) -> Marker:
        """Return what a marker says to this node. The ids of its steps mean nothing if other options gave them.

        Raises BadArgument for other options, which ends the node: another may own the partition.
        """
        if marker.options in ("", self._rendering.options):
            return marker
        if not self._settings.accept_options:  # mutant: kafka-other-options
            raise BadArgument(
                f"partition {partition} was served by {marker.owner or 'a node'} with another --horizon, "
                "--on-horizon, --default-target or --keyed",
                hint=_OTHERS.format(max(marker.ingested - marker.low, 0)),
            )
        log.warning(
            "partition %d: it gets other options; from offset %d on, what went out goes out again",
            partition,
            marker.low,
        )
        return marker.for_other_options()  # mutant: kafka-steps-of-other-options

    def _check_topic(self, partition: int, marker: Marker) -> None:
        """Refuse a marker of another topic with the same name: it would call new records done."""
        if marker.topic_id and self._topic_id and marker.topic_id != self._topic_id:  # mutant: kafka-marker-of-another
            raise ClusterError(
                f"the marker of partition {partition} is of a topic that was deleted (id {marker.topic_id})",
                hint="if the topic was made anew on purpose, delete the topic of its markers too",
            )

    def activate_if_whole(self, owned: Owned) -> None:
        """Let a partition fire once its wheel holds all that the log held at the takeover. Called under its lock."""
        wheel, sink = owned.wheel, owned.sink
        if owned.state is not PartitionState.RESTORING or wheel is None or sink is None:
            return
        if not owned.is_reading or wheel.ingested < owned.end:  # mutant: kafka-fires-before-the-end
            return
        owned.state = PartitionState.ACTIVE
        log.info("partition %d: this node fires it, from offset %d on", owned.partition, owned.marker.low)
        self._tally.fires(owned.partition)
        if owned.firing is None:
            self._fire(owned, wheel, sink)

    def fire_early(self, owned: Owned) -> None:
        """Let a partition fire whose disk has no room for the rest of its log: so it frees room. Called under its lock.

        Only where no record that is still to be read can cancel one that waits. What goes out early is not in the order
        of all dues: records that were not read yet may be due before.
        """
        wheel, sink = owned.wheel, owned.sink
        if owned.state is not PartitionState.RESTORING or wheel is None or sink is None or owned.firing is not None:
            return
        if wheel.is_keyed:  # mutant: kafka-early-keyed
            return
        log.warning(
            "partition %d: it fires what is due before its log was read to the end, to free room", owned.partition
        )
        self._fire(owned, wheel, sink)

    def _fire(self, owned: Owned, wheel: PartitionWheel, sink: Sink) -> None:
        owned.firing = PartitionFiring(
            owned.partition,
            wheel,
            sink,
            owned.marker,
            self._rendering,
            lock=owned.lock,
            limit=self._settings.unit,
            done=self._loop.outcome,
            tally=self._tally,
        )
        self._loop.add(owned.firing)

    # Troubles.

    def fail(self, owned: Owned, exc: FilewheelError) -> None:
        """Serve this partition no more, and keep the error for `status`."""
        log.error("partition %d: %s", owned.partition, exc)
        with owned.lock:
            owned.error = exc
            if owned.state in (PartitionState.RESTORING, PartitionState.ACTIVE):
                owned.state = PartitionState.FAILED

    def _again_or_fail(self, owned: Owned, exc: FilewheelError, call: Callable[[], None]) -> None:
        """Call once more after a wait if that may help; else serve the partition no more."""
        if isinstance(exc, Outlived) or not isinstance(exc, _PASSING):  # mutant: kafka-passing-trouble-ends
            self.fail(owned, exc)
            return
        if str(exc) != str(owned.error):
            log.warning("partition %d: %s; trying again", owned.partition, exc)
        owned.error = exc
        self._later(RETRY_S, lambda: self._run(call))

    def gap_seen(self, owned: Owned) -> None:
        """The log has no record at the next offset to read. What is left of it is asked in the background."""
        self._run(lambda: self._read_on(owned))

    def _read_on(self, owned: Owned) -> None:
        """Read on behind a gap; wait while the log cannot be asked, or ends before what was read of it."""
        try:
            first, end = self._transport.range_of(owned.partition)
            with owned.lock:
                if owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE):
                    return
                start, last_read = owned.next_to_read(), owned.last_read()
            if read_to(start, last_read) > end:
                raise _too_short(owned.partition, end, start)
            check_wheel(self._transport, owned.partition, last_read, first)
            with owned.lock:
                if owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE):
                    return
                if start < first:
                    self._pass_gap(owned, start, first)  # mutant: kafka-gap-unseen
                    owned.queue.append(first)
                start = max(start, first)
                # Without an epoch: the record itself was compared. Another leader may have written behind it.
                begin = partial(self._start, owned.partition, start, NO_EPOCH)  # mutant: kafka-epoch-again
                is_again, owned.restarted_at = owned.restarted_at == start, start
                owned.error = None
            if is_again:
                self._later(RETRY_S, begin)
            else:
                begin()
        except FilewheelError as exc:
            self._again_or_fail(owned, exc, lambda: self._read_on(owned))

    def sink_finished(self, partition: int, outcome: UnitOutcome) -> None:
        """Open a new sink for a partition whose last one is finished. Called on the thread of the fire loop.

        A fenced node waits for a session time-out. If it is the owner then, the group says so, and it may fence back.
        """
        owned = self.owned.get(partition)
        if owned is None:
            return
        log.warning("partition %d: %s (%s)", partition, outcome.end.value, outcome.reason)
        if outcome.end is End.FENCED:  # mutant: kafka-fencing-war
            self._later(self._settings.session_s, lambda: self._run(lambda: self._reopen(owned)))
        else:
            self._run(lambda: self._reopen(owned))

    def _reopen(self, owned: Owned) -> None:
        """Take a partition over again, with the wheel that it has."""
        with owned.lock:
            if owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE) or owned.firing is None:
                return
            owned.state = PartitionState.RESTORING
            sink, owned.sink, owned.firing = owned.sink, None, None
        if sink is not None:
            sink.close()
        self._restore(owned)

    def close(self) -> None:
        """Close the reader of markers. The partitions were given away before."""
        if self._markers is not None:
            self._markers.close()

    def busy(self) -> set[int]:
        """Return the partitions whose wheels are this owner's: the standby does not open them."""
        with self._lock:
            return self.owned.keys() | self._open

    def _opened(self, partition: int) -> PartitionWheel:
        with self._lock:
            self._open.add(partition)
        try:
            self._release(partition)
            return self._open_wheel(partition)
        except BaseException:
            with self._lock:
                self._open.discard(partition)
            raise

    def _closed(self, wheel: PartitionWheel, partition: int) -> None:
        """Close a wheel. What fails here was not promised: the position is a lower bound, the log has the records."""
        try:
            wheel.close()
        except FilewheelError as exc:
            log.error("partition %d: closing its wheel failed: %s", partition, exc)
        with self._lock:
            self._open.discard(partition)


def shown(partitions: Sequence[int]) -> str:
    """Return numbers of partitions for people."""
    return ", ".join(map(str, sorted(partitions)))


def _too_short(partition: int, end: int, read: int) -> ClusterError:
    return ClusterError(
        f"the log of partition {partition} ends at offset {end}, and offset {read - 1} was read before",
        hint="wait for its broker; if the topic was made anew, delete its markers and the data too",
    )
