"""Small wheels that hold one of everything, to be damaged: the campaigns of damage start from these.

Some sixty messages in a dozen kinds of places: slots and laps with several frames, drops, a dead letter, two
checkpoints that differ, what a deal left that did not commit, journals that are sealed, rotated, killed in a frame,
covered in part, and one of a writer that lives. Everything is drawn from the population's number.
Invariant: `told` is what callers were told to be pending, and nothing was read back to learn it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

import filewheel.disk.ballast
from filewheel.disk.disk import SYSTEM
from filewheel.format.settings import Sync
from filewheel.journal.journal import Journal
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.laps.tidy import Tidier
from filewheel.message import US_PER_S, Message, MessageId, to_datetime
from filewheel.wheel import Wheel
from tests.crash.memory import Image
from tests.model.machine import Dir, Inode, Machine
from tests.model.process import Killed, ProcessDisk
from tests.model.tiny import SLOTS
from tests.model.world import ModelClock, make_wheel


@contextlib.contextmanager
def small_segments() -> Iterator[None]:
    """Make segments, and the zeros ahead of them, so small that a few messages meet their ends."""
    defaults = {"segment_bytes": 900, "fill_bytes": 240}
    with (
        mock.patch.dict(Journal.__init__.__kwdefaults__, defaults),
        mock.patch.object(filewheel.disk.ballast, "BALLAST_BYTES", 0),
        # A producer that tidies up does so in a thread: when would be anybody's guess.
        mock.patch.object(Tidier, "segment_ended", autospec=True),
    ):
        yield


@dataclass
class Builder:
    """Makes one population."""

    rng: random.Random
    clock: ModelClock = field(default_factory=ModelClock)
    machine: Machine = field(default_factory=Machine)
    told: dict[bytes, bytes] = field(default_factory=dict)
    """id → payload of what is pending."""
    serial: int = 0

    # -- processes -------------------------------------------------------------------------------------------

    def wheel(self) -> tuple[Wheel, ProcessDisk]:
        disk = ProcessDisk(self.machine)
        return Wheel(
            "model.wheel", clock=self.clock, env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes)
        ), disk

    def keeper(self) -> tuple[Keeper, ProcessDisk]:
        disk = ProcessDisk(self.machine)
        return Keeper(
            "model.wheel",
            clock=self.clock,
            env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
            background=False,
        ), disk

    # -- messages --------------------------------------------------------------------------------------------

    def payload(self) -> bytes:
        self.serial += 1
        filler = self.rng.choice([b"", b"", b"\xf5FW1", bytes(24), self.rng.randbytes(self.rng.randrange(40))])
        return b"%d:%b" % (self.serial, filler)

    def due(self) -> int:
        """Draw one of few times, so that files hold several frames: soon, this lap, the next, far ones."""
        ahead = self.rng.choice([0, 1, 1, 2, 2, 30, 30, SLOTS + 10, SLOTS * 4 + 3, SLOTS * 4 + 3, SLOTS * 9])
        return self.clock.wall_us + ahead * US_PER_S + self.rng.randrange(US_PER_S)

    def put(self, wheel: Wheel, count: int, sync: Sync | None = None) -> list[MessageId]:
        payloads = [self.payload() for _ in range(count)]
        dues = [to_datetime(self.due()) for _ in payloads]
        topic = self.rng.choice(["", "mail"])
        ids = wheel.enqueue_many(
            payloads, at=dues, topic=topic, headers=self.rng.choice([None, {"to": "ann"}]), sync=sync
        )
        made = [MessageId(i) for i in ids]
        self.told.update(zip(map(bytes, made), payloads, strict=True))
        return made

    def lag(self, wheel: Wheel) -> None:
        """Commit as several threads do, or with an interval, or never: frames of which `synced` is behind."""
        for _ in range(self.rng.randrange(2, 5)):
            self.put(wheel, 1, sync="never")
        if self.rng.random() < 0.5:
            wheel.flush()
            self.put(wheel, 1, sync="never")

    def cancel(self, wheel: Wheel) -> None:
        id_ = MessageId(self.rng.choice(sorted(i for i in self.told if not MessageId(i).is_dead)))
        assert wheel.cancel(id_)
        del self.told[id_]

    def reschedule(self, wheel: Wheel) -> None:
        old = MessageId(self.rng.choice(sorted(i for i in self.told if not MessageId(i).is_dead)))
        new = wheel.reschedule(old, at=to_datetime(self.due()))
        self.told[new] = self.told.pop(old)

    # -- the keeper's acts -----------------------------------------------------------------------------------

    def finish(self, keeper: Keeper, messages: list[Message]) -> None:
        """Acknowledge most of what was claimed, put one back, bury one."""
        for i, message in enumerate(messages):
            payload = self.told.pop(message.id)
            new = None
            if i == 0:
                new = keeper.nack(message, delay=self.rng.choice([5, SLOTS * 4]))
            elif i == 1:
                new = keeper.bury(message, reason="no such handler")
            elif i == 2:
                self.told[message.id] = payload  # claimed, and the keeper dies
            else:
                keeper.ack(message)
            if new is not None:
                self.told[new] = payload

    def torn_deal(self, keeper: Keeper, disk: ProcessDisk) -> None:
        """Kill the keeper in a deal, before its commit: what it wrote is named by no checkpoint."""

        def kill(kind: str, name: str) -> None:
            if (kind, name) == ("rename", "checkpoint"):
                disk.kill()

        self.machine.before_op = kill
        with contextlib.suppress(Killed):
            Deal(keeper._store, spread=True).run()
        self.machine.before_op = None
        assert not disk.alive

    def tear(self) -> None:
        """Enqueue, and be killed in the middle of the last frame."""
        wheel, disk = self.wheel()
        for _ in range(self.rng.randrange(2, 5)):
            self.put(wheel, 1)
        before = dict(self.told)
        self.put(wheel, 2)
        journal = wheel._journal
        assert journal is not None
        segment = journal.appender.lender.writer.segment
        assert segment is not None
        name, end = segment.name, segment.offset
        disk.kill()
        inode = self.file(name)
        cut = self.rng.randrange(end - 100, end - 8)
        whole = bytes(inode.data)
        if self.rng.random() < 0.5:
            del inode.data[cut:end]
        # Where the frame ends with zeros, as the space behind it does, a cut alone changes nothing.
        if bytes(inode.data[:end]) == whole[:end] or len(inode.data) == len(whole):
            inode.data[cut:end] = b"\x55" * (end - cut)
        self.told = before

    def file(self, name: str) -> Inode:
        found: Dir | Inode = self.machine.root
        for part in name.split("/"):
            assert isinstance(found, Dir)
            found = found.entries[part]
        assert isinstance(found, Inode)
        return found


@dataclass
class Population:
    """A wheel to be damaged, and what is pending in it."""

    number: int
    image: Image
    told: dict[bytes, bytes]
    now_us: int
    live: str
    """The segment whose writer lives; "" when none does."""


def populate(number: int) -> Population:
    """Make the population of this number."""
    with small_segments():
        return _populate(number)


def _populate(number: int) -> Population:
    rng = random.Random(f"population {number}")
    b = Builder(rng)
    make_wheel(b.machine, b.clock, rng.randbytes)
    first, _ = b.wheel()
    stays, stays_disk = b.wheel()
    for _ in range(4):
        b.put(first, 3)
        b.put(stays, 2)
    b.cancel(first)
    first.close()
    keeper, disk = b.keeper()
    Deal(keeper._store, spread=True).run()
    b.put(stays, 3)
    b.clock.advance(2 * US_PER_S)
    b.finish(keeper, list(keeper.claim(7)))
    b.put(stays, 3)
    b.cancel(stays)
    Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    b.finish(keeper, list(keeper.claim(6)))
    b.put(stays, 2)
    if rng.random() < 0.5:
        b.torn_deal(keeper, disk)
    disk.kill()
    closed, _ = b.wheel()
    for _ in range(rng.randrange(4, 7)):
        b.put(closed, rng.randrange(1, 4))
    b.reschedule(closed)
    b.cancel(closed)
    closed.close()
    lagging, _ = b.wheel()
    b.lag(lagging)
    lagging.close()
    b.tear()
    b.put(stays, 2)
    b.reschedule(stays)
    if rng.random() < 0.5:
        b.lag(stays)
    b.put(stays, 1)
    journal = stays._journal
    assert journal is not None
    segment = journal.appender.lender.writer.segment
    assert segment is not None
    live = segment.name if rng.random() < 0.5 else ""
    image = Image.of(b.machine, [live] if live else [])
    stays_disk.kill()
    return Population(number, image, b.told, b.clock.wall_us, live)
