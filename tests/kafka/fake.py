"""A Kafka cluster in memory: logs, a group, fencing, transactions, and troubles on demand.

It has no threads. A unit stays in `Cluster.under_way` until `finish` ends it, as the answer of a real cluster comes
later; a test decides how it ends. A reader sees committed records only.
Invariant: each rule that the service relies on is here, and nothing is kinder than a real cluster: a unit that was
given up may still arrive, and an answer may be lost after its transaction was committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from filewheel.errors import ClusterError, MissingTopic, NotAllowed
from filewheel.kafka.node.transport import (
    BEGINNING,
    Done,
    End,
    Listener,
    Polled,
    Refusal,
    Topics,
    UnitOutcome,
)
from filewheel.kafka.records.last_read import NO_EPOCH, LastRead
from filewheel.kafka.records.record import Outgoing, Record
from tests.kafka.fake_readers import FakeFollower, FakeMarkers

DENIED = Refusal("Topic authorization failed")


@dataclass
class Entry:
    """A record in a log."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int
    is_control: bool = False
    epoch: int = 0


@dataclass
class Log:
    """One partition."""

    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    epoch: int = 0
    """That of the leader now."""

    @property
    def end(self) -> int:
        return len(self.entries)

    def cut(self, end: int) -> None:
        """Let a replica lead that has the log up to here only: an unclean election."""
        del self.entries[end:]
        self.epoch += 1

    def end_of(self, epoch: int) -> int:
        """Return the end of the last epoch up to this one, as a broker answers (KIP-320).

        It forgets the epochs of records that retention deleted.
        """
        return next((n for n in range(self.first, self.end) if self.entries[n].epoch > epoch), self.end)

    def is_gone(self, offset: int, epoch: int) -> bool:
        """Return whether a client that is to read on here finds no such place: out of range, or cut before it."""
        return not self.first <= offset <= self.end or (epoch != NO_EPOCH and self.end_of(epoch) < offset)


@dataclass
class Unit:
    """A unit that a sink sent, and whose answer has not come."""

    sink: FakeSink
    records: Sequence[Outgoing]
    marker: Outgoing
    done: Done


