"""Schedules of plain messages on a machine that loses its processes, or its power, after each operation on the disk.

A consumer as `filewheel run` is runs on a modelled machine, while an administrator starts, edits and ends schedules.
From the state after each operation it goes on: no schedule has vanished or is there twice, what was planted in one call
is there whole or not at all, and a count counts each occurrence once. Kills of real processes: test_cli_run_schedules.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from filewheel import Keeper, PlainOccurrences, PlainSchedule, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import WheelExists
from tests.model.crashes import crash_at_random, digest
from tests.model.machine import Machine
from tests.model.process import ProcessDisk
from tests.model.tiny import tiny
from tests.model.world import ModelClock, make_wheel
from tests.support import some
from tests.support_wheel import US_PER_S

SEED = int(os.environ.get("FILEWHEEL_CRASH_SEED", "1"))
COUNT = 3
Call = tuple[str, int]
"""The body of an occurrence, and the time that it was first due."""


@dataclass
class Told:
    """What the outside knows: which schedules must be there, which must not, and what was fired."""

    there: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)

    def copy(self) -> Told:
        return Told(set(self.there), set(self.gone), list(self.calls))


def env_of(machine: Machine) -> Env:
    return SYSTEM.using(disk=lambda path: ProcessDisk(machine, path))


def fire(path: Path, machine: Machine, clock: ModelClock, told: Told) -> None:
    """Fire what is due, as `run --once` does; a body that says so fails, and one of them is too late now and then."""
    with Keeper(path, clock=clock, env=env_of(machine), background=False) as keeper:
        occurrences = PlainOccurrences(keeper)
        while batch := keeper.claim(2):
            for message in batch:
                late = occurrences.passed_over(message)
                if late is not None:
                    keeper.settle([late])
                    continue
                body = message.payload.decode()
                told.calls.append((body, (message.root or message.id).due_us))
                if "fails" in body:
                    delay_us = US_PER_S if message.attempt < 1 else None
                    outcome = occurrences.failed(message, keeper.now_us(), delay_us=delay_us, reason="no")
                else:
                    outcome = occurrences.succeeded(message, keeper.now_us())
                keeper.settle([outcome])


def story(path: Path, machine: Machine, clock: ModelClock, told: Told) -> None:
    """Let administrators and a consumer work for a while."""
    with Wheel(path, clock=clock, env=env_of(machine)) as wheel:
        wheel.schedule("steady", 3, b"steady", jitter_s=0.5)
        told.there.add("steady")
        wheel.schedule("counted", 2, b"counted", count=COUNT)
        told.there.add("counted")
        wheel.schedule_many([PlainSchedule("a", 5, b"a"), PlainSchedule("b", 5, b"b fails")])
        told.there.update("ab")
        for number in range(6):
            clock.advance(1_300_000)
            fire(path, machine, clock, told)
            if number == 1:
                wheel.edit_schedule("a", payload=b"a2")
            elif number == 2:
                wheel.schedule_many([PlainSchedule("a", 4, b"a3"), PlainSchedule("b", 4, b"b3 fails")])
                wheel.schedule("late", 1, b"late", missed="skip", grace_s=0)
                told.there.add("late")
            elif number == 4:
                told.there.remove("b")
                wheel.unschedule("b")
                told.gone.add("b")


def wrong(path: Path, machine: Machine, clock: ModelClock, told: Told) -> Iterator[str]:
    """Say what is wrong with what waits."""
    with Wheel(path, clock=clock, env=env_of(machine)) as wheel:
        found = wheel.schedules()
    bodies = {stored.name: stored.occurrence.payload.decode() for stored in found}
    for name, count in Counter(stored.name for stored in found).items():
        if count > 1:
            yield f"{count} living occurrences of {name}"
    is_over = len({due for body, due in told.calls if body == "counted"}) == COUNT
    missing = told.there - bodies.keys() - ({"counted"} if is_over else set())
    if missing:
        yield f"{missing} vanished"
    if told.gone & bodies.keys():
        yield f"{told.gone & bodies.keys()} came back"
    if "b" not in told.gone and "b" in told.there and ("3" in bodies["a"]) != ("3" in bodies["b"]):
        yield f"one of two schedules was replaced: {bodies}"
    if not told.there and ("a" in bodies) != ("b" in bodies):
        yield f"one of two schedules was started: {bodies}"


def comes_to_its_end(path: Path, machine: Machine, clock: ModelClock, told: Told, *, kill: bool) -> Iterator[str]:
    """Go on firing, and say what does not come as promised."""
    before = len(told.calls)
    for _ in range(8):
        clock.advance(5 * US_PER_S)
        fire(path, machine, clock, told)
    fired = Counter(body for body, _ in told.calls[before:])
    if "steady" in told.there and not fired["steady"]:
        yield f"steady does not go on: {fired}"
    if "a" in told.there and not any(body.startswith("a") for body in fired):
        yield f"a does not go on: {fired}"
    counted = [due for body, due in told.calls if body == "counted"]
    if "counted" in told.there and len(set(counted)) < COUNT:
        yield f"counted fired {len(set(counted))} times"
    if kill and len(set(counted)) > COUNT:  # a power cut may take back the end of a call
        yield f"counted fired {len(set(counted))} times"
    with Wheel(path, clock=clock, env=env_of(machine)) as wheel:
        left = {stored.name for stored in wheel.schedules()}
    if "counted" in left or told.gone & left or told.there - {"counted"} - left:
        yield f"at the end there are {left}"


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_after_each_operation_a_crash_leaves_each_schedule_once_and_a_count_counts_each_occurrence_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL, "filewheel")
    path = tmp_path / "model.wheel"
    Wheel.create(path).close()  # for its name: what is in it is on the modelled machine, and is made there

    def is_there(path: Path, **options: object) -> None:
        raise WheelExists("there is a wheel already", path=path)

    monkeypatch.setattr("filewheel.wheel.create_directory", is_there)
    rng = random.Random(SEED)
    clock, told, machine = ModelClock(), Told(), Machine()
    make_wheel(machine, clock, rng.randbytes)
    states: dict[bytes, tuple[int, str, Machine, int, Told]] = {}

    def keep(kind: str, name: str) -> None:
        mode = "all" if how == "kill" else rng.choice(["none", "some", "some"])
        after = crash_at_random(machine, rng, mode)
        states.setdefault(digest(after), (machine.ops, f"{kind} {name}", after, clock.wall_us, told.copy()))

    with tiny():
        machine.on_op = keep
        story(path, machine, clock, told)
        machine.on_op = None
        assert len(states) > 100
        assert len({due for body, due in told.calls if body == "counted"}) == COUNT
        for number, op, after, now_us, known in some(states.values(), one_of=12):
            later = ModelClock(now_us)
            found = itertools.chain(
                wrong(path, after, later, known), comes_to_its_end(path, after, later, known, kill=how == "kill")
            )
            assert not list(found), f"after operation {number}, {op}"
