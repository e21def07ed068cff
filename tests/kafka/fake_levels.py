"""The topics of some levels in memory: logs, a group whose members learn of changes at their next poll, and refusals.

A send stays in `under_way` until `finish` ends it. Invariant: what was committed is where the next owner begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from filewheel.kafka.levels.naming import Level, parse_levels
from filewheel.kafka.levels.service import LevelService
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.transport import BEGINNING, Done, End, Listener, Place, Polled, Refusal, UnitOutcome
from filewheel.kafka.records.last_read import NO_EPOCH
from filewheel.kafka.records.options import OnTargetError
from filewheel.kafka.records.record import Headers, Outgoing, Record
from tests.support import FakeClock


@dataclass
class Send:
    """Records under way."""

    records: Sequence[Outgoing]
    done: Done


class FakeLevels:
    """The cluster."""

    def __init__(self, levels: str = "5s,1m", partitions: int = 1) -> None:
        self.levels = parse_levels(levels)
        self.clock = FakeClock(1_800_000_000_000_000)
        self.logs: dict[Place, list[Record]] = {
            (level.topic("delays"), n): [] for level in self.levels for n in range(partitions)
        }
        self.id_of = {topic: "one" for topic, _ in self.logs}
        """The cluster's id of each topic."""
        self.committed: dict[Place, tuple[int, str]] = {}
        """Offsets, with the id of the topic that they are of."""
        self.members: list[FakeSource] = []
        self.owner: dict[Place, FakeSource] = {}
        self.out: list[Outgoing] = []
        self.under_way: list[Send] = []
        self.refused: dict[str, Refusal] = {}
        self.is_silent = False
        """Questions for committed offsets get no answer."""
        self.auto = True
        """Whether what is sent is answered at once."""

    def put(self, level: str, value: bytes, *, partition: int = 0, target: str = "mails", headers: Headers = ()) -> int:
        log = self.logs[f"delays.{level}", partition]
        every = [*headers, *([("scheduler-target-topic", target.encode())] if target else [])]
        log.append(Record(partition, len(log), b"k", value, every, self.clock.now_us() // 1000))
        return len(log) - 1

    def values(self, topic: str = "mails") -> list[bytes | None]:
        return [record.value for record in self.out if record.topic == topic]

    def rebalance(self) -> None:
        for n, place in enumerate(sorted(self.logs)):
            wanted = self.members[n % len(self.members)] if self.members else None
            owner = self.owner.get(place)
            if owner is not wanted:
                if owner is not None:
                    owner.leaving.append(place)
                elif wanted is not None:
                    self.owner[place] = wanted
                    wanted.coming.append(place)

    def finish(self) -> None:
        """Answer what is under way."""
        for send in self.under_way:
            refused = {n: self.refused[r.topic] for n, r in enumerate(send.records) if r.topic in self.refused}
            self.out += [record for n, record in enumerate(send.records) if n not in refused]
            end = End.REFUSED if refused else End.DELIVERED
            send.done(UnitOutcome(end, frozenset(refused), refused, "refused" if refused else ""))
        self.under_way = []

    # The transport of a service.

    def check(self) -> None:
        """All topics are there."""

    def ids(self) -> Mapping[str, str]:
        return dict(self.id_of)

    def ends(self, places: Sequence[Place]) -> Mapping[Place, int]:
        return {place: len(self.logs[place]) for place in places}

    def source(self, listener: Listener[Place]) -> FakeSource:
        return FakeSource(self, listener)

    def interrupt(self) -> None:
        """Nothing waits."""

    def make_anew(self, level: str, *values: bytes) -> None:
        """Delete a topic, and make one of the same name with these records."""
        topic = f"delays.{level}"
        self.id_of[topic] += " more"
        for place in self.logs:
            if place[0] == topic:
                self.logs[place] = []
        for value in values:
            self.put(level, value)

    def sink(self) -> FakeLevels:
        return self

    def send(self, records: Sequence[Outgoing], marker: Outgoing | None, done: Done) -> None:
        assert marker is None
        self.under_way.append(Send(records, done))
        if self.auto:
            self.finish()

    def open(self) -> int:
        raise AssertionError("there are no markers")

    def publish(self, marker: Outgoing) -> None:
        raise AssertionError("there are no markers")

    def close(self) -> None:
        """Nothing is open."""


class FakeSource:
    """A member."""

    def __init__(self, cluster: FakeLevels, listener: Listener[Place]) -> None:
        self.cluster = cluster
        self.listener = listener
        self.coming: list[Place] = []
        self.leaving: list[Place] = []
        self.known: set[Place] = set()
        """What the listener was told to own."""
        self.next: dict[Place, int] = {}
        self.paused: set[Place] = set()
        self.gone: list[Place] = []
        cluster.members.append(self)
        cluster.rebalance()

    def poll(self, limit: int, timeout_s: float) -> Polled[Place]:
        self._rebalanced()
        records: dict[Place, list[Record]] = {}
        ends: dict[Place, int] = {}
        left = limit
        for place, offset in list(self.next.items()):
            if offset > len(self.cluster.logs[place]):
                self.gone.append(place)
                del self.next[place]
            elif place not in self.paused:
                found = self.cluster.logs[place][offset : offset + left]
                left -= len(found)
                if found:
                    records[place] = found
                self.next[place] = offset + len(found)
                if self.next[place] == len(self.cluster.logs[place]):
                    ends[place] = self.next[place]
        gone, self.gone = self.gone, []
        return Polled(records, ends, gone)

    def _rebalanced(self) -> None:
        if self.leaving:
            places, self.leaving = self.leaving, []
            self.listener.revoked(places)
            for place in places:
                self.next.pop(place, None)
                self.known.discard(place)
                del self.cluster.owner[place]
            self.cluster.rebalance()
        if self.coming:
            places, self.coming = self.coming, []
            self.known.update(places)
            self.listener.assigned(places)

    def committed(self, partitions: Sequence[Place]) -> Mapping[Place, tuple[int, str] | None] | None:
        return None if self.cluster.is_silent else {place: self.cluster.committed.get(place) for place in partitions}

    def start(self, partition: Place, offset: int, epoch: int = NO_EPOCH) -> None:
        self.next[partition] = 0 if offset == BEGINNING else offset

    def stop(self, partition: Place) -> None:
        raise AssertionError("levels stop no partition")

    def group(self) -> None:
        raise AssertionError("levels have no transactions")

    def expelled(self) -> None:
        """The group calls this member dead; it learns of it later."""
        self.cluster.members.remove(self)
        for place in self.known:
            del self.cluster.owner[place]
        self.cluster.rebalance()

    def pause(self, partition: Place) -> None:
        self.paused.add(partition)

    def resume(self, partition: Place) -> None:
        self.paused.discard(partition)

    def commit(self, positions: Mapping[Place, tuple[int, str]], *, wait: bool = False) -> None:
        assert positions.keys() <= self.known, "committed what another member owns"
        self.cluster.committed.update(positions)

    def close(self) -> None:
        self.listener.revoked(sorted(self.known))
        if self in self.cluster.members:
            self.cluster.members.remove(self)
            for place in [place for place, owner in self.cluster.owner.items() if owner is self]:
                del self.cluster.owner[place]
            self.cluster.rebalance()


def rules_of(cluster: FakeLevels, on_target_error: OnTargetError = "retry") -> dict[str, tuple[Level, Rules]]:
    found = {}
    for level in cluster.levels:
        policy = level.policy("delays", on_target_error=on_target_error)
        found[policy.topic] = (level, Rules(policy, "node", ""))
    return found


def service_of(cluster: FakeLevels) -> LevelService:
    return LevelService(cluster, rules_of(cluster), clock=cluster.clock)
