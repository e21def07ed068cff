"""A small world that uses a wheel: producers, a keeper, a standby, a clock that steps; and an oracle that watches.

The oracle knows only what callers were told (this enqueue returned, this cancel returned, this acknowledgement was
flushed) and what was attempted. It never looks at the library's state, so it cannot share its mistakes.
Messages are told apart by their payload, which is unique for each enqueue; an id is where one is at present.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import filewheel.housekeeper
import filewheel.journal
import filewheel.ledger
import filewheel.wheel
from filewheel.deal import Deal
from filewheel.errors import NotFound
from filewheel.journal import Journal
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, MessageId
from filewheel.wheel import Wheel
from filewheel.window import Budget
from tests.model.machine import Machine, ProcessDisk
from tests.model.sched import ModelThreading, Scheduler

SLOTS = 60
START_US = 1_800_000_000 * US_PER_S


class ModelClock:
    """A clock that only moves when told to."""

    def __init__(self, now_us: int = START_US) -> None:
        self.wall_us = now_us
        self.run_us = 0

    def now_us(self) -> int:
        return self.wall_us

    def steady_us(self) -> int:
        self.run_us += 1
        return self.run_us

    def advance(self, us: int) -> None:
        self.wall_us += us
        self.run_us += us

    def step(self, us: int) -> None:
        """Step the wall clock alone, as someone who sets it does."""
        self.wall_us += us


@dataclass
class Told:
    """What is known from outside about one message."""

    payload: bytes
    dues: set[int]
    """Every due it was ever asked to have."""
    enqueued: bool = False
    """An enqueue returned with sync="always"."""
    may_be_gone: bool = False
    """An acknowledgement or a cancel of it was at least attempted."""
    finished: set[bytes] = field(default_factory=set)
    """Ids whose drop is durable: never pending again."""
    acked: set[bytes] = field(default_factory=set)
    """Ids that were acknowledged to a keeper, durable or not."""
    fired: int = 0


class Oracle:
    """What callers were told."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Told] = {}
        self.of_id: dict[bytes, bytes] = {}
        self.cancelled: set[bytes] = set()
        self.unflushed: list[bytes] = []
        self.violations: list[str] = []
        self.serial = 0

    def new(self, due_us: int) -> Told:
        self.serial += 1
        told = Told(b"m%d" % self.serial, {due_us})
        self.messages[told.payload] = told
        return told

    def finish(self, id_: bytes) -> None:
        payload = self.of_id.get(id_)
        if payload is not None:
            self.messages[payload].finished.add(id_)

    def check_pending(self, pending: dict[bytes, tuple[bytes, int]], context: str) -> None:
        """Compare what a recovered wheel holds (id → payload, due) with what was promised."""
        present: dict[bytes, list[bytes]] = {}
        for id_, (payload, due_us) in pending.items():
            told = self.messages.get(payload)
            if told is None or (due_us not in told.dues and not MessageId(id_).is_dead):
                self.violations.append(f"invented {payload!r} due {due_us}: {context}")
                continue
            present.setdefault(payload, []).append(id_)
            if id_ in told.finished:
                self.violations.append(f"{payload!r} is back after its drop was durable: {context}")
        for payload, told in self.messages.items():
            if told.enqueued and not told.may_be_gone and payload not in present:
                self.violations.append(f"{payload!r} is lost: {context}")


@contextlib.contextmanager
def tiny(segment_bytes: int = 1200, fill_bytes: int = 400, chunk_records: int = 12) -> Iterator[None]:
    """Make segments, fills, chunks and budgets so small that a short history meets all their edges."""
    patches: list[tuple[Any, str, Any]] = []

    def patch(target: Any, name: str, value: Any) -> None:
        patches.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def defaults(function: Any, **values: Any) -> None:
        patch(function, "__kwdefaults__", {**function.__kwdefaults__, **values})

    defaults(Journal.__init__, segment_bytes=segment_bytes, fill_bytes=fill_bytes)
    defaults(Deal.__init__, chunk_records=chunk_records)
    patch(filewheel.housekeeper, "BALLAST_BYTES", 0)
    for module in (filewheel.journal, filewheel.ledger, filewheel.wheel):
        patch(module, "threading", ModelThreading)
    try:
        yield
    finally:
        for target, name, value in reversed(patches):
            setattr(target, name, value)


