"""The delay service of one node: four threads around a source, the wheels and the sinks.

The poll thread owns the source and waits for nothing else. The intake thread writes to the wheels, the fire thread
produces, the housekeeping thread flushes and commits. A few more threads take partitions over.
Invariant: each part has one thread. A failed part ends the service with its error; a failed partition is reported, and
the others go on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from filewheel.env import SYSTEM_CLOCK, Clock, Event
from filewheel.errors import BadArgument, FilewheelError, NoWheel, anew
from filewheel.kafka.node.clock_guard import ClockGuard
from filewheel.kafka.node.fire import Rendering
from filewheel.kafka.node.health import NodeHealth
from filewheel.kafka.node.intake import Intake, Understand
from filewheel.kafka.node.loop import FireLoop
from filewheel.kafka.node.metrics import NodeMetrics
from filewheel.kafka.node.note import About, note_of
from filewheel.kafka.node.owner import Owned, Owner, PartitionState, PartitionWheel
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.standby import StandbyWheels
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import RecordSource, Topics, Transport, UnitOutcome
from filewheel.kafka.node.units import health_of, units_of
from filewheel.kafka.node.upkeep import NeedsUpkeep, UpkeepThread
from filewheel.kafka.node.watch import LogWatch
from filewheel.kafka.node.watchdog import Unit, Watchdog
from filewheel.kafka.partition.data_lock import DataLock
from filewheel.message import US_PER_S
from filewheel.metrics.prometheus import Family

log = logging.getLogger("filewheel.kafka")

OpenWheel = Callable[[int, Callable[[NeedsUpkeep], None]], PartitionWheel]
"""Opens the wheel of a partition. The wheel calls the function when it needs upkeep."""

POLL_S = 0.1
"""How long a poll waits for records; a partition that was taken over starts within this time."""
HOUSEKEEPING_S = 0.2
"""The longest sleep of the housekeeping thread: what was put off runs within this time."""
COMMIT_S = 5.0
AGAIN_S = 60.0
"""How soon a standby is tried again that was given up."""
WAKE_S = 0.5
"""How often the thread of `run` wakes. Python handles signals in the main thread, and a signal that the kernel gave to
another thread wakes nobody."""
REBUILD_S = 1.0
"""The wait before a wheel that lost records is filled from the log."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of this node."""

    partition: int
    state: PartitionState
    ingested: int
    fired: int
    replaced: int
    failures: int
    reason: str
    """Why it is not served, or why its last unit failed."""
    skipped: int = 0
    """Offsets that the log no longer held when they were to be read, since it was taken over."""


