"""Campaign: every system call of a dozen and a half uses of a wheel fails, tears, or is the last of its process.

A clean run of each scenario counts its calls of each kind; then each call is made to fail in each way that such a
call can (shim.py). A round is every ROUNDS-th of these points. The process that fails is a child of one that has the
shim preloaded (zygote.py); this one, without it, reads what the child was told and looks at what is left on disk.
Invariant: a point is known by its scenario and its plan, and runs on a copy of the same prepared wheel.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from filewheel import FilewheelError, Keeper, Wheel
from filewheel.disk.directory import opened
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.tools import dump
from filewheel.tools.verify import verify
from tests.crash import shim
from tests.crash.campaign import Campaign, Tally
from tests.crash.promises import Promises, text_of
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.set_whole import make_whole
from tests.crash.shim import Plan
from tests.support import FakeClock

ROUNDS = 600
_FAR_S = 100_000

Scenarios = Mapping[str, Scenario]
Fact = dict[str, Any]
Pending = list[tuple[bytes, str, int]]


@dataclass(frozen=True)
class Point:
    """One scenario with one fault."""

    scenario: str
    plan: Plan

    def __str__(self) -> str:
        return f"{self.scenario}, {self.plan}"


@dataclass
class Prepared:
    """A scenario's wheel before the fault, what was promised about it, and how many calls its run makes."""

    place: Path
    marks: list[Fact]
    ids: list[str]
    now_us: int
    counts: dict[str, int] = field(default_factory=dict)


