"""A link that was away, or killed at any point: it goes on or heals, and nothing is missing or comes back."""

from __future__ import annotations

import os
import random
from typing import ClassVar

import pytest

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import OsDisk
from filewheel.errors import Fenced, FilewheelError
from filewheel.roster.roster import change_roster
from tests.sets.support import Pair, fire

both = pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)


class Killed(BaseException):
    """The process ends here."""


class Mortal(OsDisk):
    """A disk of a process that can be killed before any of its calls that change something; what it wrote stays."""

    left = 1 << 60
    """How many such calls the present process still makes."""
    alive: ClassVar[list[Mortal]] = []

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._fds: set[int] = set()
        self._dead = False
        self.alive.append(self)

    @classmethod
    def kill(cls) -> None:
        """End the process: its files are closed, and its locks go."""
        for disk in cls.alive:
            disk._dead = True
            for fd in disk._fds:
                os.close(fd)
        cls.alive.clear()

    def _count(self) -> None:
        Mortal.left -= 1
        if Mortal.left < 0:
            Mortal.kill()
        if self._dead:
            raise Killed

    def open(self, name: str, mode: str) -> int:
        if mode != "r" or self._dead:
            self._count()
        fd = super().open(name, mode)
        self._fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        if not self._dead:
            self._fds.discard(fd)
            super().close(fd)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._count()
        super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._count()
        super().truncate(fd, size)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, name: str) -> None:
        self._count()
        super().unlink(name)

    def fdatasync(self, fd: int) -> None:
        self._count()


@both
@pytest.mark.parametrize("first", range(0, 48, 4))
def test_a_link_that_is_killed_at_any_call_of_its_disk_ends_equal(pair: Pair, first: int) -> None:
    rng = random.Random(first)
    pair.disk = Mortal
    try:
        with pair.keeper() as keeper, pair.wheel() as wheel:
            for turn in range(12):
                Mortal.left = first + turn * 7
                ids = wheel.enqueue_many([b"x"] * 5, delay=[0, 0, 0.05, 100, 4000])
                wheel.reschedule(ids[4], delay=rng.choice([0, 10, 4000]))
                wheel.cancel(ids[3])
                try:
                    for _ in range(6):
                        fire(pair, keeper, lambda k, i: k.nack(i, delay=0.1) if rng.random() < 0.2 else k.ack([i]))
                        pair.tick(1, rng.choice([0.02, 0.3]))
                    pair.kill()
                except Killed:
                    pair.link = None
            Mortal.left = 1 << 60
            pair.settle()
            pair.assert_equal()
            assert pair.pending(pair.backup), "the test shows nothing"
    finally:
        Mortal.left = 1 << 60


@both
def test_a_backup_that_was_away_while_thousands_were_fired_is_brought_in_step(pair: Pair) -> None:
    rng = random.Random(5)
    with pair.wheel() as wheel:
        before = wheel.enqueue_many([b"x"] * 3000, delay=[rng.choice([1, 2, 500, 9000]) for _ in range(3000)])
        pair.settle(1)
        pair.kill()
        with pair.keeper() as keeper:
            pair.clock.advance(10)
            assert len(fire(pair, keeper)) > 1000
            wheel.cancel_many([i for i in before if i.due_us > pair.clock.now_us()][:300])
            for id_ in [i for i in before if wheel.get(i) is not None][:100]:
                wheel.reschedule(id_, delay=700)
            wheel.enqueue_many([b"new"] * 500, delay=800)
        pair.settle()
        pair.assert_equal()


def test_a_scrub_goes_on_while_messages_are_enqueued_moved_cancelled_and_fired(pair: Pair) -> None:
    rng = random.Random(6)
    with pair.wheel() as wheel, pair.keeper() as keeper:
        ids = list(wheel.enqueue_many([b"x"] * 1500, delay=[rng.choice([1, 3, 60, 900]) for _ in range(1500)]))
        for turn in range(80):
            if turn % 40 == 0:
                pair.tick().scrub()
            pair.tick(1, 0.1)
            for _ in range(5):
                what, id_ = rng.randrange(4), rng.choice(ids)
                if what == 0:
                    ids.append(wheel.enqueue(b"y", delay=rng.choice([0, 2, 800])))
                elif what == 1 and wheel.get(id_) is not None:
                    ids.append(wheel.reschedule(id_, delay=rng.choice([1, 50, 700])))
                elif what == 2:
                    wheel.cancel(id_)
            fire(pair, keeper)
        link = pair.settle()
        assert (link.report.healed, link.report.returned) == (0, 0)
        pair.assert_equal()


def test_a_link_ends_when_the_set_has_changed(pair: Pair) -> None:
    pair.settle(1)
    primary = open_directory(pair.primary, write=True)
    change_roster(primary, lambda old: None if old is None else old.without_member(old.members[0].wheel))
    with pytest.raises(Fenced):
        pair.tick(2, 0.3)
    pair.kill()
    with pytest.raises((FilewheelError, IndexError)):
        pair.open()