class World:
    """One history on one machine."""

    def __init__(
        self,
        seed: int,
        *,
        machine: Machine | None = None,
        clock: ModelClock | None = None,
        oracle: Oracle | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = clock or ModelClock()
        self.oracle = oracle or Oracle()
        self.sched = Scheduler(self.rng)
        self.steps = 0
        self.steps_max = 60
        self.crashed = False
        if machine is None:
            machine = Machine()
            make_wheel(machine, self.clock, self.entropy)
        self.machine = machine
        self.keeper: Keeper | None = None
        self.ids: list[MessageId] = []

    def entropy(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    # -- handles ---------------------------------------------------------------------------------------------

    def open_wheel(self, disk: ProcessDisk) -> Wheel:
        return Wheel("model.wheel", clock=self.clock, disk=lambda path: disk, entropy=self.entropy)

    def open_keeper(self, disk: ProcessDisk, budget: Budget | None = None) -> Keeper:
        return Keeper(
            "model.wheel",
            clock=self.clock,
            disk=lambda path: disk,
            entropy=self.entropy,
            background=False,
            budget=budget or Budget(records=16, bytes=4000),
        )

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, *actors: tuple[str, ProcessDisk, Callable[[], None]]) -> None:
        """Run actors to their end, exchanging them at disk calls."""
        self.machine.before_op = lambda kind, name: self.sched.yield_()
        self.machine.blocked = lambda: self.sched._hand_on(self.sched.running, must=True)
        for name, process, body in actors:
            self.sched.spawn(name, process, body)
        try:
            self.sched.run()
        finally:
            self.machine.before_op = self.machine.on_op = self.machine.blocked = None

    def go_on(self) -> bool:
        """Count a step; tell whether the history goes on."""
        self.steps += 1
        return self.steps < self.steps_max

    # -- actors ----------------------------------------------------------------------------------------------

    def due(self) -> int:
        """Draw a due: past, near, next lap, far."""
        now = self.clock.wall_us
        kind = self.rng.randrange(6)
        if kind == 0:
            return now - self.rng.randrange(90 * US_PER_S)
        if kind <= 2:
            return now + self.rng.randrange(5 * US_PER_S)
        if kind == 3:
            return now + self.rng.randrange(SLOTS * 2 * US_PER_S)
        if kind == 4:
            return now + self.rng.randrange(SLOTS * 6 * US_PER_S)
        return (now // US_PER_S + self.rng.randrange(-3, 4)) * US_PER_S

    def producer(self, disk: ProcessDisk) -> None:
        """Enqueue, cancel and reschedule at random until the history ends."""
        wheel = self.open_wheel(disk)
        while self.go_on():
            act = self.rng.random()
            if act < 0.55:
                self.enqueue(wheel)
            elif act < 0.65:
                self.enqueue_many(wheel)
            elif act < 0.8:
                self.cancel(wheel)
            elif act < 0.9:
                self.reschedule(wheel)
            else:
                wheel.close()
                wheel = self.open_wheel(disk)
        if self.rng.random() < 0.5:
            wheel.close()
        else:
            disk.kill()

    def enqueue(self, wheel: Wheel) -> None:
        due_us = self.due()
        told = self.oracle.new(due_us)
        id_ = wheel.enqueue(told.payload, at=exact(due_us))
        self.enqueued(told, id_)

    def enqueued(self, told: Told, id_: MessageId) -> None:
        self.oracle.of_id[id_] = told.payload
        told.enqueued = True
        self.ids.append(id_)

    def enqueue_many(self, wheel: Wheel) -> None:
        dues = [self.due() for _ in range(self.rng.randrange(1, 6))]
        tolds = [self.oracle.new(d) for d in dues]
        for told, id_ in zip(
            tolds, wheel.enqueue_many([t.payload for t in tolds], at=[exact(d) for d in dues]), strict=True
        ):
            self.enqueued(told, id_)

    def pick(self) -> MessageId | None:
        return self.rng.choice(self.ids[-12:]) if self.ids else None

    def cancel(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        self.oracle.messages[self.oracle.of_id[id_]].may_be_gone = True
        wheel.cancel(id_)
        self.oracle.finish(id_)
        self.oracle.cancelled.add(id_)

    def reschedule(self, wheel: Wheel) -> None:
        id_ = self.pick()
        if id_ is None:
            return
        due_us = self.due()
        told = self.oracle.messages[self.oracle.of_id[id_]]
        told.dues.add(due_us)
        try:
            new = wheel.reschedule(id_, at=exact(due_us))
        except NotFound:
            return
        self.oracle.of_id[new] = told.payload
        self.oracle.finish(id_)
        self.oracle.cancelled.add(id_)
        self.ids.append(new)

    def consumer(self, disk: ProcessDisk) -> None:
        """Be the keeper: claim, acknowledge, put back, deal, expire, in any order, until the history ends."""
        keeper = self.open_keeper(disk)
        self.keeper = keeper
        claimed: list[MessageId] = []
        while self.go_on():
            act = self.rng.random()
            if act < 0.4:
                claimed += self.claim(keeper)
            elif act < 0.6 and claimed:
                self.finish_one(keeper, claimed.pop(self.rng.randrange(len(claimed))))
            elif act < 0.75:
                self.housekeep(keeper)
            elif act < 0.9:
                Deal(keeper._ledger, spread=self.rng.random() < 0.8, finished=keeper._head.finished).run()
            else:
                self.move_clock()
        if self.rng.random() < 0.5:
            keeper.close()
            for id_ in self.oracle.unflushed:
                self.oracle.finish(id_)
            self.oracle.unflushed.clear()
        else:
            disk.kill()

    def claim(self, keeper: Keeper) -> list[MessageId]:
        cancelled = set(self.oracle.cancelled)
        batch = keeper.claim(self.rng.randrange(1, 6))
        now = self.clock.wall_us
        ids = []
        for message in batch:
            told = self.oracle.messages.get(message.payload)
            if told is None:
                self.oracle.violations.append(f"fired {message.payload!r}, which nobody enqueued")
                continue
            told.fired += 1
            if message.due_us > now:
                self.oracle.violations.append(f"{message.payload!r} fired {message.due_us - now} µs early")
            if message.id in cancelled:
                self.oracle.violations.append(f"{message.payload!r} started after its cancel had returned")
            if message.id in told.acked:
                self.oracle.violations.append(f"{message.payload!r} fired again after it was acknowledged")
            self.oracle.of_id[message.id] = message.payload
            ids.append(message.id)
        return ids

    def finish_one(self, keeper: Keeper, id_: MessageId) -> None:
        told = self.oracle.messages[self.oracle.of_id[id_]]
        how = self.rng.random()
        if how < 0.65:
            told.may_be_gone = True
            durable = self.rng.random() < 0.3
            keeper.ack(id_, sync="always" if durable else "never")
            told.acked.add(id_)
            if durable:
                self.oracle.finish(id_)
            else:
                self.oracle.unflushed.append(id_)
            return
        if how < 0.9:
            delay = self.rng.choice([0, 0, 1, 3, 70])
            told.dues.add(self.clock.wall_us + delay * US_PER_S)
            new = keeper.nack(id_, delay=delay)
        else:
            new = keeper.bury(id_)
        told.acked.add(id_)
        if new is not None:  # else it was cancelled meanwhile, and its drop is the canceller's to flush
            self.oracle.unflushed.append(id_)
            self.oracle.of_id[new] = told.payload

    def housekeep(self, keeper: Keeper) -> None:
        unflushed, self.oracle.unflushed = self.oracle.unflushed, []
        keeper._housekeeper._dirty = True
        keeper._housekeeper._looked_us = -(1 << 60)
        try:
            keeper._housekeeper.step()
        except BaseException:
            self.oracle.unflushed = unflushed + self.oracle.unflushed
            raise
        for id_ in unflushed:
            self.oracle.finish(id_)

    def reaper(self, disk: ProcessDisk, disks: list[ProcessDisk]) -> None:
        """Kill a process somewhere in the history; its page cache stays."""
        victim = self.rng.choice(disks)
        at = self.rng.randrange(self.steps_max)
        while self.steps < at:
            disk.wait_hint(None, 0)
        victim.kill()

    def move_clock(self) -> None:
        how = self.rng.random()
        if how < 0.8:
            self.clock.advance(self.rng.randrange(1, 20 * US_PER_S))
        elif how < 0.9:
            self.clock.advance(SLOTS * US_PER_S)
        else:
            self.clock.step(-self.rng.randrange(10 * US_PER_S))


def exact(us: int) -> Any:
    from filewheel.message import to_datetime

    return to_datetime(us)


def make_wheel(machine: Machine, clock: ModelClock, entropy: Callable[[int], bytes]) -> None:
    """Put an empty wheel on a machine, durable."""
    from filewheel import layout
    from filewheel.directory import Settings, _write

    disk = ProcessDisk(machine)
    settings = Settings(id=entropy(16).hex(), salt=entropy(16).hex(), slots=SLOTS)
    _write(disk, settings)
    disk.sync_all()
    assert layout.SETTINGS in machine.root.entries
