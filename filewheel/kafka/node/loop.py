"""The fire loop: one thread fires all partitions of a node.

Owns the table of firings and their next times. Outcomes and requests of other threads come in through one queue.
Invariant: a firing is touched by this loop only, and the loop never waits for one partition: it sleeps until the next
due time or the next entry of its queue.
"""

from __future__ import annotations

import heapq
import logging
import queue
from collections.abc import Callable
from typing import Any

from filewheel.env import Clock, Event
from filewheel.errors import FilewheelError, WheelFull
from filewheel.kafka.node.fire import PartitionFiring
from filewheel.kafka.node.transport import Sink, UnitOutcome

log = logging.getLogger("filewheel.kafka")

LONGEST_SLEEP_S = 1.0
"""A wall clock that steps is noticed after this time."""
CLOCK_STEP_US = 10_000
"""A smaller change of the wall clock against the steady one is no step."""
HELD_US = 1_000_000
"""How soon a partition is asked again while nothing may fire."""
NEAR_US = 200
"""A time this near to the noted one is the noted one."""

Failed = Callable[[Any, FilewheelError], None]


class FireLoop:
    """Fires the partitions that were added, each by its key. `run` is its thread; levels and tests call `step`."""

    def __init__(
        self,
        clock: Clock,
        *,
        failed: Failed,
        stopped: Callable[[Any, UnitOutcome], None],
        may_fire: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = clock
        self._failed = failed
        """Called when the wheel of a partition failed. The partition fires no more."""
        self._stopped = stopped
        """Called when a partition's sink is finished. Its unit was given back, and it fires no more."""
        self._may_fire = may_fire
        """Says whether the clock can be believed."""
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._firings: dict[Any, PartitionFiring] = {}
        self._draining: dict[Any, Event] = {}
        self._times: list[tuple[int, Any]] = []
        """(steady time, partition), a heap; only an entry that is also in `_next` counts."""
        self._next: dict[Any, int] = {}
        """The steady time at which each partition is asked again."""
        self._skew_us = clock.now_us() - clock.steady_us()
        self._ended = False
        self.turns = 0

    # Requests, from any thread.

    def post(self, call: Callable[[], object]) -> None:
        """Run a call on the loop's thread, soon."""
        self._inbox.put(call)

    def outcome(self, partition: Any, sink: Sink, outcome: UnitOutcome) -> None:
        """Report the outcome of a unit."""
        self.post(lambda: self._ended_unit(partition, sink, outcome))

    def add(self, firing: PartitionFiring) -> None:
        """Fire this partition from now on."""
        self.post(lambda: self._add(firing))

    def wake(self, partition: Any) -> None:
        """Ask this partition again: messages were taken in."""
        self.post(lambda: self._step(partition))

    def drain(self, partition: Any) -> Event:
        """Begin no unit of this partition any more; the event is set when none is under way."""
        event = Event()
        self.post(lambda: self._drain(partition, event))
        return event

    def drop(self, partition: Any) -> Event:
        """Forget this partition at once, and give back its unit; the event is set when that is done."""
        event = Event()
        self.post(lambda: self._drop(partition, event))
        return event

    def end(self) -> None:
        """Let `run` return."""
        self.post(self._end)

    # The loop's thread.

    def run(self) -> None:
        """Fire until `end`."""
        while not self._ended:
            self.step(LONGEST_SLEEP_S)

    def step(self, timeout_s: float = 0.0) -> bool:
        """Serve the queue and what is due; wait for at most `timeout_s`. Return whether anything was done."""
        self.turns += 1
        wait_s = min(timeout_s, self.until_next_s())
        did = False
        try:
            call = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
            while True:
                did = True
                call()
                call = self._inbox.get_nowait()
        except queue.Empty:
            pass
        now = self._clock.steady_us()
        self._follow_clock(now)
        while self._times and self._times[0][0] <= now:
            time, partition = heapq.heappop(self._times)
            if self._next.get(partition) == time:
                del self._next[partition]
                did = self._step(partition) or did
        return did

    def _follow_clock(self, steady_us: int) -> None:
        """Ask each partition again when the wall clock stepped: its next due came nearer or went away."""
        skew_us = self._clock.now_us() - steady_us
        if abs(skew_us - self._skew_us) > CLOCK_STEP_US:
            self._skew_us = skew_us
            for firing in self._firings.values():
                self._note(firing)

    def until_next_s(self) -> float:
        """Return how long nothing is due."""
        return max(self._times[0][0] - self._clock.steady_us(), 0) / 1e6 if self._times else LONGEST_SLEEP_S

    def _add(self, firing: PartitionFiring) -> None:
        self._firings[firing.key] = firing
        self._step(firing.key)

    def _step(self, partition: Any) -> bool:
        """Let a firing begin what is due, and note when to ask again."""
        firing = self._firings.get(partition)
        if firing is None:
            return False
        if partition in self._draining:
            self._finish_draining(partition, firing)
            return False
        if not self._may_fire():
            self._note_at(partition, self._clock.steady_us() + HELD_US)
            return False
        try:
            did = firing.step(self._clock.now_us(), self._clock.steady_us())
            self._note(firing)
        except WheelFull as exc:  # it fires again once there is room
            firing.hold(str(exc), self._clock.now_us())
            self._note_at(partition, self._clock.steady_us() + HELD_US)
            return False
        except FilewheelError as exc:
            self._give_up(firing, exc)
            return False
        return did

    def _note(self, firing: PartitionFiring) -> None:
        steady = self._clock.steady_us()
        wait = firing.next_us(steady, self._clock.now_us())
        if wait is None:
            return
        self._note_at(firing.key, steady + wait)

    def _note_at(self, partition: Any, steady_us: int) -> None:
        noted = self._next.get(partition)
        if noted is None or steady_us < noted - NEAR_US:
            self._next[partition] = steady_us
            heapq.heappush(self._times, (steady_us, partition))

    def _ended_unit(self, partition: Any, sink: Sink, outcome: UnitOutcome) -> None:
        firing = self._firings.get(partition)
        if firing is None:
            return
        try:
            firing.ended(sink, outcome, self._clock.now_us(), self._clock.steady_us())
        except FilewheelError as exc:
            self._give_up(firing, exc)
            return
        if firing.needs_sink and partition not in self._draining:
            firing.stop()
            del self._firings[partition]
            self._stopped(partition, outcome)
            return
        self._step(partition)

    def _give_up(self, firing: PartitionFiring, exc: FilewheelError) -> None:
        self._firings.pop(firing.key, None)
        log.error("partition %s fires no more: %s", firing.key, exc)
        self._failed(firing.key, exc)

    def _drain(self, partition: Any, event: Event) -> None:
        self._draining[partition] = event
        firing = self._firings.get(partition)
        if firing is None:
            self._draining.pop(partition).set()
        else:
            self._finish_draining(partition, firing)

    def _finish_draining(self, partition: Any, firing: PartitionFiring) -> None:
        """End a firing that waits: one that backs off or has lost its sink gives its unit back."""
        if firing.is_sending:
            return
        firing.stop()
        del self._firings[partition]
        self._draining.pop(partition).set()

    def _drop(self, partition: Any, event: Event) -> None:
        firing = self._firings.pop(partition, None)
        if firing is not None:
            firing.stop()
        drained = self._draining.pop(partition, None)
        if drained is not None:
            drained.set()
        event.set()

    def _end(self) -> None:
        self._ended = True