class Node:
    """The parts of a service, without threads: each `*_step` is a turn of one thread. Tests call them by hand."""

    def __init__(
        self,
        transport: Transport,
        open_wheel: OpenWheel,
        rendering: Rendering,
        understand: Understand,
        settings: NodeSettings,
        *,
        topics: Topics,
        clock: Clock = SYSTEM_CLOCK,
        run: Callable[[Callable[[], None]], None],
        wait: Callable[[Event, float], bool] = Event.wait,
        tally: NodeCounters | None = None,
    ) -> None:
        self.settings = settings
        self.tally = tally or NodeCounters(clock=clock)
        self._clock = clock
        self._commands: deque[Callable[[RecordSource[int]], None]] = deque()
        """Calls for the thread that owns the source."""
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self._timers_lock = threading.Lock()
        self._commit_us = 0
        self.about = About(standby=settings.standby == "all")
        """What the notes of its partitions say about this node."""
        self._tried_us = clock.steady_us()
        self.clock_guard = ClockGuard(transport.stamp, clock, round(settings.clock_ahead_max_s * US_PER_S), run)
        self.loop = FireLoop(
            clock, failed=self._wheel_failed, stopped=self._sink_finished, may_fire=lambda: self.clock_guard.may_fire
        )
        self.upkeep = UpkeepThread(clock, failed=self._upkeep_failed)

        def opened(partition: int) -> PartitionWheel:
            return open_wheel(partition, self.upkeep.wake)

        self.owner = Owner(
            transport,
            self.loop,
            opened,
            rendering,
            settings,
            topic_id=topics.topic_id,
            run=run,
            later=self._later,
            start=self._start,
            release=self._release,
            wait=wait,
            before_firing=self.clock_guard.first,
            tally=self.tally,
        )
        self.intake = Intake(self.owner, self.loop, understand, settings, self.tally, clock, self._failed)
        self.standby: StandbyWheels | None = None
        if settings.standby == "all":
            self.standby = StandbyWheels(
                transport, opened, understand, settings, topics.partitions, self.owner.readable
            )
        self.watch = LogWatch(transport, topics, self.owner, self.tally, clock, run)
        self.watch.followed = self._followed
        self.intake.retention_ms = lambda: self.watch.retention_ms
        self.metrics = NodeMetrics(self.owner, self.tally, self.watch, clock, self.health, self._followed)
        self.metrics.clock_offset_us = lambda: self.clock_guard.offset_us
        self._turns = dict.fromkeys(("poll", "house", "standby"), 0)
        """How many turns these threads made. None waits long."""
        self.watchdog = Watchdog(self._units, clock)
        self.source = transport.source(self.owner)

    def poll_step(self, timeout_s: float = 0.0) -> bool:
        """Read what has arrived, and pause or resume partitions."""
        self._turns["poll"] += 1
        while self._commands:
            self._commands.popleft()(self.source)
        polled = self.source.poll(self.settings.poll, timeout_s)
        for error in polled.errors:
            self.tally.count("client_errors_total")
            log.warning("%s", error)
            self.watch.hurry()
        for partition in polled.gone:
            self._over_gap(partition)
        self.intake.put(polled)
        self.intake.balance(self.source)
        return bool(polled.records or polled.ends)

    def housekeeping_step(self, timeout_s: float = 0.0) -> None:
        """Keep the wheels, tell the group how far they are, and run what was put off."""
        self.upkeep.step(timeout_s)
        self._turns["house"] += 1
        now = self._clock.steady_us()
        self.watch.step()
        self.clock_guard.step()
        if self.standby is not None:
            self.standby.grow(self.watch.topics.partitions)  # mutant: kafka-added-unfollowed
            if now - self._tried_us >= AGAIN_S * US_PER_S:
                self._tried_us = now
                self.standby.try_again()
        with self._timers_lock:
            due = [call for at, call in self._timers if at <= now]
            self._timers = [(at, call) for at, call in self._timers if at > now]
        for call in due:
            call()
        if now - self._commit_us >= COMMIT_S * 1e6:
            self._commit_us = now
            self._look_for_wheels()
            self._commit()

    def _look_for_wheels(self) -> None:
        """Fill the wheels anew whose directories were removed. An idle one would notice only when something is due."""
        for owned in list(self.owner.owned.values()):
            wheel = None if owned.state is PartitionState.FAILED else owned.wheel
            if wheel is not None and wheel.is_gone:  # mutant: kafka-gone-unlooked
                hint = "its records are read from the topic again; remove data of a stopped node only"
                self._failed(owned, NoWheel("its directory was removed", hint=hint))
        if self.standby is not None:
            self.standby.look_for_wheels()

    def _commit(self) -> None:
        """Tell the group how far each partition is, and how it is: with the source's thread."""
        health, now_us = self.health(), self._clock.now_us()
        found = {o.partition: note_of(o, self.about, health, now_us) for o in list(self.owner.owned.values())}
        notes = {partition: (one[0], one[1].pack()) for partition, one in found.items() if one is not None}

        def commit(source: RecordSource[int]) -> None:
            # mutant: kafka-note-of-a-lost-partition
            source.commit({p: note for p, note in notes.items() if p in self.owner.owned})

        self._commands.append(commit)

    def standby_step(self, timeout_s: float = 0.0) -> bool:
        """Fill the wheels of what others own."""
        self._turns["standby"] += 1
        return self.standby is not None and self.standby.step(self.owner.busy, timeout_s)

    def status(self) -> Sequence[PartitionStatus]:
        """Return what each partition of this node does."""
        return [_status_of(owned) for owned in sorted(self.owner.owned.values(), key=lambda o: o.partition)]

    def health(self) -> NodeHealth:
        """Return what is wrong with this node now."""
        owned = sorted(self.owner.owned.values(), key=lambda o: o.partition)
        return health_of(owned, self.watch.figures(), self.clock_guard, self.watchdog.look(), self._clock.steady_us())

    def _units(self) -> Iterator[Unit]:
        """Return the units of this node, for the watchdog."""
        turns = {**self._turns, "intake": self.intake.turns + self.intake.taken, "fire": self.loop.turns}
        for name, place in turns.items():
            has_thread = name != "standby" or self.standby is not None
            yield Unit(f"the {name} thread made no turn", place, "" if has_thread else None)
        yield Unit("the cluster gave no answer", self.watch.looks, self.watch.silence)
        figures, now_us = self.watch.figures(), self._clock.now_us() if self.clock_guard.may_fire else None
        for owned in list(self.owner.owned.values()):
            yield from units_of(owned, figures.get(owned.partition), now_us)
        if self.standby is not None:
            yield from self.standby.units(figures)

    def _followed(self) -> Mapping[int, int]:
        return {} if self.standby is None else self.standby.positions()

    def _upkeep_failed(self, wheel: NeedsUpkeep, exc: FilewheelError) -> None:
        for owned in list(self.owner.owned.values()):
            if owned.wheel is wheel:
                self._failed(owned, exc)
                return
        if self.standby is not None:
            self.standby.failed(wheel, exc)

    def _later(self, wait_s: float, call: Callable[[], None]) -> None:
        with self._timers_lock:
            self._timers.append((self._clock.steady_us() + round(wait_s * 1e6), call))

    def _start(self, partition: int, offset: int, epoch: int) -> None:
        def start(source: RecordSource[int]) -> None:
            if partition in self.owner.owned:
                source.start(partition, offset, epoch)
                self.watch.hurry()

        self._commands.append(start)

    def _release(self, partition: int) -> None:
        if self.standby is not None:
            self.standby.release(partition)

    def _over_gap(self, partition: int) -> None:
        owned = self.owner.owned.get(partition)
        if owned is not None:
            self.owner.gap_seen(owned)

    def _sink_finished(self, partition: int, outcome: UnitOutcome) -> None:
        self.owner.sink_finished(partition, outcome)

    def _wheel_failed(self, partition: int, exc: FilewheelError) -> None:
        owned = self.owner.owned.get(partition)
        if owned is not None:
            self._failed(owned, exc)

    def _failed(self, owned: Owned, exc: FilewheelError) -> None:
        self.owner.fail(owned, exc)
        if owned.wheel is not None and owned.wheel.has_lost:
            self._later(REBUILD_S, lambda: self._commands.append(lambda source: self._rebuild(owned, source)))

    def _rebuild(self, owned: Owned, source: RecordSource[int]) -> None:
        """Take a partition over once more: its wheel lost records, and the log has them."""
        partition = owned.partition
        if self.owner.owned.get(partition) is owned:
            source.stop(partition)
            self.owner.lost([partition])
            self.owner.assigned([partition])


