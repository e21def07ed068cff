"""A small world that uses a wheel: producers, a keeper, a standby, a clock that steps; and an oracle that watches.

Every actor draws what it does next from the seed. Invariant: whatever returns to an actor is told to the oracle before
anything else happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from filewheel.disk.disk import SYSTEM
from filewheel.keeper import Keeper
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, MessageId
from filewheel.wheel import Wheel
from tests.model.machine import Machine
from tests.model.oracle import Oracle
from tests.model.process import ProcessDisk
from tests.model.sched import Scheduler
from tests.model.tiny import SLOTS
from tests.support_wheel import NOW_US, StillClock

START_US = NOW_US


class ModelClock(StillClock):
    """A clock that only moves when told to."""

    def advance(self, us: int) -> None:
        """Let time pass."""
        self.wall_us += us
        self.run_us += us

    def step(self, us: int) -> None:
        """Step the wall clock alone, as someone who sets it does."""
        self.wall_us += us


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
        self.faults: dict[int, float] = {}
        """How often a call fails with this error."""
        if machine is None:
            machine = Machine()
            make_wheel(machine, self.clock, self.entropy)
        self.machine = machine
        self.ids: list[MessageId] = []

    def entropy(self, size: int) -> bytes:
        return self.rng.randbytes(size)

    @property
    def is_faulty(self) -> bool:
        """Whether calls may fail: in this life, or because nobody has heard yet of what failed in one before."""
        return bool(self.faults) or self.machine.budget_bytes is not None or self.machine.errors > 0

    def fault(self, kind: str, name: str) -> int | None:
        """Draw whether a call fails, and how."""
        for code, often in self.faults.items():
            if self.rng.random() < often:
                return code
        return None

    def flip(self, name: str, data: bytes) -> bytes:
        """Draw whether a read returns a bit that is not on the disk."""
        if not data or self.rng.random() >= 0.01:
            return data
        at = self.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :]

    # -- handles ---------------------------------------------------------------------------------------------

    def open_wheel(self, disk: ProcessDisk) -> Wheel:
        return Wheel("model.wheel", clock=self.clock, env=SYSTEM.using(disk=lambda path: disk, entropy=self.entropy))

    def open_keeper(self, disk: ProcessDisk, budget: Budget | None = None) -> Keeper:
        return Keeper(
            "model.wheel",
            clock=self.clock,
            env=SYSTEM.using(disk=lambda path: disk, entropy=self.entropy),
            background=False,
            budget=budget or Budget(records=16, bytes=4000),
        )

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, *actors: tuple[str, ProcessDisk, Callable[[], None]]) -> None:
        """Run actors to their end, exchanging them at disk calls."""
        self.machine.before_op = lambda kind, name: self.sched.yield_()
        self.machine.blocked = lambda: self.sched._hand_on(self.sched.running, must=True)
        self.machine.after_flush = self.sched.yield_
        self.machine.mid_read = lambda kind, name: self.sched.yield_()
        self.machine.fault = self.fault if self.faults else None
        for name, process, body in actors:
            self.sched.spawn(name, process, body)
        try:
            self.sched.run()
        finally:
            self.machine.before_op = self.machine.on_op = self.machine.blocked = None
            self.machine.after_flush = self.machine.mid_read = self.machine.fault = None

    def go_on(self) -> bool:
        """Count a step; tell whether the history goes on."""
        self.steps += 1
        return self.steps < self.steps_max

    # -- what actors draw ------------------------------------------------------------------------------------

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


def make_wheel(machine: Machine, clock: ModelClock, entropy: Callable[[int], bytes], *, salt: str | None = None) -> str:
    """Put an empty wheel on a machine, durable; return its salt."""
    from filewheel.disk.directory import _write
    from filewheel.format import layout
    from filewheel.format.settings import Settings

    disk = ProcessDisk(machine)
    settings = Settings(id=entropy(16).hex(), salt=salt or entropy(16).hex(), slots=SLOTS)
    _write(disk, settings, "wheel")
    disk.sync_all()
    assert layout.SETTINGS in machine.root.entries
    return settings.salt
