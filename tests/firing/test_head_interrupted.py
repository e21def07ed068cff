"""Calls of a keeper that fail or are interrupted (Ctrl-C) at any point: every message still fires."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import filewheel
from filewheel import FilewheelError, Keeper, Message, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.laps.window import Budget
from tests.support import FakeClock, can_be_signalled, interrupted, open_below, seeds

LIBRARY = os.path.dirname(filewheel.__file__)
ROOMS = ("firing/head.py", "firing/ready.py", "laps/store.py", "laps/window.py", "journal/tail.py", "journal/gaps.py")
POINTS = seeds(40, all_of=400).stop


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
        if mode == "r":
            self._call(errno.EMFILE)
        return super().open(name, mode)

    def listdir(self, name: str) -> list[str]:
        self._call(errno.EMFILE)
        return super().listdir(name)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._call(errno.EIO)
        return super().pread(fd, size, offset)

    def is_free(self, fd: int) -> bool:
        self._call(errno.ENOLCK)
        return super().is_free(fd)


class Stage:
    """A keeper between two claims, with messages in files, in memory and in journals that it has not read."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.path, self.clock = path, clock
        self.disks: list[Failing] = []
        self.wheels = [Wheel(path, clock=clock, sync="never") for _ in range(3)]
        env = SYSTEM.using(clock=clock, disk=self._disk)
        self.keeper = Keeper(path, background=False, budget=Budget(records=16, bytes=1 << 20), env=env)
        self.turn = 0
        self.claimed: dict[bytes, Message] = {}

    def _disk(self, path: str) -> Failing:
        self.disks.append(Failing(path))
        return self.disks[-1]

    def change(self) -> None:
        """Let things come in through all journals, and time pass."""
        self.turn += 1
        for n, wheel in enumerate(self.wheels):
            ids = wheel.enqueue_many([b"x"] * 4, delay=[0, 1, 2, 300 + n])
            other = self.wheels[n - 1]
            other.cancel(ids[1])
            other.reschedule(ids[2], delay=1)
        self.claimed |= {m.id: m for m in self.keeper.claim(3)}
        if self.turn % 10 == 0:
            self.wheels[0].close()  # another segment, and a writer that ends
            self.wheels[0] = Wheel(self.path, clock=self.clock, sync="never")
        self.clock.advance(1.5)
        for wheel in self.wheels:
            first = [m.id for m in wheel.list(limit=2) if m.id not in self.claimed]
            wheel.cancel_many(first[:1])
            wheel.enqueue(b"now")

    def drain(self, point: object) -> None:
        """Assert that exactly what waits is handed out, and acknowledge it."""
        waits = {m.id for m in self.wheels[1].list(before=(self.clock.wall_us + 1) / 1e6)}
        found: list[bytes] = []
        while batch := self.keeper.claim(4):
            found += [m.id for m in batch]
            self.claimed |= {m.id: m for m in batch}
        assert len(set(found)) == len(found), point
        assert set(self.keeper._head.claims) == set(self.claimed), point
        assert waits <= self.claimed.keys(), point
        self.keeper.ack([id_ for id_ in self.claimed if id_ not in self.keeper._head.cancelled])
        cancelled = [id_ for id_ in self.claimed if id_ in self.keeper._head.claims]
        assert self.keeper.begin(cancelled) == set(cancelled)
        self.claimed.clear()
        assert not self.keeper._head.claims, point
        head = self.keeper._head
        assert sum(head.ready.waiting.values()) == len(head.ready), point

    def close(self) -> None:
        self.keeper.close()
        for wheel in self.wheels:
            wheel.close()


@pytest.fixture
def stage(wheel_dir: Path, clock: FakeClock) -> Iterator[Stage]:
    made = Stage(wheel_dir, clock)
    yield made
    made.close()


def claim(stage: Stage) -> None:
    stage.claimed |= {m.id: m for m in stage.keeper.claim(5)}


def put_back(stage: Stage) -> None:
    """Claim, and settle in each way."""
    claim(stage)
    ids = list(stage.claimed)
    for id_, act in zip(ids, (stage.keeper.nack, stage.keeper.ack, stage.keeper.bury, give_back(stage)), strict=False):
        act(id_)
        stage.claimed.pop(id_)


def give_back(stage: Stage) -> Callable[[bytes], object]:
    return lambda id_: stage.keeper.give_back(id_)


def in_rooms(code: CodeType) -> bool:
    return code.co_filename.startswith(LIBRARY) and code.co_filename[len(LIBRARY) + 1 :] in ROOMS


def settled(stage: Stage) -> None:
    """Learn what an interrupted call came to: it has ended some messages, and claimed none for a caller."""
    claims = stage.keeper._head.claims
    for id_ in list(stage.claimed):
        if id_ not in claims:
            del stage.claimed[id_]


@pytest.mark.parametrize("act", [claim, put_back])
def test_after_an_interrupt_before_any_line_of_the_queue_every_message_is_handed_out(
    stage: Stage, act: Callable[[Stage], None]
) -> None:
    lines = 0

    def count(frame: FrameType) -> bool:
        nonlocal lines
        lines += can_be_signalled(frame)
        return False

    stage.change()
    with interrupted(in_rooms, 1, count):
        act(stage)
    stage.drain(0)
    rng = random.Random(act.__name__)
    for line in sorted(rng.sample(range(1, lines + 1), min(lines, POINTS))):
        stage.change()
        with interrupted(in_rooms, line, can_be_signalled):
            act(stage)
        settled(stage)
        stage.drain(line)


@pytest.mark.parametrize("act", [claim, put_back])
def test_after_any_call_of_the_disk_has_failed_every_message_is_handed_out(
    stage: Stage, act: Callable[[Stage], None]
) -> None:
    disk = stage.disks[0]
    stage.change()
    disk.made = 0
    act(stage)
    calls = disk.made
    stage.drain(0)
    before = len(open_below(stage.path))
    for point in sorted(random.Random(act.__name__).sample(range(1, calls + 1), min(calls, POINTS))):
        stage.change()
        disk.left = point
        with contextlib.suppress(FilewheelError):
            act(stage)
        disk.left = 0
        settled(stage)
        stage.drain(point)
    assert len(open_below(stage.path)) <= before + 6  # journals and files that are kept open