class Cluster:
    """Topics, one group, and the transactional ids."""

    def __init__(self, topic: str = "delay", partitions: int = 2) -> None:
        self.topic = topic
        self.logs: dict[tuple[str, int], Log] = {}
        for name in (topic, f"{topic}.cursor"):
            for number in range(partitions):
                self.logs[name, number] = Log()
        for name in ("target", f"{topic}.dlt"):
            self.logs[name, 0] = Log()
        self.partitions = partitions
        self.topic_id = "one"
        self.now_ms = 1_800_000_000_000
        self.retention_ms: int | None = None
        self.members: list[FakeSource] = []
        self.owners: dict[int, FakeSource] = {}
        self.epochs: dict[int, int] = {}
        self.under_way: list[Unit] = []
        self.refused: dict[str, Refusal] = {}
        """Topics that refuse each record."""
        self.is_down = False
        self.denied: set[tuple[str, str]] = set()
        """What the user may not do: ("read" or "write", topic)."""
        self.stamp: Callable[[], int | None] = lambda: None
        """The broker's time of a record, if the topic has it."""
        self._serial = itertools.count()

    def allow(self, operation: str, topic: str) -> None:
        """Raise NotAllowed if the user may not do this."""
        if (operation, topic) in self.denied:
            raise NotAllowed(f"{topic}: Topic authorization failed", hint="check its access rights")

    # What producers do.

    def put(
        self,
        value: bytes | None,
        *,
        partition: int = 0,
        topic: str | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> int:
        log = self.logs[topic or self.topic, partition]
        log.entries.append(Entry(key, value, list(headers), self.now_ms, epoch=log.epoch))
        return log.end - 1

    def end_transaction(self, topic: str, partition: int) -> None:
        """Append what the end of a transaction appends: an offset without a record."""
        log = self.logs[topic, partition]
        log.entries.append(Entry(None, None, [], self.now_ms, is_control=True, epoch=log.epoch))

    def values(self, topic: str = "target") -> list[bytes | None]:
        """Return what a committed reader of a topic has seen, in the order of each log."""
        logs = [log for (name, _), log in sorted(self.logs.items()) if name == topic]
        return [entry.value for log in logs for entry in log.entries if not entry.is_control]

    def keep_from(self, partition: int, first: int) -> None:
        """Let retention delete the records before an offset."""
        self.logs[self.topic, partition].first = first

    def make_anew(self) -> None:
        """Delete the delay topic, and make one of the same name: it has another id, and the first epoch again."""
        self.topic_id += ", made anew"
        for number in range(self.partitions):
            self.logs[self.topic, number] = Log()

    # The group.

    def join(self, member: FakeSource) -> None:
        self.members.append(member)
        self.rebalance()

    def leave(self, member: FakeSource) -> None:
        self.members.remove(member)
        for partition in self.owned_by(member):
            del self.owners[partition]
        self.rebalance()

    def owned_by(self, member: FakeSource) -> list[int]:
        return [p for p, owner in self.owners.items() if owner is member]

    def rebalance(self) -> None:
        """Give each member its share. A member learns of it at its next poll, what it loses first."""
        if not self.members:
            return
        for partition in range(self.partitions):
            wanted = self.members[partition % len(self.members)]
            owner = self.owners.get(partition)
            if owner is not None:
                # Until it has given it up, it owns it. One that is to keep it after all does not give it up.
                owner.leaving.discard(partition)
                if owner is not wanted:
                    owner.leaving.add(partition)
            else:
                self.owners[partition] = wanted
                wanted.coming.append(partition)

    def expire(self, member: FakeSource) -> None:
        """End the session of a member that still runs: the others own its partitions, and it does not know.

        It joins again when it polls.
        """
        if member in self.members:
            member.is_expired = True
            self.leave(member)

    # Units.

    def finish(self, end: End = End.DELIVERED, *, index: int = 0, answer: bool = True) -> UnitOutcome | None:
        """End a unit under way as `end` says; without an answer, the sink learns nothing."""
        unit = self.under_way.pop(index)
        outcome = unit.sink.end(unit, end)
        if answer and not unit.sink.is_closed:
            unit.done(outcome)
        return outcome

    def finish_all(self) -> int:
        """End each unit as the cluster would; return how many there were."""
        count = 0
        while self.under_way:
            self.finish()
            count += 1
        return count

    def append(self, outgoing: Outgoing) -> None:
        partition = outgoing.partition if outgoing.partition is not None else 0
        self.put(outgoing.value, partition=partition, topic=outgoing.topic, key=outgoing.key, headers=outgoing.headers)


class FakeSink:
    """The way out of one partition."""

    def __init__(self, cluster: Cluster, partition: int, *, exactly_once: bool) -> None:
        self.cluster = cluster
        self.partition = partition
        self.exactly_once = exactly_once
        self.epoch = 0
        self.is_closed = False

    def open(self) -> int:
        if self.cluster.is_down:
            raise ClusterError("the cluster is down")
        self.cluster.allow("write", f"{self.cluster.topic}.cursor")
        self.epoch = self.cluster.epochs.get(self.partition, 0) + 1
        self.cluster.epochs[self.partition] = self.epoch
        if self.exactly_once:
            for unit in [u for u in self.cluster.under_way if u.sink.partition == self.partition]:
                self.cluster.under_way.remove(unit)  # its transaction is aborted
        return self.cluster.put(b"", partition=self.partition, topic=f"{self.cluster.topic}.cursor", key=b"owner")

    def publish(self, marker: Outgoing) -> None:
        if self.cluster.is_down:
            raise ClusterError("the cluster is down")
        if self.exactly_once and self.epoch < self.cluster.epochs[self.partition]:
            raise ClusterError("fenced")
        self.cluster.append(marker)

    def send(self, records: Sequence[Outgoing], marker: Outgoing | None, done: Done) -> None:
        assert marker is not None
        self.cluster.under_way.append(Unit(self, records, marker, done))

    def end(self, unit: Unit, end: End) -> UnitOutcome:
        """Append what the unit leaves in the logs, and return its outcome."""
        every = frozenset(range(len(unit.records)))
        if self.exactly_once and self.epoch < self.cluster.epochs[self.partition]:
            return UnitOutcome(End.FENCED, every, reason="fenced")
        if end is End.FAILED:
            return UnitOutcome(end, every, reason="timed out")
        refusals = {
            **dict.fromkeys((t for op, t in self.cluster.denied if op == "write"), DENIED),
            **self.cluster.refused,
        }
        refused = {n: refusals[r.topic] for n, r in enumerate(unit.records) if r.topic in refusals}
        if not self.exactly_once:
            for n, record in enumerate(unit.records):
                if n not in refused:
                    self.cluster.append(record)
        if refused:
            return UnitOutcome(End.REFUSED, every if self.exactly_once else frozenset(refused), refused, "refused")
        if self.exactly_once:
            for record in unit.records:
                self.cluster.append(record)
        self.cluster.append(unit.marker)
        if end is End.DELIVERED:
            return UnitOutcome(end)
        return UnitOutcome(end, every if self.exactly_once else frozenset(), reason="no answer")

    def close(self) -> None:
        """Nobody hears of what is under way. It may still arrive; a transaction until the next sink is open."""
        self.is_closed = True


class FakeSource:
    """A member of the group."""

    def __init__(self, cluster: Cluster, listener: Listener[int]) -> None:
        self.cluster = cluster
        self.listener = listener
        self.coming: list[int] = []
        self.leaving: set[int] = set()
        self.known: set[int] = set()
        """What the listener was told to own."""
        self.is_expired = False
        self.next: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        """What the client knows of the log before `next`."""
        self.paused: set[int] = set()
        self.committed: dict[int, int] = {}
        self.notes: dict[int, str] = {}
        self._ends: dict[int, int] = {}
        cluster.join(self)

    def poll(self, limit: int, timeout_s: float) -> Polled[int]:
        self.cluster.allow("read", self.cluster.topic)
        self._rebalanced()
        records: dict[int, list[Record]] = {}
        ends: dict[int, int] = {}
        gone: list[int] = []
        read: dict[int, LastRead] = {}
        left = limit
        for partition, offset in list(self.next.items()):
            log = self.cluster.logs[self.cluster.topic, partition]
            if partition in self.paused or self.cluster.is_down:
                continue
            if log.is_gone(offset, self.epochs[partition]):
                gone.append(partition)
                del self.next[partition]
                continue
            while offset < log.end and left:
                entry = log.entries[offset]
                self.epochs[partition] = entry.epoch
                if not entry.is_control:
                    found = Record(partition, offset, entry.key, entry.value, entry.headers, entry.timestamp_ms)
                    records.setdefault(partition, []).append(found)
                    left -= 1
                    read[partition] = LastRead(offset, entry.epoch)
                offset += 1
            self.next[partition] = offset
            if offset == log.end and self._ends.get(partition) != offset:
                self._ends[partition] = ends[partition] = offset
        return Polled(records, ends, gone, last_read=read)

    def _rebalanced(self) -> None:
        if self.is_expired:
            lost, self.known = sorted(self.known), set()
            self.is_expired = False
            self.coming.clear()
            self.leaving.clear()
            if lost:
                self._forget(lost)
                self.listener.lost(lost)
            self.cluster.join(self)
        leaving, self.leaving = sorted(self.leaving), set()
        if leaving:
            known = [p for p in leaving if p in self.known]
            if known:
                self.listener.revoked(known)
                self._forget(known)
                self.known.difference_update(known)
            for partition in leaving:
                if partition in self.coming:
                    self.coming.remove(partition)
                del self.cluster.owners[partition]
            self.cluster.rebalance()
        coming, self.coming = self.coming, []
        if coming:
            self.known.update(coming)
            self.listener.assigned(coming)

    def _forget(self, partitions: Sequence[int]) -> None:
        for partition in partitions:
            self.next.pop(partition, None)
            self._ends.pop(partition, None)
            self.paused.discard(partition)

    def start(self, partition: int, offset: int, epoch: int = NO_EPOCH) -> None:
        log = self.cluster.logs[self.cluster.topic, partition]
        self.epochs[partition] = epoch
        self._ends.pop(partition, None)
        self.next[partition] = log.first if offset == BEGINNING else offset

    def stop(self, partition: int) -> None:
        self._forget([partition])

    def pause(self, partition: int) -> None:
        self.paused.add(partition)

    def resume(self, partition: int) -> None:
        self.paused.discard(partition)

    def commit(self, positions: Mapping[int, tuple[int, str]], *, wait: bool = False) -> None:
        assert positions.keys() <= self.known, "committed what another member owns"
        self.committed.update({p: offset for p, (offset, _) in positions.items()})
        self.notes.update({p: note for p, (_, note) in positions.items()})

    def close(self) -> None:
        if self.known:
            tell = self.listener.lost if self.is_expired else self.listener.revoked
            tell(sorted(self.known))
        if not self.is_expired:
            self.cluster.leave(self)


class FakeTransport:
    """The cluster, as one node sees it."""

    def __init__(self, cluster: Cluster, *, exactly_once: bool = False) -> None:
        self.cluster = cluster
        self.exactly_once = exactly_once
        self.sources: list[FakeSource] = []

    def check(self) -> Topics:
        if f"{self.cluster.topic}.cursor" not in {name for name, _ in self.cluster.logs}:
            raise MissingTopic(f"{self.cluster.topic}.cursor is missing")
        return Topics("fake", self.cluster.topic_id, self.cluster.partitions)

    def source(self, listener: Listener[int]) -> FakeSource:
        self.sources.append(FakeSource(self.cluster, listener))
        return self.sources[-1]

    def sink(self, partition: int) -> FakeSink:
        return FakeSink(self.cluster, partition, exactly_once=self.exactly_once)

    def markers(self) -> FakeMarkers:
        return FakeMarkers(self.cluster)

    def follower(self) -> FakeFollower:
        return FakeFollower(self.cluster)

    def range_of(self, partition: int) -> tuple[int, int]:
        if self.cluster.is_down:
            raise ClusterError("the cluster is down")
        log = self.cluster.logs[self.cluster.topic, partition]
        return log.first, log.end

    def ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        return {partition: self.range_of(partition) for partition in partitions}

    def retention_ms(self) -> int | None:
        return self.cluster.retention_ms

    def first_at(self, partition: int, offset: int) -> LastRead:
        log = self.cluster.logs[self.cluster.topic, partition]
        start = offset if log.first <= offset <= log.end else log.first
        for n, entry in enumerate(log.entries[start:], start):
            if not entry.is_control:
                return LastRead(n, entry.epoch)
        raise ClusterError("no record")

    def parted_at(self, partition: int, before: LastRead) -> int | None:
        end = self.cluster.logs[self.cluster.topic, partition].end_of(before.epoch)
        return end if end <= before.offset else None

    def timestamp_at(self, partition: int, offset: int) -> int | None:
        log = self.cluster.logs[self.cluster.topic, partition]
        return next((e.timestamp_ms for e in log.entries[max(offset, log.first) :] if not e.is_control), None)

    def stamp(self) -> int | None:
        if self.cluster.is_down:
            raise ClusterError("the cluster is down")
        return self.cluster.stamp()

    def interrupt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""
