"""Verifying beside processes that work: what is covered, rotated or removed between two of its calls is no damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format.record import pack_tail
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S
from filewheel.tools.verify import verify
from tests.support import START_US, FakeClock


class Between(OsDisk):
    """A real disk that lets others act before its calls on segments of journals, and on the checkpoint."""

    def __init__(self, path: str, act: Callable[[str, str], None]) -> None:
        super().__init__(path)
        self._act = act

    def open(self, name: str, mode: str) -> int:
        if name.startswith(("journal/", "checkpoint")):
            self._act("open", name)
        return super().open(name, mode)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        if name.startswith("journal/"):
            self._act("stat", name)
        return super().identity(name)


class Others:
    """A producer, and a keeper that covers what the producer has written whenever somebody is about to read it."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.keeper = Keeper(path, clock=self.clock, background=False)
        self.journal = Journal(open_directory(path, write=True))
        self.may_cover = False
        self.times = 0
        self.put()

    def put(self) -> None:
        """Leave a segment of which the first frames are covered, and the last ones not, and a next one."""
        journal, tail = self.journal, pack_tail("", None)
        journal.put(START_US + 60 * US_PER_S, START_US, tail, b"x")
        self.deal()
        for _ in range(2):
            journal.put(START_US + 60 * US_PER_S, START_US, tail, b"x")
        journal.rotate()
        journal.put(START_US + 60 * US_PER_S, START_US, tail, b"x")

    def deal(self) -> None:
        self.keeper._store.ingest(test_locks=True)
        Deal(self.keeper._store, spread=True).run()

    def cover(self, name: str) -> None:
        """Cover and remove the first segment that is looked at, and leave the same for the next look."""
        if self.may_cover and name.startswith(f"journal/{self.journal.writer}"):
            self.may_cover = False
            self.times += 1
            self.deal()
            self.put()

    def close(self) -> None:
        self.journal.close()
        self.keeper.close()


@pytest.mark.parametrize("call", ["open", "stat"])
@pytest.mark.parametrize("who", ["verify", "snapshot"])
def test_a_segment_that_is_covered_before_each_look_at_it_is_no_damage(wheel_dir: Path, call: str, who: str) -> None:
    others = Others(wheel_dir)

    def act(kind: str, name: str) -> None:
        if name == "checkpoint":
            others.may_cover = who == "verify" or others.times < 12  # a snapshot that is always too late gives up
        elif kind == call:
            others.cover(name)

    directory = open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=lambda path: Between(path, act)))
    if who == "verify":
        assert not verify(directory).damage
    else:
        with Snapshot(directory) as snapshot:
            assert list(snapshot.messages())
            assert not snapshot.damage
    assert others.times or (who, call) == ("snapshot", "stat")
    others.close()


def test_a_segment_that_somebody_took_away_is_damage_to_who_verifies(wheel_dir: Path) -> None:
    journal = Journal(open_directory(wheel_dir, write=True))
    for _ in range(3):
        journal.put(START_US, START_US, pack_tail("", None), b"x")
        journal.rotate()
    _, second, *_ = sorted(wheel_dir.glob("journal/*.log"))
    kept = second.read_bytes()
    second.unlink()
    (finding,) = verify(open_directory(wheel_dir, write=False)).damage
    assert finding.what == "frames 2 to 2, which had been durable, cannot be read"
    second.write_bytes(kept)
    journal.close()
