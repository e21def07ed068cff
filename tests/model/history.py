"""Histories: random lives of a wheel, with a power cut tried after any operation.

A history has one to three lives. In each, two producers, a keeper, a standby and someone who kills processes run
interleaved; at random operations the machine is crashed aside, recovered by the library, and compared with what the
oracle was told; some recoveries are crashed again half way. Between two lives the machine really crashes, or all its
processes are killed. At the end everything is fired, and nothing may be left on disk.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.format.record import ID, unpack_put
from filewheel.keeper import Keeper
from filewheel.keys.index import Keys
from filewheel.laps.window import Budget
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import DEAD_US, ID_END, ID_MIN, KEY, US_PER_S
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.model.consumer import Consumer
from tests.model.crashes import crash_at_random
from tests.model.machine import Dir, Inode, Machine
from tests.model.oracle import Oracle
from tests.model.process import Killed, ProcessDisk
from tests.model.producer import Producer, read
from tests.model.sched import paused
from tests.model.tiny import SLOTS, tiny
from tests.model.world import ModelClock, World

MODES = ["none", "all", "some", "some", "some"]
EVERYTHING = Budget(1 << 20, 1 << 30)
BROKEN = (FilewheelError, AssertionError, OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Errors that are violations when one ends a history."""


@dataclass
class Result:
    """What a history showed."""

    seed: int
    states: int = 0
    double: int = 0
    ops: int = 0
    switches: int = 0
    fired: int = 0
    violations: list[str] = field(default_factory=list)

    def show(self) -> int:
        """Print it; return the exit code."""
        print(f"{self.states} states, {self.ops} disk operations, {self.switches} switches, {self.fired} fired")
        for line in self.violations:
            print(line)
        return bool(self.violations)


def recover(machine: Machine, clock: ModelClock, rng: random.Random) -> tuple[Keeper, ProcessDisk]:
    """Open a keeper on a machine, inline."""
    disk = ProcessDisk(machine)
    keeper = Keeper(
        "model.wheel",
        clock=clock,
        env=SYSTEM.using(disk=lambda path: disk, entropy=rng.randbytes),
        background=False,
        budget=EVERYTHING,
    )
    return keeper, disk


def pending_of(keeper: Keeper) -> dict[bytes, tuple[bytes, int]]:
    """Return everything that a keeper knows to be pending: id → (payload, due)."""
    window = keeper._store.window(ID_MIN, ID_END, EVERYTHING)
    messages = [unpack_put(put) for put in window.puts]
    return {bytes(m.id): (m.payload, m.id.due_us) for m in messages}


