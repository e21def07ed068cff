"""Records on their way from the poll to the wheels.

Owns the queues between the thread that polls and the thread that takes in. The poll never waits for a disk: above
`NodeSettings.queue` records it pauses a partition, and reads on in the others.
Invariant: each wheel takes the records of its partition in the order of their offsets, none twice and none left out.
Taking in stops while the marker has no room (fire.py), and nothing is read for a partition that is not ours.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Sequence
from typing import Any

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import FilewheelError, WheelFull
from filewheel.kafka.node.loop import FireLoop
from filewheel.kafka.node.owner import Owned, Owner, PartitionState
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import Polled, RecordSource
from filewheel.kafka.records.last_read import LastRead
from filewheel.kafka.records.record import Record
from filewheel.native.compiled import records_size

log = logging.getLogger("filewheel.kafka")

Item = list[Record] | LastRead | int
"""What a partition has queued (owned.py)."""
Understand = Callable[[Sequence[Record]], Sequence[Any]]
"""Turns records into the puts of a wheel. A record that is wrong becomes a put too, of a dead letter."""

BLOCKED_S = 0.02
"""How often a partition is tried again whose marker has no room."""
FULL_US = 1_000_000
"""The first wait of a partition whose disk is full; each next one doubles it. A refused attempt costs as much as one
that succeeds, and leaves a journal's end behind."""
FULL_MAX_US = 10_000_000