class DelayService:
    """A node of the delay service. `run` blocks until `stop`."""

    def __init__(
        self,
        transport: Transport,
        open_wheel: OpenWheel,
        rendering: Rendering,
        understand: Understand,
        settings: NodeSettings,
        *,
        topics: Topics,
        tally: NodeCounters | None = None,
        lock: DataLock | None = None,
    ) -> None:
        self._transport = transport
        self._lock = lock
        """Held while the service lives: no other node uses the data."""
        self._pool = ThreadPoolExecutor(settings.restores, thread_name_prefix="filewheel-kafka-restore")
        self.node = Node(
            transport, open_wheel, rendering, understand, settings, topics=topics, run=self._submit, tally=tally
        )
        self.partitions = topics.partitions
        """How many partitions the delay topic had at the start."""
        self._stop = Event()
        self._failure: BaseException | None = None
        self._is_run = False

    def run(self) -> None:
        """Serve until `stop`. On return the units under way have ended, or were given back.

        Raises ClusterError, or the error of the part that failed.
        """
        if self._is_run:
            raise BadArgument("a service runs once", hint="make another DelayService")
        self._is_run = True
        fire = self._thread("fire", self.node.loop.run)
        intake = self._thread("intake", self._intake)
        house = self._thread("house", self._house)
        standby = self._thread("standby", self._standby)
        poll = self._thread("poll", self._poll)
        while not self._stop.wait(WAKE_S):  # mutant: kafka-signal-unheard
            self.node.watchdog.look()
        self.node.watch.end()
        self._transport.interrupt()  # mutant: kafka-stop-waits-for-answers
        while poll.is_alive():  # gives the partitions away: fire and intake are still needed
            poll.join(WAKE_S)
        self._ended = True
        self.node.intake.end()
        intake.join()
        self.node.loop.end()
        fire.join()
        house.join()
        standby.join()
        self._pool.shutdown()
        self.node.owner.close()
        self._transport.close()
        if self._lock is not None:
            self._lock.close()
        if self._failure is not None:
            raise anew(self._failure)

    def stop(self) -> None:
        """Let `run` return once the partitions are given away. From any thread."""
        self._stop.set()

    def status(self) -> Sequence[PartitionStatus]:
        """Return what each partition of this node does."""
        return self.node.status()

    def metrics(self) -> list[Family]:
        """Return the metrics of this node as families; `filewheel.metrics.render` makes their text. From any thread."""
        return self.node.metrics.families()

    def health(self) -> NodeHealth:
        """Return what is wrong with this node now. From any thread."""
        return self.node.health()

    _ended = False

    def _submit(self, call: Callable[[], None]) -> None:
        if not self._stop.is_set():
            self._pool.submit(self._guarded(call))

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._guarded(target), name=f"filewheel-kafka-{name}")
        thread.start()
        return thread

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a call whose failure ends the service."""

        def guarded() -> None:
            try:
                call()
            except BaseException as exc:
                if not isinstance(exc, FilewheelError):
                    log.exception("a part of the service failed")
                self._failure = self._failure or exc
                self._stop.set()

        return guarded

    def _poll(self) -> None:
        try:
            while not self._stop.is_set():
                self.node.poll_step(POLL_S)
        finally:
            self.node.source.close()

    def _intake(self) -> None:
        while not self._ended:
            self.node.intake.step(POLL_S)

    def _standby(self) -> None:
        standby = self.node.standby
        if standby is None:
            return
        try:
            while not self._stop.is_set():
                self.node.standby_step(POLL_S)
        finally:
            standby.close()

    def _house(self) -> None:
        while not self._stop.is_set():
            if self._lock is not None:
                self._lock.keep()
            self.node.housekeeping_step(HOUSEKEEPING_S)


def _status_of(owned: Owned) -> PartitionStatus:
    firing = owned.firing
    reason = str(owned.error) if owned.error is not None else firing.reason if firing is not None else ""
    return PartitionStatus(
        owned.partition,
        owned.state,
        owned.wheel.ingested if owned.wheel is not None else 0,
        firing.counts.fired if firing is not None else 0,
        firing.counts.replaced if firing is not None else 0,
        firing.counts.failures if firing is not None else 0,
        reason,
        owned.skipped,
    )
