"""A disk that is full of what is done frees itself; what is not done is dealt as far as there is room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.firing import housekeeper
from filewheel.journal.journal import Journal
from filewheel.roster.fence import Fence
from filewheel.tools.verify import verify
from tests.support import FakeClock

SEGMENT_BYTES = 256 << 10
DAY_S = 86_400


class Stage:
    """A wheel with small segments on a file system of 8 MiB, which something else fills."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.path = place / "jobs.wheel"
        self.clock = FakeClock()
        Wheel.create(self.path, clock=self.clock).close()
        self.wheel = self.producer()
        self.keeper = Keeper(self.path, clock=self.clock, background=False)
        own = self.keeper._store.own.appender
        own._segment_bytes, own._fill_bytes = SEGMENT_BYTES, 8 << 10

    def producer(self) -> Wheel:
        wheel = Wheel(self.path, clock=self.clock)
        wheel._journal = Journal(wheel._dir, segment_bytes=SEGMENT_BYTES, fill_bytes=0, fence=Fence(wheel._dir))
        return wheel

    def free(self) -> int:
        info = os.statvfs(self.place)
        return info.f_bavail * info.f_frsize

    def fill(self, left: int) -> None:
        """Take all room but so many bytes."""
        self.keeper._housekeeper.reserve.ballast.keep()
        with (self.place / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.free() - left)

    def fire(self) -> int:
        fired = 0
        while batch := self.keeper.claim(200):
            fired += self.keeper.ack(batch)
        return fired

    def keep_house(self, times: int = 40) -> None:
        """Let the housekeeper do what it does in some minutes."""
        house = self.keeper._housekeeper
        for _ in range(times):
            self.clock.advance(31)
            house._looked_us = -(1 << 60)
            house._dirty = True
            house.step()

    def bytes_in(self, folder: str) -> int:
        return sum(p.stat().st_size for p in (self.path / folder).rglob("*") if p.is_file())

    def close(self) -> None:
        self.wheel.close()
        self.keeper.close()
        assert not verify(open_directory(self.path, write=False)).damage


@pytest.fixture
def stage(small: Path) -> Iterator[Stage]:
    made = Stage(small)
    yield made
    made.close()


def test_a_disk_that_is_full_of_journals_of_fired_messages_frees_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "_SHORT_CHUNKS", (300 << 10, 0))  # the acknowledgements are above each cut
    for _ in range(100):
        stage.wheel.enqueue_many([bytes(400)] * 100)
    stage.fill(120_000)
    assert stage.fire() == 10_000
    assert stage.bytes_in("journal") > 4 << 20
    stage.keep_house()
    assert stage.bytes_in("journal") < 2 * SEGMENT_BYTES
    assert stage.free() > 3 << 20
    assert stage.bytes_in("laps") == 0


def test_a_disk_that_is_full_of_cancelled_messages_which_are_due_in_a_year_frees_itself(stage: Stage) -> None:
    ids = [id_ for _ in range(100) for id_ in stage.wheel.enqueue_many([bytes(400)] * 100, delay=365 * DAY_S)]
    stage.wheel.cancel_many(ids)
    stage.fill(120_000)
    stage.keep_house()
    assert stage.bytes_in("journal") < 2 * SEGMENT_BYTES
    assert stage.free() > 3 << 20
    assert stage.bytes_in("laps") < 1000


def test_messages_that_wait_are_dealt_segment_by_segment_where_each_gives_more_room_than_it_takes(stage: Stage) -> None:
    kept = []
    for n in range(100):
        ids = list(stage.wheel.enqueue_many([bytes(400)] * 100, delay=100 * DAY_S + n))
        stage.wheel.cancel_many(ids[10:])
        kept += ids[:10]
    stage.fill(200_000)
    stage.keep_house()
    assert stage.bytes_in("journal") < 2 * SEGMENT_BYTES
    assert {m.id for m in stage.wheel.list()} == set(kept)
    assert stage.free() > 3 << 20


def test_nothing_is_dealt_that_would_take_room_and_give_none(stage: Stage) -> None:
    ids = list(stage.wheel.enqueue_many([bytes(400)] * 500, delay=100 * DAY_S))  # in the segment that is in use
    stage.fill(250_000)
    free = stage.free()
    stage.keep_house()
    assert stage.bytes_in("laps") == 0
    assert free - stage.free() < 20_000
    assert {m.id for m in stage.wheel.list()} == set(ids)


def test_a_full_disk_without_a_byte_left_frees_itself_with_the_room_of_the_ballast(stage: Stage) -> None:
    for _ in range(100):
        stage.wheel.enqueue_many([bytes(400)] * 100)
    assert stage.keeper.claim(1)
    stage.fill(0)
    assert stage.bytes_in("ballast") or (stage.path / "ballast").stat().st_size
    stage.keeper.ack(list(stage.keeper._head.claims))
    assert stage.fire() == 9_999
    stage.keep_house()
    assert stage.bytes_in("journal") < 2 * SEGMENT_BYTES
    assert stage.free() > 3 << 20
    assert (stage.path / "ballast").stat().st_size, "made again"


def test_a_keeper_that_closes_on_a_full_disk_removes_what_is_done(stage: Stage) -> None:
    for _ in range(100):
        stage.wheel.enqueue_many([bytes(400)] * 100)
    stage.fill(120_000)
    assert stage.fire() == 10_000
    stage.wheel.close()
    stage.keeper.close()
    assert stage.bytes_in("journal") == 0