class Intake:
    """The queues of all partitions."""

    def __init__(
        self,
        owner: Owner,
        loop: FireLoop,
        understand: Understand,
        settings: NodeSettings,
        tally: NodeCounters | None = None,
        clock: Clock = SYSTEM_CLOCK,
        failed: Callable[[Owned, FilewheelError], None] | None = None,
    ) -> None:
        """`failed` is called when a wheel takes nothing in any more, also later; default: the owner's `fail`."""
        self._owner = owner
        self._failed = failed or owner.fail
        self._loop = loop
        self._understand = understand
        self._settings = settings
        self._tally = tally or NodeCounters()
        self._ready: queue.SimpleQueue[Owned | None] = queue.SimpleQueue()
        self._clock = clock
        self._blocked: dict[Owned, None] = {}
        """Partitions that take nothing in now, each once."""
        self.taken = 0
        """Records that were taken in."""
        self.turns = 0
        self.retention_ms: Callable[[], int | None] = lambda: None
        """Returns how long the delay topic keeps a record; None: for ever, or not known yet."""

    # The thread of the poll.

    def put(self, polled: Polled[int]) -> None:
        """Queue what a poll brought."""
        for partition, records in polled.records.items():
            # Before its records: no position and no marker may cover them without it.
            if partition in polled.last_read:  # mutant: kafka-epoch-behind
                self._queue(partition, polled.last_read[partition], 0)
            self._queue(partition, list(records), len(records))
        for partition, offset in polled.ends.items():
            self._queue(partition, offset, 0)

    def _queue(self, partition: int, item: Item, count: int) -> None:
        owned = self._owner.owned.get(partition)
        if owned is None or owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE):
            return
        owned.queue.append(item)
        owned.queued += count
        if isinstance(item, list):
            owned.queued_bytes += records_size(item)
        self._ready.put(owned)

    def balance(self, source: RecordSource[int]) -> None:
        """Pause the partitions whose queues are long, and resume those whose queues are short again."""
        for owned in list(self._owner.owned.values()):
            if not owned.is_reading:
                continue
            most, most_bytes = self._settings.queue, self._settings.queue_bytes
            is_long = owned.queued > most or owned.queued_bytes > most_bytes  # mutant: kafka-bytes-unbounded
            if not owned.is_paused and is_long:
                source.pause(owned.partition)
                owned.is_paused = True
            elif owned.is_paused and owned.queued <= most // 2 and owned.queued_bytes <= most_bytes // 2:
                source.resume(owned.partition)
                owned.is_paused = False

    # The thread that takes in.

    def step(self, timeout_s: float = 0.0) -> bool:
        """Take in what one partition has queued; wait for at most `timeout_s`. Return False if there was no turn."""
        self.turns += 1
        if self._blocked:
            timeout_s = min(timeout_s, BLOCKED_S)
        try:
            owned = self._ready.get(timeout=timeout_s) if timeout_s > 0 else self._ready.get_nowait()
        except queue.Empty:
            return self._take_blocked()
        self._take_blocked()
        if owned is not None:
            self._take(owned)
        return True

    def end(self) -> None:
        """Wake `step`."""
        self._ready.put(None)

    def _take_blocked(self) -> bool:
        """Try the blocked partitions again; return whether one went on."""
        blocked, self._blocked = self._blocked, {}
        taken = [self._take(owned) for owned in blocked]
        return any(taken)

    def _take(self, owned: Owned) -> bool:
        """Take in what a partition has queued."""
        did = False
        while owned.queue:
            with owned.lock:
                if (
                    owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE)
                    or owned.wheel is None
                    or not owned.queue
                ):
                    return did
                if owned.firing is not None and not owned.firing.may_take_in:  # mutant: kafka-full-marker-takes-in
                    self._blocked[owned] = None
                    return did
                if owned.full_until_us and self._clock.steady_us() < owned.full_until_us:  # mutant: kafka-full-spins
                    self._blocked[owned] = None
                    return did
                item = owned.queue.popleft()
                try:
                    self._take_item(owned, item)
                    owned.error = None
                except WheelFull as exc:
                    # Firing goes on and frees room; the batch is tried again, and the source is paused above the limit.
                    self._wait_for_room(owned, item, exc)
                    return did
                except FilewheelError as exc:
                    # Its offset was not reached: what is queued behind it must not be taken in.
                    self._failed(owned, exc)
                    return did
                did = True
                self._owner.activate_if_whole(owned)
            if owned.firing is not None:
                self._loop.wake(owned.partition)
        return did

    def _wait_for_room(self, owned: Owned, item: Item, exc: WheelFull) -> None:
        if owned.error is None:
            log.error("partition %d takes nothing in: %s", owned.partition, exc)
        owned.error = exc
        owned.queue.appendleft(item)
        self._blocked[owned] = None
        owned.full_wait_us = min(owned.full_wait_us * 2, FULL_MAX_US) or FULL_US
        owned.full_until_us = self._clock.steady_us() + owned.full_wait_us
        self._owner.fire_early(owned)

    def _take_item(self, owned: Owned, item: Item) -> None:
        wheel = owned.wheel
        assert wheel is not None
        if isinstance(item, int):
            wheel.advance(item)
            return
        if isinstance(item, LastRead):
            wheel.note_read(item)
            return
        records = [record for record in item if record.offset >= wheel.ingested]
        if records:
            puts = self._understand(records)
            wheel.take_in(puts)
            self.taken += len(records)
            self._tally.took_in(put.target for put in puts)
            self._note_retention(owned.partition, records, puts)
        owned.queued -= len(item)
        owned.queued_bytes -= records_size(item)
        owned.full_until_us = owned.full_wait_us = 0

    def _note_retention(self, partition: int, records: Sequence[Record], puts: Sequence[Any]) -> None:
        """Count the records that the delay topic may delete before they are due, and say so once an hour."""
        retention_ms = self.retention_ms()
        if retention_ms is None:
            return
        waits_us = [put.due_us - record.timestamp_ms * 1000 for record, put in zip(records, puts, strict=True)]
        longer = [wait_us for wait_us in waits_us if wait_us > retention_ms * 1000]
        if not longer:
            return
        self._tally.count("beyond_retention_total", len(longer))
        if self._tally.may_say("beyond retention"):
            log.warning(
                "partition %d: a record waits %d s, and the delay topic keeps records for %d s: if the wheel is lost "
                "after that, so is the record. Raise retention.ms with `filewheel kafka init --retention ... --alter`",
                partition,
                max(longer) // 1_000_000,
                retention_ms // 1000,
            )
