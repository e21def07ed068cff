"""The calls of one worker: claimed from a consumer group, and ended by records, in place of the keeper of a wheel.

A record that was read waits here until the dispatcher claims it. Once its call ended, the records of the outcome are
produced; only then its offset counts as done, and is committed later. A crash at any point leaves an offset that is not
done, so the next owner of the partition runs the call again.
Owns the source, the outbox, and the progress of each owned partition. One thread uses it, but for `begin` and `wake`.
Invariants: an offset is done only after the cluster confirmed what its call ended with; nothing of a partition that
was given away is produced or committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from filewheel.env import Clock, Event
from filewheel.errors import Damaged
from filewheel.format.settings import Sync
from filewheel.journal.settlement import Settlement
from filewheel.kafka.node.transport import BEGINNING
from filewheel.kafka.node.watchdog import Unit
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.kafka.scheduling.call import CallTopics, cancel_of, dead_of_record, message_of, record_of, records_of
from filewheel.kafka.scheduling.occurrences import KafkaOccurrences
from filewheel.kafka.scheduling.outbox import Place, UnconfirmedEnds
from filewheel.kafka.scheduling.progress import Committed, Progress, of_topic
from filewheel.kafka.scheduling.transport import CallTransport
from filewheel.message import US_PER_S, Message, MessageId

log = logging.getLogger("filewheel.kafka.scheduling")

POLL_S = 0.1
"""The longest poll: a stop is noticed within this time."""
READ = 500
"""The most records of one poll, and of one partition that wait here; its reading pauses above."""
COMMIT_US = US_PER_S
COMMIT_AGAIN_US = 10 * US_PER_S
"""How often all positions are committed, also those that did not change."""
DRAIN_US = 5 * US_PER_S
"""How long running calls of a partition may end before it is given away."""


class CallKeeper:
    """Claims calls of the partitions that this member of the group owns, and ends them."""

    def __init__(
        self,
        transport: CallTransport,
        topics: CallTopics,
        clock: Clock,
        *,
        in_flight: int,
        occurrences: KafkaOccurrences,
        topic_id: str = "",
    ) -> None:
        """Join the group. `topic_id` is the cluster's id of the topic of calls."""
        self._topics = topics
        self._topic_id = topic_id
        self._clock = clock
        self._in_flight = in_flight
        self._occurrences = occurrences
        self._partitions: dict[int, Progress] = {}
        self._coming: set[int] = set()
        """Assigned partitions whose committed position is not known yet."""
        self._waiting: dict[int, deque[tuple[int, Message]]] = {}
        """Read and not claimed, by partition: offset and call."""
        self._paused: set[int] = set()
        self._held: dict[bytes, tuple[Message, list[Place]]] = {}
        self._begun: set[bytes] = set()
        self._committed: dict[int, Committed] = {}
        self._commit_us = self._again_us = 0
        self._awake = Event()
        self.on_drain: Callable[[], object] = lambda: None
        """Called repeatedly while a partition is to be given away: takes outcomes of ended calls."""
        self.polls = 0
        self._outbox = UnconfirmedEnds(transport.sink(), clock, self.wake)
        self._source = transport.source(self)

    # -- what the dispatcher asks (scheduling/claims.py) -------------------------------------------------------

    def now_us(self) -> int:
        """Return the wall time: a worker calls what the delay service found due."""
        return self._clock.now_us()

    def check_may_fire(self) -> None:
        """Do nothing: `begin` refuses calls of partitions that were given away."""

    def claim(self, limit: int, *, at_most: Mapping[str, int], begun: bool) -> list[Message]:
        """Return up to `limit` calls, in turn from each partition. `at_most` is not needed: no handler has a limit."""
        limit = min(limit, self._in_flight - len(self._outbox))  # mutant: kafka-unwritten-grows
        claimed: list[Message] = []
        queues = [(self._partitions[p], queue) for p, queue in self._waiting.items() if queue]
        while queues and len(claimed) < limit:
            for progress, queue in list(queues):
                if len(claimed) < limit and queue and progress.has_room(queue[0][0]):
                    self._claim_one(progress, queue, claimed)
                else:
                    queues.remove((progress, queue))
        return claimed

    def _claim_one(self, progress: Progress, queue: deque[tuple[int, Message]], claimed: list[Message]) -> None:
        offset, message = queue.popleft()
        if message.id in self._held:  # produced twice: one call for both  # mutant: kafka-twice-in-hand
            self._held[message.id][1].append((progress, offset))
            return
        self._held[message.id] = message, [(progress, offset)]
        claimed.append(message)

    def has_passed_over(self, topic: str) -> bool:
        """Return False: a claim passes over nothing."""
        return False

    def begin(self, what: list[MessageId], /) -> set[bytes]:
        """Return the ids of calls whose partition was given away: the new owner runs them. Thread-safe."""
        refused = set()
        for id_ in what:
            self._begun.add(id_)
            if id_ not in self._held:  # mutant: kafka-revoked-begins
                self._begun.discard(id_)
                refused.add(bytes(id_))
        return refused

    def ack(self, what: list[MessageId], /) -> int:
        """End calls that returned."""
        for id_ in what:
            self._end(id_, [])
        return len(what)

    def settle(self, settlements: Sequence[Settlement], /, *, sync: Sync) -> list[MessageId | None]:
        """End calls by what a retry, a dead letter or a successor produces. Returns at once; it is sent by a poll."""
        return [self._settle(settlement) for settlement in settlements]

    def _settle(self, settlement: Settlement) -> MessageId | None:
        held = self._held.get(settlement.id)
        if held is None:
            return None
        records, moved = records_of(settlement, held[0], self._topics, self.now_us())
        self._end(settlement.id, records)
        return moved

    def _end(self, id_: bytes, records: list[Outgoing]) -> None:
        held = self._held.pop(id_, None)
        self._begun.discard(id_)
        if held is None:
            log.info("a call ended after its partition went to another worker, which runs it again")
            return
        self._outbox.add(records, held[1])

    def holds(self, id_: bytes, /) -> bool:
        """Return whether a call is claimed and has not ended."""
        return id_ in self._held

    def wait(self, timeout_s: float, *, due: bool) -> bool:
        """Poll; return whether a claim is worthwhile."""
        self.poll(0 if self._awake.is_set() else timeout_s)
        self._awake.clear()
        return any(self._waiting.values())

    def wake(self) -> None:
        """Shorten the next wait; one that began lasts up to `POLL_S`. Thread-safe."""
        self._awake.set()

    # -- the log -----------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> None:
        """Read records, send what ended, take answers, commit. Raises ClusterError when the client cannot go on."""
        self.polls += 1
        self._start_coming()
        self._write()
        polled = self._source.poll(READ, min(timeout_s, POLL_S))
        for records in polled.records.values():
            for record in records:
                self._take(record)
        for partition, end in polled.ends.items():
            if partition in self._partitions:
                self._partitions[partition].advance(end)
        for partition in polled.gone:
            log.error(
                "%s [%d]: calls that no worker has read were deleted by the topic's retention",
                self._topics.calls,
                partition,
            )
            self._source.start(partition, BEGINNING)
        for error in polled.errors:
            log.warning("%s", error)
        self._write()
        self._pause()
        self._commit()

    def _take(self, record: Record) -> None:
        progress = self._partitions.get(record.partition)
        if progress is None or not progress.take(record.offset):
            return
        try:
            read = message_of(record)
        except Damaged as exc:
            log.error("%s [%d] %d is a dead letter: %s", self._topics.calls, record.partition, record.offset, exc)
            letter = dead_of_record(record, exc.what, self._topics)
            self._outbox.add([letter], [(progress, record.offset)])
            return
        message = self._occurrences.as_declared(read)
        if message is None:
            log.info("an occurrence of a schedule that this program has ended is left out")
            self._outbox.add([], [(progress, record.offset)])
            return
        self._waiting[record.partition].append((record.offset, message))

    def _pause(self) -> None:
        """Pause partitions with enough to do, so that the poll goes on whatever the handlers do."""
        for partition, progress in self._partitions.items():
            waits = len(self._waiting[partition])
            is_full = progress.is_full or len(self._outbox) >= self._in_flight  # mutant: kafka-outbox-grows
            if partition not in self._paused and (waits >= READ or is_full):
                self._paused.add(partition)
                self._source.pause(partition)
            elif partition in self._paused and waits < READ // 2 and not is_full:
                self._paused.discard(partition)
                self._source.resume(partition)

    @property
    def partitions(self) -> list[int]:
        """The partitions that are read. From any thread."""
        return list(self._partitions.copy())

    def units(self, ends: Mapping[int, int]) -> Iterator[Unit]:
        """Return the units of the watchdog; `ends`: where the logs end, as far as it is known. From any thread."""
        for number in self._coming.copy():
            waits_for = "the group does not say where to begin"
            yield Unit(f"{self._topics.calls} [{number}] was not read", None, waits_for, number)
        for number, progress in self._partitions.copy().items():
            read_to, end = progress.read_to, ends.get(number)
            has_read = number in self._paused or end in (None, read_to)
            why = None if has_read else f"it was read up to offset {read_to}, and ends at {end}"
            yield Unit(f"{self._topics.calls} [{number}] was not read", read_to, why, number)
        oldest = self._outbox.oldest
        why = self._outbox.reason or "the brokers have not confirmed it"
        yield Unit("the end of a call was not produced", oldest, None if oldest is None else why)

    # -- positions ---------------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Send what calls ended with, and take the answers."""
        self._outbox.pump(self._source, self._partitions, self._positions)

    def _positions(self, places: Sequence[Place] = ()) -> dict[int, Committed]:
        """Return the positions that differ from what was committed, as if the calls at these places were done."""
        also: dict[Progress, set[int]] = {}
        for progress, offset in places:
            also.setdefault(progress, set()).add(offset)
        found = {
            number: progress.position(frozenset(also.get(progress, ())))
            for number, progress in self._partitions.items()
            if progress.is_owned and progress.has_read
        }
        return {number: position for number, position in found.items() if self._committed.get(number) != position}

    def _commit(self, *, wait: bool = False) -> None:
        now_us = self._clock.steady_us()
        if self._outbox.exactly_once or (now_us < self._commit_us and not wait):
            return
        self._commit_us = now_us + COMMIT_US
        if wait or now_us >= self._again_us:  # mutant: kafka-lost-commit-believed
            self._committed.clear()  # an answer that says no is not heard
            self._again_us = now_us + COMMIT_AGAIN_US
        positions = self._positions()
        if positions:
            self._committed.update(positions)
            self._source.commit(positions, wait=wait)

    # -- the group (node/transport.py: Listener) ---------------------------------------------------------------

    def assigned(self, partitions: Sequence[int]) -> None:
        """Note partitions that are ours: they start once their committed positions are known."""
        self._coming.update(partitions)
        # A worker of an older program may have ended a schedule before it left.
        self.plant()

    def plant(self) -> None:
        """Produce the next occurrence of each declared schedule; it takes the place of one that waits and is not due.

        Those that this program has ended are cancelled.
        """
        now_us = self.now_us()
        records = [record_of(message, self._topics, now_us) for message in self._occurrences.plants(now_us)]
        records += [cancel_of(key, self._topics) for key in self._occurrences.ended_keys]
        for record in records:
            self._outbox.add([record], [])

    def _start_coming(self) -> None:
        if not self._coming:
            return
        found = self._source.committed(list(self._coming))
        if found is None:
            return
        for number, place in found.items():
            position = None if place is None else of_topic(Committed(*place), self._topic_id)
            self._partitions[number] = Progress(position, self._topic_id)
            self._waiting[number] = deque()
            self._source.start(number, BEGINNING if position is None else position.offset)
        self._coming.difference_update(found)

    def revoked(self, partitions: Sequence[int]) -> None:
        """Give partitions away: what waits is dropped, what runs may end and is produced, for some seconds."""
        gone = set(map(self._partitions.get, partitions)) - {None}
        for number in partitions:
            self._waiting.get(number, deque()).clear()
        for id_, (_, places) in list(self._held.items()):
            if id_ not in self._begun and all(progress in gone for progress, _ in places):
                del self._held[id_]
        end_us = self._clock.steady_us() + DRAIN_US
        pause = Event()
        while self._concerns(gone) and self._clock.steady_us() < end_us:
            self.on_drain()
            self._write()
            pause.wait(0.01)
        self._commit(wait=True)  # mutant: kafka-revoked-uncommitted
        self.lost(partitions)

    def _concerns(self, gone: set[Progress | None]) -> bool:
        """Return whether calls of these partitions run, or their outcomes are on the way."""
        held = (places for _, places in self._held.values())
        return any(progress in gone for places in (*held, *self._outbox.places()) for progress, _ in places)

    def lost(self, partitions: Sequence[int]) -> None:
        """Forget partitions: what runs is not produced, because their new owner runs it again."""
        for number in partitions:
            self._coming.discard(number)
            self._paused.discard(number)
            self._waiting.pop(number, None)
            self._committed.pop(number, None)
            progress = self._partitions.pop(number, None)
            if progress is not None:
                progress.is_owned = False
        for id_, (_, places) in list(self._held.items()):
            if not any(progress.is_owned for progress, _ in places):
                del self._held[id_]

    def close(self) -> None:
        """Leave the group, after what ended was produced; it gets some seconds. Calls that run will run again."""
        self._begun.clear()
        self._source.close()
        self._outbox.close()
