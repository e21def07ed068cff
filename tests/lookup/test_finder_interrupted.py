"""Looks that fail or are interrupted, at each of their points: the handle then answers as a fresh one does."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import filewheel
from filewheel import FilewheelError, Keeper, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S
from tests.support import FakeClock, can_be_signalled, interrupted, open_below, seeds

LIBRARY = os.path.dirname(filewheel.__file__)
ROOMS = ("lookup", "journal", "laps", "keys", "reader.py", "wheel.py")
"""Where the interrupts come. Below are single system calls, whose failures have a test of their own."""


class Failing(OsDisk):
    """A disk of which one call of those that read fails: the `left`th from now on."""

    left = 0
    made = 0

    def _call(self, code: int) -> None:
        self.made += 1
        self.left -= 1
        if self.left == 0:
            raise OSError(code, os.strerror(code))

    def open(self, name: str, mode: str) -> int:
        self._call(errno.EMFILE)
        return super().open(name, mode)

    def listdir(self, name: str) -> list[str]:
        self._call(errno.EMFILE)
        return super().listdir(name)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._call(errno.EIO)
        return super().pread(fd, size, offset)

    def size(self, fd: int) -> int:
        self._call(errno.EIO)
        return super().size(fd)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        self._call(errno.ENOMEM)
        return super().identity(name)


class Stage:
    """A wheel with messages in laps, in slots and in journals, that changes between two looks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.wheel = Wheel.create(path, slots=60, clock=self.clock, sync="never")
        self.keeper = Keeper(path, clock=self.clock, background=False)
        self.ids = [self.wheel.enqueue(b"%d" % n, delay=n * 40, topic="mail" if n % 2 else "sms") for n in range(9)]
        self.wheel.enqueue(b"keyed", delay=30, key="k")
        self.clock.advance(1)
        self.keeper.bury(self.keeper.claim()[0], reason="no")
        self.deal()
        with Wheel(path, clock=self.clock, sync="never") as other:
            self.ids += other.enqueue_many([b"x"] * 12, delay=list(range(12)))
            other.cancel_many(self.ids[3:5])
        self.turn = 0

    def deal(self) -> None:
        Deal(self.keeper._store, spread=True, finished=self.keeper._head.finished).run()

    def change(self, *, deal: bool) -> None:
        """Add, move and cancel something."""
        self.turn += 1
        self.wheel.enqueue(b"new", delay=self.turn % 7, key="k", on_conflict="replace")
        gone = self.wheel.enqueue(b"gone", delay=5)
        self.wheel.cancel(gone)
        self.ids[-1] = self.wheel.reschedule(self.ids[-1], delay=self.turn % 11)
        if deal:
            self.deal()

    def close(self) -> None:
        self.keeper.close()
        self.wheel.close()

    def looks(self) -> dict[str, Callable[[Wheel], Any]]:
        """Return every call that reads."""
        now_s = self.clock.wall_us / US_PER_S
        ids = list(self.ids)
        return {
            "peek": lambda w: w.peek(3),
            "next_due": lambda w: w.next_due(),
            "list": lambda w: list(w.list()),
            "list limit": lambda w: list(w.list(limit=5, topic="mail")),
            "list before": lambda w: list(w.list(before=now_s + 4)),
            "dead": lambda w: list(w.dead()),
            "stats": lambda w: w.stats(),
            "get": lambda w: [w.get(id_) for id_ in ids[-4:]],
            "get key": lambda w: w.get(key="k"),
            "pending": lambda w: w._finder.pending(ids),
        }

    def assert_as_fresh(self, wheel: Wheel, point: object) -> None:
        """Assert that a handle answers as a new one does."""
        with Wheel(self.path, clock=self.clock) as fresh:
            for name, look in self.looks().items():
                assert look(wheel) == look(fresh), (name, point)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "w")
    yield made
    made.close()


WHEN = ["cold", "warm", "dealt"]
NAMES = ["peek", "list before", "stats", "get", "get key"]
POINTS = seeds(3, all_of=200).stop


@contextlib.contextmanager
def handle(stage: Stage, when: str) -> Iterator[tuple[Wheel, Failing]]:
    """Open a handle that has looked before, unless it is cold, and change something since."""
    if stage.turn % 5 == 0:
        stage.deal()  # the journals would grow with the points
    disks: list[Failing] = []

    def opened(path: str) -> OsDisk:
        disks.append(Failing(path))
        return disks[-1]

    with Wheel(stage.path, env=SYSTEM.using(clock=stage.clock, disk=opened)) as wheel:
        for look in stage.looks().values() if when != "cold" else ():
            look(wheel)
        stage.change(deal=when == "dealt")
        yield wheel, disks[0]


@contextlib.contextmanager
def nothing_stays_open(stage: Stage, point: object) -> Iterator[None]:
    """Assert that what runs here leaves no more files open. Directories stay so."""
    before = [path for path in open_below(stage.path) if "." in path[len(str(stage.path)) :]]
    yield
    assert before == [path for path in open_below(stage.path) if "." in path[len(str(stage.path)) :]], point


def some_of(rng: random.Random, count: int) -> list[int]:
    """Return some of the numbers from 1 to `count`, in order; the first few are always among them."""
    return sorted({*range(1, min(count, 2) + 1), *rng.sample(range(1, count + 1), min(count, POINTS))})


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", NAMES)
def test_after_a_look_of_which_any_call_failed_the_next_ones_answer_as_those_of_a_fresh_handle(
    stage: Stage, name: str, when: str
) -> None:
    with handle(stage, when) as (wheel, disk):
        disk.made = 0
        stage.looks()[name](wheel)
    for point in some_of(random.Random(name + when), disk.made):
        with handle(stage, when) as (wheel, disk), nothing_stays_open(stage, point):
            disk.left = point
            with contextlib.suppress(FilewheelError):
                stage.looks()[name](wheel)
            disk.left = 0
            stage.assert_as_fresh(wheel, point)


def in_rooms(code: CodeType) -> bool:
    """Return whether a function remembers something of a look, or makes one."""
    return code.co_filename.startswith(LIBRARY) and code.co_filename[len(LIBRARY) + 1 :].startswith(ROOMS)


# Python ignores an interrupt that comes while it closes a generator.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", NAMES)
def test_after_a_look_that_was_interrupted_at_any_line_the_next_ones_answer_as_those_of_a_fresh_handle(
    stage: Stage, name: str, when: str
) -> None:
    lines = 0

    def count(frame: FrameType) -> bool:
        nonlocal lines
        lines += can_be_signalled(frame)
        return False

    with handle(stage, when) as (wheel, _), interrupted(in_rooms, 1, count):
        stage.looks()[name](wheel)
    for line in some_of(random.Random(name + when), lines):
        with handle(stage, when) as (wheel, _), nothing_stays_open(stage, line):
            with interrupted(in_rooms, line, can_be_signalled):
                stage.looks()[name](wheel)
            stage.assert_as_fresh(wheel, line)
