"""Two nodes with wheels on disk and a cluster in memory, and all that may happen between two of their steps.

The protocol alone is a model (tests/kafka/model); here the service's own code runs, each of its threads a step at a
time. All choices come from the seed: `python -m tests.kafka.schedule SEED` plays a schedule again and prints it,
`python -m tests.crash --only kafka-nodes --budget 5m` plays as many as fit.
Invariant: at the end everything is mended and all that was due went out: at least once, or exactly once as a committed
reader sees it; nothing went out early.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from filewheel.kafka.node.settings import NodeSettings
from filewheel.kafka.node.transport import End, Refusal, UnitOutcome
from filewheel.kafka.records.options import OnTargetError, Policy
from tests.kafka.fake import Cluster, FakeSource, Log, Unit
from tests.kafka.folder import Folder, put
from tests.kafka.hands import Hands
from tests.kafka.parts import check_whole
from tests.support import FakeClock

STEPS = 250
PARTITIONS = 2
TARGETS = ("target", "absent", "delay.dlt")
WAITS_S = (-5.0, 0.0, 0.0, 0.5, 2.0, 15.0, 300.0)


class Broken(AssertionError):
    """A schedule ended in what is not promised."""


class Schedule:
    """One schedule. Seeds that are odd promise each record exactly once."""

    def __init__(self, seed: int, path: Path) -> None:
        self.seed = seed
        self.path = path
        self.rng = rng = random.Random(seed)
        self.exactly_once = bool(seed % 2)
        self.cluster = Cluster(partitions=PARTITIONS)
        self.cluster.logs["absent", 0] = Log()
        self.clock = FakeClock(self.cluster.now_ms * 1000)
        errors: tuple[OnTargetError, ...] = ("retry", "dead-letter", "put-back")
        self.policy = Policy("delay", on_target_error=rng.choice(errors), put_back_s=3)
        self.settings = NodeSettings(
            exactly_once=self.exactly_once,
            standby=rng.choice(["none", "all"]),
            unit=rng.choice([1, 3, 1000]),
            poll=rng.choice([2, 1000]),
            queue=rng.choice([3, 5000]),
        )
        self.folders = {name: self._folder(name) for name in "ab"}
        self.living: dict[str, Hands] = {}
        self.dead: list[FakeSource] = []
        """Members whose process was killed, and whose session has not ended."""
        self.produced: list[bytes] = []
        self.happened: Counter[str] = Counter()
        self.story: list[str] = []

    def _folder(self, name: str) -> Folder:
        return Folder(self.path / name, self.clock, self.policy)

    def play(self, steps: int = STEPS) -> Counter[str]:
        """Play it; return what happened how often. Raises Broken."""
        events: list[tuple[Callable[[], None], int]] = [
            (self.produce, 14), (self.step, 50), (self.turn, 25), (self.answer, 14), (self.wait, 12), (self.start, 6),
            (self.kill, 1), (self.stop, 1), (self.expire_dead, 4), (self.expire_living, 1), (self.outage, 1),
            (self.refuse, 2), (self.wipe, 1),
        ]  # fmt: skip
        self.start()
        for event in self.rng.choices([e for e, _ in events], [w for _, w in events], k=steps):
            self._do(event)
        self._mend()
        self._judge()
        return self.happened

    def _do(self, event: Callable[[], None]) -> None:
        self.story.append(event.__name__)
        event()

    def _note(self, what: str) -> None:
        self.happened[what] += 1
        self.story[-1:] = [*self.story[-1:], f"  {what}"]

    # What happens.

    def produce(self) -> None:
        self.cluster.now_ms = self.clock.now_us() // 1000
        for _ in range(self.rng.randrange(1, 5)):
            name = b"%d" % len(self.produced)
            self.produced.append(name)
            partition = self.rng.randrange(PARTITIONS)
            if self.rng.random() < 0.05:
                self.cluster.put(name, partition=partition)  # it names no due
                continue
            if self.rng.random() < 0.1:
                self.cluster.end_transaction("delay", partition)
            wait_ms = round(self.rng.choice(WAITS_S) * 1000)
            target = "absent" if self.rng.random() < 0.1 else "target"
            put(self.cluster, name, after_ms=wait_ms, partition=partition, target=target)

    def step(self) -> None:
        if not self.living:
            return
        node = self._any()
        node.answers = not self.cluster.is_down and self.rng.random() < 0.5
        steps: list[Callable[[], object]] = [
            node.node.poll_step, node.node.intake.step, node.node.loop.step, node.node.standby_step,
            node.node.housekeeping_step,
        ]  # fmt: skip
        if node.background:
            steps += [node.background.pop(self.rng.randrange(len(node.background)))] * 3
            steps = steps[-1:]
        self.rng.choice(steps)()

    def turn(self) -> None:
        if self.living:
            self._any().turn()

    def wait(self) -> None:
        self.clock.advance(self.rng.choice([0.001, 0.1, 1.0, 1.0, 5.0, 15.0]))

    def answer(self) -> None:
        """End a unit as a cluster may: also halfway, or so that nobody can say how."""
        if not self.cluster.under_way:
            return
        index = self.rng.randrange(len(self.cluster.under_way))
        fate = "failed" if self.cluster.is_down else self.rng.choice(["whole"] * 6 + ["failed", "undecided", "nothing"])
        if fate == "whole":
            self.cluster.finish(index=index)
            return
        self._note(fate)
        if fate == "undecided" and self.exactly_once:  # it was committed, and nobody says so
            self.cluster.finish(End.UNDECIDED, index=index)
            return
        unit = self.cluster.under_way.pop(index)
        if fate == "nothing" and self.exactly_once:
            self._tell(unit, UnitOutcome(End.UNDECIDED, frozenset(range(len(unit.records))), reason="no answer"))
        else:
            self._tell(unit, self._halfway(unit))

    def _halfway(self, unit: Unit) -> UnitOutcome:
        """Fail a unit; at least once, some of its records are in their logs, and not all of those are known to be."""
        every = frozenset(range(len(unit.records)))
        if self.exactly_once:
            return UnitOutcome(End.FAILED, every, reason="timed out")
        there = {n for n in every if unit.records[n].topic not in self.cluster.refused and self.rng.random() < 0.5}
        for n in sorted(there):
            self.cluster.append(unit.records[n])
        known = {n for n in there if self.rng.random() < 0.5}
        return UnitOutcome(End.FAILED, every - known, reason="timed out")

    def _tell(self, unit: Unit, outcome: UnitOutcome) -> None:
        if not unit.sink.is_closed:
            unit.done(outcome)

    def start(self) -> None:
        for name in self.folders.keys() - self.living.keys():
            self._note("starts")
            self.living[name] = Hands(
                self.cluster, clock=self.clock, disk=self.folders[name], name=name, exactly_once=self.exactly_once,
                settings=self.settings,
            )  # fmt: skip
            return

    def kill(self) -> None:
        """End a process at once. The group learns of it later, or never before it is back."""
        if self.living:
            self._note("kills")
            node = self.living.pop(self._name())
            node.crash()
            self.dead.append(node.node.source)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End a process as an operator does."""
        if self.living:
            self._note("stops")
            node = self.living.pop(self._name())
            node.answers = not self.cluster.is_down
            node.node.source.close()
            if node.node.standby is not None:
                node.node.standby.close()

    def expire_dead(self) -> None:
        if self.dead:
            self.cluster.expire(self.dead.pop())

    def expire_living(self) -> None:
        """End the session of a process that was only halted."""
        if self.living:
            self._note("zombies")
            self.cluster.expire(self._any().node.source)  # type: ignore[arg-type]

    def outage(self) -> None:
        self._note("outages")
        self.cluster.is_down = not self.cluster.is_down

    def refuse(self) -> None:
        topic = self.rng.choice(["absent", "absent", "delay.dlt"])
        if self.cluster.refused.pop(topic, None) is None:
            self._note("refusals")
            self.cluster.refused[topic] = Refusal("no such topic")

    def wipe(self) -> None:
        """Replace the disk of a machine that is off."""
        for name in self.folders.keys() - self.living.keys():
            self._note("wiped disks")
            shutil.rmtree(self.folders[name].path, ignore_errors=True)
            return

    def _name(self) -> str:
        return self.rng.choice(sorted(self.living))

    def _any(self) -> Hands:
        return self.living[self._name()]

    # The end.

    def _mend(self) -> None:
        self.story.append("mend")
        self.cluster.is_down = False
        self.cluster.refused.clear()
        while self.dead:
            self.expire_dead()
        self.start()
        for _ in range(8):
            for node in self.living.values():
                node.answers = True
                node.after(60)

    def _judge(self) -> None:
        entries = [entry for topic in TARGETS for entry in self.cluster.logs[topic, 0].entries]
        seen = Counter(entry.value for entry in entries)
        lost = [name for name in self.produced if not seen[name]]
        twice = [name for name in self.produced if seen[name] > 1]
        self.happened["records"] += len(self.produced)
        self.happened["repeats"] += len(twice)
        for entry in entries:
            stamps = dict(entry.headers)
            if "filewheel-fired-ms" in stamps:
                due, fired = (int(stamps[f"filewheel-{name}-ms"] or 0) for name in ("due", "fired"))
                self._demand(fired >= due, f"{entry.value!r} went out {due - fired} ms early")
        self._demand(not lost, f"lost: {lost}")
        self._demand(not (self.exactly_once and twice), f"twice: {twice}")
        for node in self.living.values():
            for status in node.node.status():
                self._demand(status.state.value == "active", f"{status}")
        for node in self.living.values():
            node.node.source.close()
            if node.node.standby is not None:
                node.node.standby.close()
        for folder in self.folders.values():
            for place in (folder.path / "delay").glob("*"):
                check_whole(place)

    def _demand(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(f"seed {self.seed}: {what}\n{self.policy}\n{self.settings}")


def play(seed: int, path: Path, steps: int = STEPS) -> Counter[str]:
    """Play a schedule in a directory; return what happened how often. Raises Broken."""
    return Schedule(seed, path).play(steps)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        schedule = Schedule(int(sys.argv[1]), Path(directory))
        try:
            print(schedule.play())
        finally:
            print("\n".join(schedule.story))
