"""A Kafka cluster in memory, as the workers of a scheduler see it, with a delay service.

Topics with partitions, one group with committed positions, units that end when a test says so. `fire` is the delay
service: it moves what is due to its target, and keeps the rule of a keyed topic.
Invariant: nothing is kinder than a real cluster: an answer may be lost after its transaction was committed, and a
member learns at its next poll that it owns no partition any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from filewheel.errors import ClusterError
from filewheel.kafka.node.transport import (
    BEGINNING,
    Done,
    End,
    GroupCommit,
    Listener,
    Place,
    Polled,
    Refusal,
    UnitOutcome,
)
from filewheel.kafka.records.headers import DUE_MS, FIRED_MS, TARGET_KEY, TARGET_TOPIC, UNLESS_DUE_MS
from filewheel.kafka.records.last_read import NO_EPOCH
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.kafka.scheduling.call import CallTopics
from tests.support import FakeClock

Position = tuple[int, str]


def due_ms(record: Outgoing) -> int:
    return int(dict(record.headers)[DUE_MS] or b"0")


@dataclass
class Unit:
    """A unit that a sink sent, and whose answer has not come."""

    sink: FakeCallSink
    records: Sequence[Outgoing]
    positions: Mapping[int, Position]
    generation: int
    done: Done


@dataclass
class CallCluster:
    """A delay topic, a topic of calls, one of dead letters, and the group of workers."""

    topics: CallTopics
    clock: FakeClock
    partitions: int = 2
    keyed: bool = True
    exactly_once: bool = False
    logs: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    committed: dict[int, Position] = field(default_factory=dict)
    waiting: list[Outgoing] = field(default_factory=list)
    members: list[FakeCallSource] = field(default_factory=list)
    owners: dict[int, FakeCallSource] = field(default_factory=dict)
    generation: int = 0
    under_way: list[Unit] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    is_manual: bool = False
    """Units stay under way until `finish`."""
    is_silent: bool = False
    """Questions for committed positions get no answer."""
    loses_commits: bool = False
    """Commits get no answer, and are not kept."""
    topic_id: str = "one"
    """The cluster's id of the topic of calls."""
    appended: int = 0
    """How many records were produced."""
    _next: int = 0

    # What producers and the delay service do.

    def append(self, out: Outgoing) -> None:
        self.appended += 1
        if out.topic == self.topics.delay:
            if self.keyed and out.key is not None:
                unless_ms = int(dict(out.headers).get(UNLESS_DUE_MS) or b"-1")
                if any(w.key == out.key and due_ms(w) <= unless_ms for w in self.waiting):
                    return
                self.waiting = [w for w in self.waiting if w.key != out.key]
            if out.value is not None:
                self.waiting.append(out)
            return
        partition = self._next % self.partitions if out.key is None else crc32(out.key) % self.partitions
        self._next += out.key is None
        self.put(out.topic, partition if out.topic == self.topics.calls else 0, out)

    def put(self, topic: str, partition: int, out: Outgoing) -> None:
        log = self.logs.setdefault((topic, partition), [])
        log.append(Record(partition, len(log), out.key, out.value, out.headers, self.clock.now_us() // 1000))

    def fire(self, *, twice: bool = False) -> int:
        """Move what is due to its target, or produce it twice, as a service may; return how many."""
        now_ms = self.clock.now_us() // 1000
        due = [w for w in self.waiting if due_ms(w) <= now_ms]
        self.waiting = [w for w in self.waiting if w not in due]
        for each in due:
            found = dict(each.headers)
            headers = [h for h in each.headers if h[0] not in (TARGET_TOPIC, TARGET_KEY)]
            headers.append((FIRED_MS, b"%d" % now_ms))
            target = Outgoing((found[TARGET_TOPIC] or b"").decode(), found.get(TARGET_KEY), each.value, headers)
            for _ in range(1 + twice):
                self.append(target)
        return len(due)

    def dead(self) -> list[Record]:
        return self.logs.get((self.topics.dead, 0), [])

    # The group.

    def rebalance(self) -> None:
        self.generation += 1
        for partition in range(self.partitions):
            wanted = self.members[partition % len(self.members)] if self.members else None
            owner = self.owners.get(partition)
            if owner is wanted:
                continue
            if owner is not None and partition in owner.coming:  # it never heard of it
                owner.coming.remove(partition)
                owner = None
                del self.owners[partition]
            if owner is not None:
                owner.leaving += [partition] if partition not in owner.leaving else []
            elif wanted is not None:
                self.owners[partition] = wanted
                wanted.coming.append(partition)

    def expire(self, member: FakeCallSource) -> None:
        """Give away the partitions of a member that was not heard of; it does not know."""
        self.members.remove(member)
        for partition in [p for p, owner in self.owners.items() if owner is member]:
            del self.owners[partition]
        member.is_expired = True
        self.rebalance()

    def make_anew(self) -> None:
        """Delete the topic of calls, and make one of the same name. The group forgets its positions in it."""
        self.topic_id += ", made anew"
        self.logs = {place: log for place, log in self.logs.items() if place[0] != self.topics.calls}
        self.committed.clear()

    # Units.

    def finish(self, end: End = End.DELIVERED, index: int = 0) -> None:
        """End a unit. UNDECIDED: it is in the log, but its answer is lost; FENCED: it is not."""
        unit = self.under_way.pop(index)
        every = frozenset(range(len(unit.records)))
        refused = {n: Refusal("refused") for n, r in enumerate(unit.records) if r.topic in self.refuses}
        if unit.generation != self.generation and self.exactly_once:
            unit.done(UnitOutcome(End.FAILED, every, reason="another generation"))
        elif end is End.FAILED or end is End.FENCED:
            unit.done(UnitOutcome(end, every, reason=end.value))
        elif refused and self.exactly_once:
            unit.done(UnitOutcome(End.REFUSED, every, refused, "refused"))
        else:
            for n, record in enumerate(unit.records):
                if n not in refused:
                    self.append(record)
            self.committed.update(unit.positions)
            unit.done(UnitOutcome(End.REFUSED, frozenset(refused), refused, "refused") if refused else UnitOutcome(end))


class FakeCallSink:
    """The way out."""

    def __init__(self, cluster: CallCluster) -> None:
        self.cluster = cluster
        self.exactly_once = cluster.exactly_once
        self.is_closed = False

    def send(self, records: Sequence[Outgoing], commit: GroupCommit | None, done: Done) -> None:
        assert (commit is not None) is self.exactly_once

        def answer(outcome: UnitOutcome) -> None:
            if not self.is_closed:
                done(outcome)

        generation = self.cluster.generation if commit is None else commit.group()
        positions = {} if commit is None else dict(commit.positions)
        self.cluster.under_way.append(Unit(self, list(records), positions, generation, answer))
        if not self.cluster.is_manual:
            self.cluster.finish(index=-1)

    def close(self) -> None:
        self.is_closed = True


class FakeCallSource:
    """A member of the group."""

    def __init__(self, cluster: CallCluster, listener: Listener[int]) -> None:
        self.cluster = cluster
        self.listener = listener
        self.coming: list[int] = []
        self.leaving: list[int] = []
        self.next: dict[int, int] = {}
        self.paused: set[int] = set()
        self.is_expired = False
        self.polls = 0
        cluster.members.append(self)
        cluster.rebalance()

    def poll(self, limit: int, timeout_s: float) -> Polled[int]:
        self.polls += 1
        if self.is_expired:
            self.is_expired = False
            self.listener.lost(list(self.next))
            self.next.clear()
            self.cluster.members.append(self)
            self.cluster.rebalance()
        if self.leaving:
            gone, self.leaving = self.leaving, []
            self.listener.revoked(gone)
            self._left(gone)
        if self.coming:
            new, self.coming = self.coming, []
            self.listener.assigned(new)
        records: dict[int, list[Record]] = {}
        ends: dict[int, int] = {}
        for partition, offset in self.next.items():
            if partition not in self.paused:
                log = self.cluster.logs.get((self.cluster.topics.calls, partition), [])
                found = log[offset : offset + limit]
                self.next[partition] = offset + len(found)
                if found:
                    records[partition] = found
                if offset + len(found) == len(log):
                    ends[partition] = len(log)
        return Polled(records, ends)

    def _left(self, gone: Sequence[int]) -> None:
        for partition in gone:
            self.next.pop(partition, None)
            self.paused.discard(partition)
            del self.cluster.owners[partition]
        self.cluster.rebalance()

    def committed(self, partitions: Sequence[int]) -> Mapping[int, Position | None] | None:
        if self.cluster.is_silent:
            return None
        return {p: self.cluster.committed.get(p) for p in partitions}

    def start(self, partition: int, offset: int, epoch: int = NO_EPOCH) -> None:
        self.next[partition] = 0 if offset == BEGINNING else offset

    def stop(self, partition: int) -> None:
        raise AssertionError("a worker stops no partition")

    def pause(self, partition: int) -> None:
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.discard(partition)

    def commit(self, positions: Mapping[int, Position], *, wait: bool = False) -> None:
        if not self.cluster.loses_commits:
            self.cluster.committed.update(positions)

    def group(self) -> Any:
        return self.cluster.generation

    def close(self) -> None:
        if self in self.cluster.members:
            self.cluster.members.remove(self)
            owned = [p for p, owner in self.cluster.owners.items() if owner is self]
            if owned:
                self.listener.revoked(owned)
            self._left(owned)


class FakeCalls:
    """The transport of one worker."""

    def __init__(self, cluster: CallCluster) -> None:
        self.cluster = cluster
        self.is_down = False

    def check(self) -> None:
        if self.is_down:
            raise ClusterError("the cluster is down")

    def ids(self) -> dict[str, str]:
        self.check()
        return {self.cluster.topics.calls: self.cluster.topic_id}

    def ends(self, places: Sequence[Place]) -> dict[Place, int]:
        return {place: len(self.cluster.logs.get(place, [])) for place in places}

    def interrupt(self) -> None:
        """Nothing waits."""

    def source(self, listener: Listener[int]) -> FakeCallSource:
        return FakeCallSource(self.cluster, listener)

    def sink(self) -> FakeCallSink:
        return FakeCallSink(self.cluster)

    def send(self, record: Outgoing) -> None:
        self.check()
        self.cluster.append(record)

    def close(self) -> None:
        """Nothing is open."""
