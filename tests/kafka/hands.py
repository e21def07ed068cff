"""A node of the service moved by hand: its wheels in memory, its threads as turns that a test takes.

Invariant: a wheel here keeps the promises of the real one, and no more: after a crash it has what it had, and its
position may be any lower one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from filewheel.kafka.node.health import Problem
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.service import Node
from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.tally import NodeCounters
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.last_read import LastRead, later
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import ID_BYTES, LOW_BITS, Message, MessageId
from tests.kafka.fake import Cluster, FakeTransport
from tests.kafka.folder import Folder
from tests.support import FakeClock


@dataclass
class Put:
    """What a record becomes here: its value names it."""

    offset: int
    due_us: int
    value: bytes
    target: str = "target"


@dataclass
class Chunk:
    messages: Sequence[Message]
    ingested: int
    is_all: bool

    @property
    def ids(self) -> Sequence[bytes]:
        return [message.id for message in self.messages]


class MemoryWheel:
    """The wheel of a partition, in memory."""

    is_keyed = False

    def __init__(self, on_work: Callable[[MemoryWheel], None] = lambda wheel: None) -> None:
        self.on_work = on_work
        self.pending: dict[MessageId, Message] = {}
        self.claimed: set[MessageId] = set()
        self.position: int | None = None
        self.ingested = 0
        self.marker = Marker()
        self.last_read: LastRead | None = None
        self.flushed_read: LastRead | None = None
        self.is_open = True

    @property
    def waiting(self) -> int | None:
        return len(self.pending)

    @property
    def has_lost(self) -> bool:
        return False

    @property
    def is_gone(self) -> bool:
        return False

    def take_in(self, puts: Sequence[Put]) -> None:
        assert self.is_open
        for put in puts:
            id_ = MessageId((put.due_us << LOW_BITS | put.offset).to_bytes(ID_BYTES, "big"))
            assert put.offset >= self.ingested, "taken in twice"
            self.ingested = put.offset + 1
            if not self.marker.done(id_, put.offset):
                self.pending[id_] = Message(id_, put.value)
        self.on_work(self)

    def note_read(self, last_read: LastRead) -> None:
        self.last_read = later(self.last_read, last_read)

    def advance(self, offset: int) -> None:
        self.ingested = max(self.ingested, offset)
        self.on_work(self)

    def apply(self, marker: Marker) -> int:
        self.marker = marker
        self.ingested = max(self.ingested, marker.low)
        done = [id_ for id_ in self.pending if marker.done(id_, offset_of(id_))]
        for id_ in done:
            del self.pending[id_]
        return len(done)

    def next_chunk(self, limit: int, now_us: int) -> Chunk:
        assert self.is_open
        due = sorted(id_ for id_ in self.pending if id_ not in self.claimed and id_.due_us <= now_us)
        free = [id_ for id_ in due if offset_of(id_) < self.ingested][:limit]
        self.claimed.update(free)
        return Chunk([self.pending[id_] for id_ in free], self.ingested, len(free) < limit)

    def settle(self, chunk: Chunk) -> None:
        for message in chunk.messages:
            self.claimed.discard(message.id)
            self.pending.pop(message.id, None)

    def give_back(self, chunk: Chunk) -> None:
        for message in chunk.messages:
            self.claimed.discard(message.id)

    def low(self, chunk: Chunk | None = None) -> int:
        ids = () if chunk is None else chunk.ids
        return min([offset_of(id_) for id_ in self.pending if id_ not in ids], default=self.ingested)

    def next_due_us(self) -> int | None:
        free = [id_ for id_ in self.pending if id_ not in self.claimed and offset_of(id_) < self.ingested]
        return min([id_.due_us for id_ in free], default=None)

    def flush(self) -> None:
        self.position, self.flushed_read = self.ingested, self.last_read

    def housekeep(self) -> int | None:
        if self.is_open:
            self.flush()
        return None

    def close(self) -> None:
        self.flush()
        self.is_open = False

    def crashed(self, position: int | None) -> MemoryWheel:
        """Return what the next process finds after a kill; the position is any that was ever flushed, or lower."""
        after = MemoryWheel()
        after.pending = dict(self.pending)
        after.position = position
        after.ingested = position or 0
        after.last_read = after.flushed_read = self.flushed_read if position == self.position else None
        self.is_open = False
        return after

    def opened(self) -> MemoryWheel:
        """Return the same wheel, opened again."""
        return self.crashed(self.position)


def offset_of(id_: bytes) -> int:
    return int.from_bytes(id_, "big") & ((1 << LOW_BITS) - 1)


class Rendering:
    """A message goes to the topic "target"; a refused one to the dead-letter topic, if `is_diverted`."""

    def __init__(self, topic: str = "delay", topic_id: str = "one") -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.is_diverted = False
        self.options = "those of the test"
        self.delivery = ""

    def outgoing(self, partition: int, messages: Sequence[Message], fired_ms: int) -> list[Outgoing]:
        return [self._outgoing(message, fired_ms) for message in messages]

    def _outgoing(self, message: Message, fired_ms: int) -> Outgoing:
        topic = "absent" if message.payload.startswith(b"absent") else "target"
        return Outgoing(topic, None, message.payload, [("fired", str(fired_ms).encode())])

    def instead(self, partition: int, message: Message, refusal: Refusal, now_ms: int) -> Outgoing | None:
        if not self.is_diverted and not refusal.is_lasting:
            return None
        return Outgoing(f"{self.topic}.dlt", None, message.payload, [("reason", refusal.reason.encode())])

    def marker(self, partition: int, marker: Marker) -> Outgoing:
        signed = replace(marker, topic_id=self.topic_id, options=self.options)
        return Outgoing(f"{self.topic}.cursor", b"%d" % partition, signed.pack(), partition=partition)


def understand(records: Sequence[Record]) -> Sequence[Put]:
    return [Put(r.offset, int(dict(r.headers)["due-ms"] or b"0") * 1000, r.value or b"") for r in records]


@dataclass
class Disk:
    """The wheels of one machine, by partition."""

    wheels: dict[int, MemoryWheel] = field(default_factory=dict)

    def open(self, partition: int, on_work: Callable[[MemoryWheel], None]) -> MemoryWheel:
        wheel = self.wheels.get(partition)
        assert wheel is None or not wheel.is_open, "opened twice"
        self.wheels[partition] = wheel.opened() if wheel is not None else MemoryWheel()
        self.wheels[partition].on_work = on_work
        return self.wheels[partition]

    def crash(self, position: int | None = None) -> None:
        """Leave the wheels as a killed process does; the position may be any lower one."""
        for partition, wheel in self.wheels.items():
            if wheel.is_open:
                known = wheel.position if position is None else min(position, wheel.position or 0)
                self.wheels[partition] = wheel.crashed(known)
                self.wheels[partition].is_open = False


class Hands:
    """One node, its clock, and the turns of its threads."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: FakeClock | None = None,
        disk: Disk | Folder | None = None,
        name: str = "node",
        exactly_once: bool = False,
        settings: NodeSettings | None = None,
        tally: NodeCounters | None = None,
    ) -> None:
        self.cluster = cluster
        self.clock = clock or FakeClock(cluster.now_ms * 1000)
        self.disk: Any = disk or Disk()
        self.rendering = Rendering(cluster.topic, cluster.topic_id)
        """With wheels in memory; those on disk go by the rules of the service."""
        rules = Rules(disk.policy, name, cluster.topic_id) if isinstance(disk, Folder) else None
        self.background: list[Callable[[], None]] = []
        self.answers = True
        """Whether a wait lets the units under way end."""
        transport = FakeTransport(cluster, exactly_once=exactly_once)
        self.node = Node(
            transport,
            self.disk.open,
            rules or self.rendering,
            rules.understand if rules is not None else understand,
            settings or NodeSettings(exactly_once=exactly_once),
            topics=transport.check(),
            clock=self.clock,
            run=self.background.append,
            wait=self._wait,
            tally=tally,
        )

    def turn(self) -> bool:
        """Let each thread do what it has to do now, once; return whether any did."""
        did = bool(self.background)
        while self.background:
            self.background.pop(0)()
        did = self.node.poll_step() or did
        did = self.node.intake.step() or did
        did = self.node.standby_step() or did
        return self.node.loop.step() or did

    def settle_down(self) -> None:
        """Take turns until nothing happens, without ending any unit."""
        idle = 0
        for _ in range(2000):
            idle = 0 if self.turn() else idle + 1
            if idle == 3:  # a poll assigns, the background takes over, a poll starts
                return
        raise AssertionError("the node never comes to rest")

    def run(self) -> None:
        """Take turns and end units until nothing happens."""
        for _ in range(1000):
            self.settle_down()
            if not self.cluster.finish_all():
                return
        raise AssertionError("the node never comes to rest")

    def after(self, seconds: float) -> None:
        """Let time pass, then everything happen."""
        self.clock.advance(seconds)
        self.node.housekeeping_step()
        self.run()

    def watched(self, seconds: int) -> list[Problem]:
        """Take turns and end units for so many seconds, with a look of the watchdog each second; return the last."""
        for _ in range(seconds):
            self.after(1)
            self.node.watchdog.look()
        return list(self.node.health().problems)

    def crash(self, *, position: int | None = None) -> None:
        """Kill the process: the group does not know yet, and its units may still arrive."""
        self.disk.crash(position)

    @property
    def source(self) -> object:
        return self.node.source

    def _wait(self, event: threading.Event, timeout_s: float) -> bool:
        for _ in range(100):
            if event.is_set():
                return True
            self.node.loop.step()
            if self.answers:
                self.cluster.finish_all()
        return event.is_set()
