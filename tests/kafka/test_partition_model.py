"""The power is cut after any operation of a partition's disk: nothing is lost, and nothing that is done comes back.

Kafka is outside: its log and the published marker survive. After each cut the wheel is opened, the marker applied and
the log read again from the position; then what waits must be what the log and the marker say, and go out once.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.kafka.partition import partition as module
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.records.fate import id_of
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S
from filewheel.tools.verify import verify
from tests.kafka.parts import SOURCE, Log, offsets
from tests.model.crashes import crash_at_random
from tests.model.machine import Machine
from tests.model.process import Killed, ProcessDisk
from tests.model.tiny import tiny
from tests.model.world import ModelClock, make_wheel
from tests.support import seeds
from tests.support_wheel import NOW_US

STATES = 4
"""How many states of the disk are tried after each operation."""


class Story:
    """One node and its partition, on a machine whose power can be cut."""

    def __init__(self, seed: int, *, keyed: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = ModelClock(NOW_US)
        self.keyed = keyed
        self.log = Log(start_us=NOW_US)
        self.machine = Machine()
        make_wheel(self.machine, self.clock, self.rng.randbytes)
        self.partition = self.open(self.machine)
        self.log.take_over(self.partition)
        self.states = 0

    def env(self, machine: Machine, clock: ModelClock) -> Env:
        disk = ProcessDisk(machine)
        rng = random.Random(self.rng.random())
        return SYSTEM.using(clock=clock, disk=lambda path: disk, entropy=rng.randbytes)

    def open(self, machine: Machine, clock: ModelClock | None = None) -> Partition:
        return Partition("model.wheel", SOURCE, keyed=self.keyed, env=self.env(machine, clock or self.clock))

    def kill(self) -> None:
        """Kill the process, and start it again: what it wrote is in the page cache."""
        disk = self.partition._keeper.directory.disk
        assert isinstance(disk, ProcessDisk)
        disk.kill()
        self.partition = self.open(self.machine)
        self.log.take_over(self.partition)

    def wait(self, seconds: float) -> None:
        self.clock.advance(round(seconds * US_PER_S))

    def fire(self, limit: int = 1000, *, settles: bool = True) -> None:
        chunk = self.partition.next_chunk(limit)
        if chunk.ids:
            self.log.fired += offsets(chunk)
            self.log.marker = self.log.marker.after_chunk(chunk.ingested, chunk.last_id).with_low(self.partition.low())
            if settles:
                self.partition.settle(chunk)

    def deal(self) -> None:
        self.partition._keeper._housekeeper.deal_all()

    def play(self, script: Callable[[Story], None], *, often: float = 1.0) -> None:
        """Play a script, and cut the power after each of its operations."""
        self.machine.on_op = lambda kind, name: self._cut(f"{kind} {name}", often)
        script(self)
        self._cut("the end", 1.0)
        self.machine.on_op = None

    def _cut(self, what: str, often: float) -> None:
        if self.rng.random() > often:
            return
        for mode in ("none", "all", *["some"] * (STATES - 2)):
            self.states += 1
            where = f"after operation {self.machine.ops} ({what}), {mode} kept"
            self._judge(crash_at_random(self.machine, self.rng, mode), where)

    def _judge(self, machine: Machine, where: str) -> None:
        log = replace(self.log, puts=list(self.log.puts), fired=list(self.log.fired))
        clock = ModelClock(self.clock.wall_us)
        if self.rng.random() < 0.2:  # the power goes once more while the wheel is opened and read
            machine = self._cut_again(machine, log, clock)
        partition = self.open(machine, clock)
        log.take_over(partition)
        waiting = log.waiting()
        clock.advance(10_000 * US_PER_S)
        found: list[int] = []
        while chunk := partition.next_chunk(5):
            if not chunk.ids:
                break
            found += offsets(chunk)
            partition.settle(chunk)
        assert sorted(found) == sorted(waiting), f"{where}: {found}, not {sorted(waiting)}"
        while partition.waiting is None:
            partition.housekeep()
        assert (partition.waiting, partition.low()) == (0, log.end), where
        partition.close()
        disk = ProcessDisk(machine)
        directory = open_directory("model.wheel", write=False, env=SYSTEM.using(disk=lambda path: disk))
        assert not verify(directory).damage, f"{where}: {verify(directory).damage}"

    def _cut_again(self, machine: Machine, log: Log, clock: ModelClock) -> Machine:
        at = machine.ops + self.rng.randrange(1, 30)

        def stop(kind: str, name: str) -> None:
            if machine.ops >= at:
                raise Killed

        machine.on_op = stop
        with contextlib.suppress(Killed):
            partition = self.open(machine, clock)
            log.take_over(partition)
            partition.flush()
        machine.on_op = None
        return crash_at_random(machine, self.rng, "some")


# -- scripts ---------------------------------------------------------------------------------------------------


def flush(s: Story) -> None:
    """Records come, are flushed, and come again before the next flush."""
    for n in range(4):
        s.log.add(n * 3)
        s.log.add(n + 70)
        s.log.read(s.partition)
        if n % 2:
            s.partition.flush()


def settle(s: Story) -> None:
    """A chunk goes out; its marker is published; its drops are written and not flushed."""
    for n in range(6):
        s.log.add(n)
    s.log.read(s.partition)
    s.partition.flush()
    s.wait(2)
    s.fire(2)
    s.fire(10)
    s.log.add(-3)
    s.log.read(s.partition)
    s.fire(10, settles=False)


def deal(s: Story) -> None:
    """Records are dealt into slots and a lap file, go out, and their files go."""
    for n in range(8):
        s.log.add(n * 25)
    s.log.read(s.partition)
    s.deal()
    s.partition.flush()
    s.wait(80)
    s.fire(3)
    s.deal()
    s.log.add(90)
    s.log.read(s.partition)
    s.wait(200)
    s.fire()
    s.deal()


def reopen(s: Story) -> None:
    """The process is killed twice; each time a part is read again that is in the wheel already."""
    for n in range(5):
        s.log.add(n * 2)
    s.log.read(s.partition)
    s.wait(3)
    s.fire(10, settles=False)
    s.kill()
    s.deal()
    s.log.add(40)
    s.log.read(s.partition)
    s.wait(5)
    s.fire()
    s.deal()
    s.kill()
    s.partition.close()


def standby(s: Story) -> None:
    """Another node fires; this one drops what the markers say."""
    for n in range(6):
        s.log.add(n)
    s.log.read(s.partition, 4)
    s.wait(4)
    for offset in (0, 2, 4):
        s.log.fired.append(offset)
    put = s.log.puts[2]
    s.log.marker = s.log.marker.after_chunk(12, id_of(put.due_us, put.offset))
    s.partition.apply(s.log.marker)
    s.log.read(s.partition)
    s.partition.flush()
    s.deal()


SCRIPTS = [flush, settle, deal, reopen, standby]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with tiny(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BUDGET", Budget(records=16, bytes=4000))
        patch.setattr(module, "WALK_BUDGET", Budget(records=3, bytes=4000))
        yield


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_power_cut_anywhere_loses_nothing_and_brings_nothing_back(script: Callable[[Story], None]) -> None:
    story = Story(1, keyed=False)
    story.play(script)
    assert story.states > 40


@pytest.mark.parametrize("seed", seeds(2, all_of=4))
def test_a_power_cut_anywhere_in_any_history_of_a_keyed_topic(seed: int) -> None:
    def anything(s: Story) -> None:
        rng = random.Random(seed)
        now_s = 0.0
        for _ in range(25):
            match rng.randrange(9):
                case 0 | 1 | 2:
                    key = rng.choice([None, b"a", b"b"])
                    s.log.add(now_s + rng.choice([-5, 1, 20, 200]), key=key, cancels=bool(key) and rng.random() < 0.3)
                case 3 | 4:
                    s.log.read(s.partition)
                    s.fire(rng.randrange(1, 4), settles=rng.random() < 0.7)
                    if s.partition._in_hand:
                        s.kill()
                case 5:
                    now_s += 15
                    s.wait(15)
                case 6:
                    s.partition.flush()
                case 7:
                    s.deal()
                case 8:
                    s.kill()

    story = Story(seed, keyed=True)
    story.play(anything, often=0.3)