class Checker:
    """Crashes a machine aside, recovers it, and compares."""

    def __init__(self, seed: int, result: Result) -> None:
        self.rng = random.Random(f"checker {seed}")
        self.result = result

    def check(self, world: World, context: str) -> None:
        """Try one power cut at this moment."""
        machine = crash_at_random(world.machine, self.rng, self.rng.choice(MODES))
        self.check_state(machine, world.oracle, ModelClock(world.clock.wall_us), context)

    def check_state(
        self,
        machine: Machine,
        oracle: Oracle,
        clock: ModelClock,
        context: str,
        *,
        deep: float = 0.15,
        again: bool = True,
    ) -> None:
        """Recover a machine and compare it with what was promised; `deep` is how often more than that is tried.

        More is: a second power cut in the recovery (only with `again`), a second recovery, a run to the end.
        """
        self.result.states += 1
        if again and self.rng.random() < deep:
            machine = self.crash_in_recovery(machine, clock)
        keeper, disk = recover(machine, clock, self.rng)
        pending = pending_of(keeper)
        oracle.check_pending(pending, context)
        if oracle.was_paused:
            self.check_pause(machine, keeper, oracle, context)
        if oracle.keys:
            self.check_keys(machine, keeper, oracle, context)
        self.check_clean(machine, oracle, clock, context)
        if self.rng.random() < deep:
            self.check_again(machine, disk, clock, pending, oracle, context)
        if oracle.keys and self.rng.random() < 0.3:
            machine, disk = self.check_covered(machine, disk, clock, oracle, context)
        if self.rng.random() < deep / 3 or deep == 1.0:
            self.run_to_the_end(machine, disk, clock, oracle, context)
        disk.kill()

    def check_pause(self, machine: Machine, keeper: Keeper, oracle: Oracle, context: str) -> None:
        """A wheel is paused after a power cut if it was before; then it is resumed, so that all fires."""
        if bool(keeper.paused) not in oracle.may_be_paused:
            oracle.violations.append(f"paused: {keeper.paused}, not {oracle.may_be_paused}: {context}")
        env = SYSTEM.using(disk=lambda path: ProcessDisk(machine), entropy=self.rng.randbytes)
        with Wheel("model.wheel", env=env) as wheel:
            wheel.resume(everything=True)

    def check_keys(self, machine: Machine, keeper: Keeper, oracle: Oracle, context: str) -> None:
        """Of the messages with one key at most one lives, and the index names it, or nobody."""
        living: dict[str, list[bytes]] = {key: [] for key in oracle.keys}
        for put in keeper._store.window(ID_MIN, DEAD_FLOOR, EVERYTHING).puts:
            key = unpack_put(put).headers.get(KEY)
            if key is not None:
                living.setdefault(key, []).append(put[ID])
        index = Keys(
            open_directory("model.wheel", write=False, env=SYSTEM.using(disk=lambda path: ProcessDisk(machine)))
        )
        for key, ids in living.items():
            if len(ids) > 1:
                oracle.violations.append(f"{len(ids)} messages live with the key {key!r}: {context}")
            elif [(held := index.find([key])[key].id)] != (ids or [None]):
                oracle.violations.append(f"the index says {held} has {key!r}, not {ids}: {context}")

    def check_covered(
        self, machine: Machine, disk: ProcessDisk, clock: ModelClock, oracle: Oracle, context: str
    ) -> tuple[Machine, ProcessDisk]:
        """Deal everything, and lose power again: the index names who has a key still."""
        disk.kill()
        keeper, disk = recover(machine, clock, self.rng)
        keeper.close()
        disk.kill()
        self.result.states += 1
        self.result.double += 1
        machine = crash_at_random(machine, self.rng, self.rng.choice(MODES))
        keeper, disk = recover(machine, clock, self.rng)
        self.check_keys(machine, keeper, oracle, f"dealt, {context}")
        return machine, disk

    def crash_in_recovery(self, machine: Machine, clock: ModelClock) -> Machine:
        """Recover, deal, and lose power somewhere on the way."""
        left = self.rng.randrange(1, 25)
        disk = ProcessDisk(machine)

        def on_op(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                disk.kill()

        machine.on_op = on_op
        try:
            keeper = Keeper(
                "model.wheel",
                clock=clock,
                env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
                background=False,
            )
            keeper.close()
        except Killed:
            pass
        machine.on_op = None
        disk.kill()
        self.result.states += 1
        self.result.double += 1
        return crash_at_random(machine, self.rng, self.rng.choice(MODES))

    def check_clean(self, machine: Machine, oracle: Oracle, clock: ModelClock, context: str) -> None:
        """A power cut is not damage: nothing that had been durable is in quarantine, and verifying finds none."""
        if oracle.is_lossy:
            return
        kept = machine.root.entries[layout.QUARANTINE]
        assert isinstance(kept, Dir)
        notes = [bytes(i.data) for name, i in kept.entries.items() if name.endswith(".json") and isinstance(i, Inode)]
        if any(b'"proven": true' in note for note in notes):  # a cut may tear the note of something else
            oracle.violations.append(f"false damage {notes}: {context}")
        if self.rng.random() < 0.1:
            directory = open_directory(
                "model.wheel", write=False, env=SYSTEM.using(disk=lambda path: ProcessDisk(machine))
            )
            damage = verify(directory).damage
            if damage:
                oracle.violations.append(f"verify finds {damage[0]}: {context}")

    def check_again(
        self,
        machine: Machine,
        disk: ProcessDisk,
        clock: ModelClock,
        pending: dict[bytes, tuple[bytes, int]],
        oracle: Oracle,
        context: str,
    ) -> None:
        """Recovering twice gives the same."""
        disk.kill()
        keeper, disk = recover(machine, clock, self.rng)
        if pending_of(keeper) != pending and not oracle.is_lossy:
            oracle.violations.append(f"a second recovery differs: {context}")
        disk.kill()

    def run_to_the_end(
        self, machine: Machine, disk: ProcessDisk, clock: ModelClock, oracle: Oracle, context: str
    ) -> None:
        """Fire and acknowledge everything: each once, in order, and nothing is left on disk."""
        disk.kill()
        keeper, disk = recover(machine, clock, self.rng)
        pending = {i for i, (_, due) in pending_of(keeper).items() if due < DEAD_US}
        clock.advance(SLOTS * 12 * US_PER_S)
        fired: list[bytes] = []
        while batch := keeper.claim(7):
            fired += batch.ids
            keeper.ack(batch)
        if fired != sorted(fired):
            oracle.violations.append(f"not fired in order: {context}")
        if not oracle.is_lossy and (set(fired) != pending or len(fired) != len(pending)):
            oracle.violations.append(f"fired {len(fired)} of {len(pending)} pending: {context}")
        keeper.close()
        # One more life covers what this one left: the drops of what it dealt in its last chunk.
        keeper, disk = recover(machine, clock, self.rng)
        again = keeper.claim()
        if again and not oracle.is_lossy:
            oracle.violations.append(f"fired again after a clean close: {[m.payload for m in again]}: {context}")
        keeper.close()
        self.check_empty(machine, oracle, context)

    def check_empty(self, machine: Machine, oracle: Oracle, context: str) -> None:
        """Nothing is left but dead letters."""
        if oracle.is_lossy:
            return
        journal, laps = machine.root.entries[layout.JOURNAL], machine.root.entries[layout.LAPS]
        assert isinstance(journal, Dir)
        assert isinstance(laps, Dir)
        dead = DEAD_US // US_PER_S // SLOTS
        left = [n for n in laps.entries if (layout.parse_lap_file(n) or (0, 0))[0] < dead]
        if journal.entries or left:
            oracle.violations.append(f"left on disk {sorted(journal.entries)} {sorted(left)}: {context}")


class History:
    """One history."""

    def __init__(self, seed: int, *, crash_rate: float = 0.4, steps: int = 60, lives: int = 3) -> None:
        self.seed = seed
        self.crash_rate = crash_rate
        self.steps = steps
        self.lives = lives
        self.result = Result(seed)
        self.rng = random.Random(f"history {seed}")
        self.checker = Checker(seed, self.result)

    def run(self) -> Result:
        """Run it; the result holds the violations, at the first of which it stops."""
        oracle, clock = Oracle(), ModelClock()
        machine: Machine | None = None
        with tiny():
            for life in range(self.rng.randrange(1, self.lives + 1)):
                world = World(self.seed * 10 + life, machine=machine, clock=clock, oracle=oracle)
                world.steps_max = self.steps
                self.live(world)
                self.result.ops += world.machine.ops
                self.result.switches += world.sched.switches
                if oracle.violations:
                    break
                machine = self.end_life(world)
        self.result.violations = oracle.violations
        self.result.fired = sum(t.fired for t in oracle.messages.values())
        return self.result

    def live(self, world: World) -> None:
        def on_op(kind: str, name: str) -> None:
            if self.rng.random() < self.crash_rate and not world.oracle.violations:
                with paused():
                    self.checker.check(world, f"seed {self.seed} op {world.machine.ops} after {kind} {name}")

        self.trouble(world)
        disks = [ProcessDisk(world.machine) for _ in range(4)]
        world.machine.on_op = on_op
        first, second = (Producer(world, disk) for disk in disks[:2])
        actors: list[tuple[str, ProcessDisk, Callable[[], None]]] = [
            ("producer 1", disks[0], first.run),
            ("producer 2", disks[1], second.run),
            ("keeper", disks[2], Consumer(world, disks[2]).run),
            ("standby", disks[3], Consumer(world, disks[3]).run),
        ]
        if self.rng.random() < 0.3:
            actors.append(("producer 1, thread 2", disks[0], first.second_thread))
        if self.rng.random() < 0.2 and not world.is_faulty:
            reader = ProcessDisk(world.machine)
            actors.append(("reader", reader, lambda: read(world, reader)))
        if self.rng.random() < 0.5:
            reaper = ProcessDisk(world.machine)
            actors.append(("reaper", reaper, lambda: world.reaper(reaper, disks)))
        world.run(*actors)
        world.machine.budget_bytes = world.machine.flip = None

    def trouble(self, world: World) -> None:
        """Draw what is wrong with this life's disk; mostly nothing."""
        how = self.rng.random()
        if how < 0.12:
            world.faults = {errno.EIO: self.rng.choice([0.002, 0.01, 0.05])}
        elif how < 0.16:
            world.faults = {errno.ENOSPC: self.rng.choice([0.01, 0.1])}
        elif how < 0.24:
            world.machine.budget_bytes = world.machine.used_bytes() + self.rng.randrange(500, 20_000)
        elif how < 0.27:
            world.machine.flip = world.flip
            world.oracle.is_lossy = True

    def end_life(self, world: World) -> Machine:
        """Kill every process; then, mostly, cut the power."""
        oracle = world.oracle
        if self.rng.random() < 0.25:
            return world.machine
        oracle.power_cut()
        return crash_at_random(world.machine, self.rng, self.rng.choice(MODES))


def run_history(seed: int, **options: float) -> Result:
    """Run one history; an error in the library is a violation too."""
    history = History(seed, **options)  # type: ignore[arg-type]
    try:
        return history.run()
    except BROKEN as exc:
        history.result.violations.append(f"seed {seed}: {exc!r}")
        return history.result