class Sweep:
    """The zygote, the prepared wheels and all points."""

    def __init__(
        self, top: Path, faults: dict[str, list[tuple[str, int]]] | None = None, scenarios: Scenarios = SCENARIOS
    ) -> None:
        """Prepare every scenario. `faults` are those of shim.FAULTS, or others."""
        self._top = top
        self._place = top / "here"
        """Where every point is played: the rosters of a set hold absolute paths."""
        self.scenarios = scenarios
        made = shim.build(top)
        command = [sys.executable, "-m", "tests.crash.zygote"]
        self.zygote = subprocess.Popen(
            command, env=shim.environment(made), cwd=shim.SOURCE.parents[2], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.prepared = {name: self._prepare(name) for name in scenarios}
        self.points = [Point(name, plan) for name, p in self.prepared.items() for plan in shim.plans(p.counts, faults)]

    def close(self) -> None:
        """End the zygote."""
        assert self.zygote.stdin is not None
        self.zygote.stdin.close()
        try:
            self.zygote.wait(10)
        except subprocess.TimeoutExpired:
            self.zygote.send_signal(signal.SIGKILL)
            self.zygote.wait()
        assert self.zygote.stdout is not None
        self.zygote.stdout.close()

    def _ask(self, **order: Any) -> Fact:
        into, out = self.zygote.stdin, self.zygote.stdout
        assert into is not None
        assert out is not None
        print(json.dumps(order), file=into, flush=True)
        return dict(json.loads(_line(out)))

    def _prepare(self, name: str) -> Prepared:
        self._place.mkdir()
        answer = self._ask(part="prepare", scenario=name, dir=str(self._place))
        assert answer["status"] == 0, answer
        for pipe in self._place.glob("*/hint"):
            pipe.unlink()  # it cannot be copied, and is made again
        place = self._place.rename(self._top / f"of-{name}")
        last = answer["marks"][-1]
        prepared = Prepared(place, answer["marks"], last["ids"], last["now"])
        marks = self.run(Point(name, Plan()), prepared)[1]
        prepared.counts = marks["marks"][-1]["counts"]
        shutil.rmtree(self._place)
        return prepared

    def run(self, point: Point, prepared: Prepared) -> tuple[Path, Fact]:
        """Run a scenario with its fault on a copy of its wheel; return where that is, and the zygote's answer."""
        place = self._place
        shutil.copytree(prepared.place, place, copy_function=shutil.copyfile)
        plan = point.plan
        answer = self._ask(
            part="run", scenario=point.scenario, dir=str(place), ids=prepared.ids, now=prepared.now_us,
            plan=[plan.kind, plan.n, plan.action, plan.code],
        )  # fmt: skip
        return place, answer

    def play(self, point: Point, tally: Tally) -> None:
        """Play one point and judge it."""
        prepared = self.prepared[point.scenario]
        place, answer = self.run(point, prepared)
        try:
            said = answer["marks"]
            wrong, fired = _end_of(answer, point)
            tally.count("points" if fired else "points not reached")
            promises = Promises()
            promises.read(prepared.marks)
            promises.read(said, once=point.plan.is_once)
            wrong += promises.wrong
            scenario = self.scenarios[point.scenario]
            wrong += judge(place / "jobs.wheel", promises, said, scenario, point, prepared.now_us)
            for text in wrong:
                tally.violation(f"{point}: {text}")
        finally:
            shutil.rmtree(place)


def _line(out: IO[str]) -> str:
    line = out.readline()
    if not line:
        raise RuntimeError("the zygote has gone")
    return line


def _end_of(answer: Fact, point: Point) -> tuple[list[str], bool]:
    """Say what is wrong with how the child ended, and whether it met its fault."""
    status, last = answer["status"], answer["marks"][-1:] or [{}]
    if answer["hung"]:
        return ["it hangs"], True
    if status == -signal.SIGKILL and point.plan.kills:
        return [], True
    if status != 0:
        return [f"the process ended with {status}"], True
    return [], bool(last[0].get("fired"))


# -- judging ----------------------------------------------------------------------------------------------------------


def judge(path: Path, promises: Promises, said: list[Fact], scenario: Scenario, point: Point, now_us: int) -> list[str]:
    """Say what is wrong with a wheel that a process left behind, as a reader and the next keeper see it."""
    if scenario.prepare is None and not promises.created:
        return _judge_unmade(path)
    forgets = point.plan.action == "fail-lost"
    unreadable = point.plan.kind == "read" and point.plan.code == errno.EIO
    clock = FakeClock(now_us)
    try:
        wrong, in_doubt = [], False
        if scenario.is_set:
            path, wrong, in_doubt = make_whole(path.parent, clock.now_us(), damages=scenario.damages)
        pending = pending_in(path, clock)
        found = promises.judge(pending, forgets=forgets)
        wrong += [text for text in found if not (in_doubt and "after its drop was" in text)]
        if unreadable and os.listdir(path / "quarantine"):
            return []  # a file that the disk does not give out is set aside and reported, as any damage is
        for mark in said:
            seen, there = set(map(tuple, mark.get("pending", ()))), set(_as_seen(pending))
            # What the disk does not give out is passed over, as damage is; so is the newest checkpoint.
            if mark["op"] == "seen" and seen != there and not unreadable:
                wrong.append(f"a reader saw {len(mark['pending'])} messages, there are {len(pending)}")
        if not scenario.damages:
            wrong += damage_in(path, clock)
        wrong += _judge_keeper(path, clock, pending, scenario)
    except FilewheelError as exc:
        wrong = [f"the wheel cannot be used any more: {type(exc).__name__}: {exc}"]
    return wrong


def _as_seen(pending: Pending) -> list[tuple[str, str, int]]:
    return sorted((i.hex(), payload, due) for i, payload, due in pending)


def _judge_unmade(path: Path) -> list[str]:
    """Judge a wheel whose making did not return: it can be made, or is there and works."""
    try:
        with Wheel.create(path, slots=60, exist_ok=True) as wheel:
            wheel.enqueue(b"x", delay=60)
            return [] if wheel.stats().pending == 1 else ["a wheel that nobody made holds something"]
    except FilewheelError as exc:
        return [f"cannot be made again: {type(exc).__name__}: {exc}"]


def pending_in(path: Path, clock: FakeClock) -> Pending:
    """Return what a reader sees."""
    with Wheel(path, clock=clock) as wheel:
        return [(bytes(m.id), text_of(m.payload), m.due_us) for m in dump.dump(wheel)]


def damage_in(path: Path, clock: FakeClock) -> list[str]:
    """Return what `verify` calls damage, and what is in quarantine. A kill or a failed call makes none."""
    with opened(path) as directory:
        found = [f"damage: {f.name} at {f.offset}: {f.what}" for f in verify(directory).damage]
    return found + [f"in quarantine: {name}" for name in os.listdir(path / "quarantine")]


def _judge_keeper(path: Path, clock: FakeClock, pending: Pending, scenario: Scenario) -> list[str]:
    """Be the next keeper, later, and the one after it: both find what the reader saw, and fire all of it in order."""
    wrong = []
    for closes in ("a first", "a second"):
        keeper = Keeper(path, wait=False, clock=clock, background=False)
        try:
            clock.advance(31)
            keeper._housekeeper._looked_us = -(1 << 60)
            keeper._housekeeper.step()
        finally:
            keeper.close()
        if pending_in(path, clock) != pending:
            wrong.append(f"{closes} keeper that dealt left something else pending than there was")
    clock.advance(_FAR_S)
    with Keeper(path, wait=False, clock=clock, background=False) as keeper:
        fired: list[bytes] = []
        while batch := keeper.claim():
            fired += [bytes(m.id) for m in batch]
            keeper.ack(batch)
    alive = [i for i, _, _ in pending if i < DEAD_FLOOR]
    if fired != alive:
        wrong.append(f"the keeper fired {len(fired)} messages, {len(alive)} were pending")
    if pending_in(path, clock) != [p for p in pending if p[0] >= DEAD_FLOOR]:
        wrong.append("something is pending after everything was acknowledged")
    if not scenario.damages:
        wrong += damage_in(path, clock)
    left = os.listdir(path / "journal") + [n for n in os.listdir(path) if n.endswith(".tmp")]
    if len(left) > 1:
        wrong.append(f"a keeper that closed left {left}")
    return wrong


# -- the campaign -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def rig(faults: dict[str, list[tuple[str, int]]] | None = None, scenarios: Scenarios = SCENARIOS) -> Iterator[Sweep]:
    """Build the shim, start the zygote, prepare all wheels; in memory if that can be, as no disk needs to be slow."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    top = Path(tempfile.mkdtemp(prefix="filewheel-fault-", dir=memory))
    try:
        sweep = Sweep(top, faults, scenarios)
        try:
            yield sweep
        finally:
            sweep.close()
    finally:
        shutil.rmtree(top, ignore_errors=True)


def play(number: int, tally: Tally, sweep: Sweep) -> None:
    """Play every ROUNDS-th point, from the number on."""
    play_points(sweep.points[number % ROUNDS :: ROUNDS], tally, sweep)


def play_points(points: list[Point], tally: Tally, sweep: Sweep) -> None:
    """Play some points."""
    logging.disable(logging.CRITICAL)
    try:
        for point in points:
            sweep.play(point, tally)
    finally:
        logging.disable(logging.NOTSET)


CAMPAIGN = Campaign(
    name="fault",
    title="system calls that fail, tear or are the last, all of them",
    play=play,
    share=0.04,
    targets={"points": 8_000},
    rig=rig,
    missing=shim.missing,
    rounds=ROUNDS,
    short=1,
)
