"""A file that the checkpoint names and that is not there: it stays named, everything else goes on, and it is used again
when it is back."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import filewheel.tools.repair
from filewheel import Damaged, Keeper, MessageId, Wheel
from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import open_directory
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S
from filewheel.tools.dump import dump
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock, seeds, timed

LAP_S = 60

pytestmark = pytest.mark.damages


class Stage:
    """A wheel with a clock that stands, a keeper, and files that are taken away and put back."""

    def __init__(self, path: Path, *, slots: int = LAP_S) -> None:
        self.path = path
        self.clock = FakeClock()
        Wheel.create(path, slots=slots, clock=self.clock).close()
        self.keeper: Keeper | None = None
        self.stash: dict[str, bytes] = {}

    def enqueue(self, *delays: float) -> list[MessageId]:
        with Wheel(self.path, clock=self.clock) as wheel:
            return [wheel.enqueue(b"x", delay=delay) for delay in delays]

    def open(self) -> Keeper:
        if self.keeper is None:
            self.keeper = Keeper(self.path, clock=self.clock, background=False)
        return self.keeper

    def close(self) -> None:
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.close()

    def deal(self) -> None:
        """Have the keeper keep house, and deal if there is anything."""
        house = self.open()._housekeeper
        house._looked_us = house._dealt_us = -(1 << 60)
        house.step()

    def fire(self) -> list[MessageId]:
        """Claim and acknowledge what is due."""
        fired: list[MessageId] = []
        while batch := self.open().claim():
            fired += [m.id for m in batch]
            self.open().ack(batch)
        return fired

    def files(self) -> list[str]:
        """The slots and laps that are there."""
        return sorted(str(p.relative_to(self.path)) for p in self.path.glob("laps/**/*.*"))

    def take(self, name: str) -> None:
        self.stash[name] = (self.path / name).read_bytes()
        (self.path / name).unlink()

    def put_back(self, name: str) -> None:
        data = self.stash.pop(name)
        (self.path / name).parent.mkdir(exist_ok=True, mode=0o700)
        if not (self.path / name).exists():  # or it was finished, and made again since
            (self.path / name).write_bytes(data)

    @property
    def checkpoint(self) -> Checkpoint:
        d = open_directory(self.path, write=False)
        return d.checkpoint()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "w")


def dealt(stage: Stage, *delays: float) -> list[MessageId]:
    """Enqueue, and deal into slots and laps."""
    ids = stage.enqueue(*delays)
    stage.deal()
    stage.close()
    return ids


def test_a_missing_slot_stays_named_and_fires_when_it_is_back_while_the_keeper_runs(stage: Stage) -> None:
    first, second = dealt(stage, 5, 7)
    name = stage.files()[0]
    stage.take(name)
    for _ in range(2):
        stage.open()
        stage.clock.advance(4)
        assert stage.fire() == [second] * (stage.clock.wall_us > second.due_us)
        stage.deal()
        stage.close()
    assert any(f"/{s}-" in name for s in stage.checkpoint.slots)
    assert stage.fire() == []
    stage.put_back(name)
    stage.deal()
    assert stage.fire() == [first]
    stage.deal()
    stage.close()
    assert stage.files() == []


def test_a_missing_file_that_came_back_while_no_keeper_ran_is_not_swept(stage: Stage) -> None:
    near, far = dealt(stage, 5, 400)
    for name in stage.files():
        stage.take(name)
    stage.open()
    stage.clock.advance(1000)
    assert stage.fire() == []
    (late,) = stage.enqueue(1)
    stage.deal()  # writes a checkpoint: one that did not name them would have them swept
    stage.close()
    for name in list(stage.stash):
        stage.put_back(name)
    stage.clock.advance(2)
    assert stage.fire() == [near, far, late]


def test_messages_for_a_missing_lap_or_a_missing_second_fire(stage: Stage) -> None:
    slot, lap = dealt(stage, 5, 400)
    for name in stage.files():
        stage.take(name)
    late = stage.enqueue(5, 400, 401)
    stage.open()
    stage.deal()
    stage.close()
    stage.clock.advance(6)
    assert stage.fire() == late[:1]
    stage.deal()
    stage.clock.advance(400)
    assert stage.fire() == late[1:]
    stage.deal()
    for name in list(stage.stash):
        stage.put_back(name)
    stage.deal()
    assert stage.fire() == [slot, lap]


def test_what_was_acknowledged_of_a_file_that_was_taken_away_does_not_fire_when_it_is_back(stage: Stage) -> None:
    first, second = stage.enqueue(5, 5.5)
    stage.deal()
    stage.clock.advance(5)
    assert stage.fire() == [first]
    (name,) = stage.files()
    stage.take(name)
    stage.deal()  # the drop goes to no file
    stage.close()
    stage.deal()
    stage.close()
    stage.put_back(name)
    stage.enqueue(100)
    stage.deal()  # now it is told
    stage.close()
    assert not stage.checkpoint.unmatched
    stage.clock.advance(5)
    assert stage.fire() == [second]


@pytest.mark.parametrize("passed_s", [0, 10_000])
def test_a_missing_file_is_damage_whatever_the_clock_says(stage: Stage, passed_s: int) -> None:
    dealt(stage, 5, 400)
    slot, lap = sorted(stage.files(), key=lambda n: n.endswith(".lap"))
    for name in (slot, lap):
        stage.take(name)
    stage.clock.advance(passed_s)
    directory = open_directory(stage.path, write=False)
    assert {f.name for f in verify(directory).damage} == {slot, lap}
    with Wheel(stage.path, clock=stage.clock) as wheel:
        assert wheel.stats().damaged == 2
        with Snapshot(directory) as snapshot:
            assert not list(dump(wheel))
            assert not list(snapshot.messages())
            assert {d.name for d in snapshot.damage} == {slot, lap}


def test_a_file_that_a_newer_checkpoint_does_not_name_is_not_missing(stage: Stage) -> None:
    dealt(stage, 5)
    directory = open_directory(stage.path, write=False)
    with Snapshot(directory) as snapshot:
        stage.open()
        stage.clock.advance(10)
        stage.fire()
        stage.deal()
        stage.close()
        assert not list(snapshot.messages())
        assert not snapshot.damage
    assert_whole(stage.path)


def test_repair_accepts_the_loss_and_writes_it_down(stage: Stage) -> None:
    near, _ = dealt(stage, 5, 400)
    name = next(n for n in stage.files() if n.endswith(".lap"))
    stage.take(name)
    directory = open_directory(stage.path, write=True)
    filewheel.tools.repair.repair(timed(directory, stage.clock))
    assert not verify(directory).damage
    assert not stage.checkpoint.laps
    (note,) = (json.loads(p.read_text()) for p in stage.path.glob("quarantine/*.json"))
    assert (note["name"], note["reason"]) == (name, "the file is missing")
    stage.put_back(name)
    stage.clock.advance(1000)
    assert stage.fire() == [near]
    assert stage.files() == [n for n in stage.files() if n.endswith(".slot")]


def test_a_message_whose_slot_and_lap_are_both_missing_stops_the_keeper_and_is_not_lost(stage: Stage) -> None:
    dealt(stage, 5)
    (slot,) = stage.files()
    stage.take(slot)
    stage.enqueue(5.2)
    stage.deal()  # into the lap's file
    (lap,) = stage.files()
    stage.take(lap)
    stage.enqueue(5.4)
    with pytest.raises(Damaged, match="missing, and so is .*Try: restore it, or `filewheel repair`"):
        stage.deal()
    stage.put_back(lap)
    stage.put_back(slot)
    stage.deal()
    stage.clock.advance(6)
    assert len(stage.fire()) == 3


def test_a_lap_that_has_both_a_file_and_seconds_is_counted_once(stage: Stage) -> None:
    dealt(stage, 5, 6)
    stage.take(stage.files()[0])
    stage.enqueue(5.2)
    stage.deal()
    stage.close()
    for name in list(stage.stash):
        stage.put_back(name)
    assert stage.checkpoint.laps
    with Wheel(stage.path, clock=stage.clock) as wheel:
        assert wheel.stats().pending == 3
        assert wheel.stats().damaged == 0
        assert sum(wheel.histogram([START_US / US_PER_S + t for t in (0, 5, 6, 7)]).counts) == 3


def test_a_missing_lap_that_comes_near_does_not_have_the_keeper_deal_again_and_again(stage: Stage) -> None:
    dealt(stage, 70, 130)
    for name in stage.files():
        stage.take(name)
    stage.clock.advance(70)
    house = stage.open()._housekeeper
    assert not house._deal_is_due(house._dealt_us)
    stage.close()


def test_a_lap_of_which_a_second_is_missing_is_not_dealt_into_its_seconds(stage: Stage) -> None:
    ids = dealt(stage, 70, 80)
    first, second = stage.files()
    stage.take(first)
    ids += stage.enqueue(70.5, 80.2)
    stage.deal()  # into the lap's file
    stage.put_back(first)
    stage.take(second)
    stage.deal()
    stage.put_back(second)
    stage.deal()
    assert not stage.checkpoint.laps
    stage.clock.advance(100)
    assert stage.fire() == sorted(ids)


def test_what_was_acknowledged_and_lies_in_the_file_of_a_lap_beside_its_second_does_not_fire_again(
    stage: Stage,
) -> None:
    dealt(stage, 5, 50)
    slot, other = stage.files()
    stage.take(slot)
    stage.take(other)
    stage.enqueue(5.5)
    stage.deal()  # into the lap's file
    stage.put_back(slot)
    stage.deal()
    stage.clock.advance(6)
    assert len(stage.fire()) == 2
    stage.deal()  # the slot goes, and the lap's file stays: the other second is missing
    stage.close()
    assert stage.fire() == []
    stage.put_back(other)
    stage.clock.advance(60)
    assert len(stage.fire()) == 1


@pytest.mark.parametrize("seed", seeds(10, all_of=40))
def test_whatever_is_taken_away_and_put_back_everything_fires_once_in_the_end(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stage = Stage(tmp_path / "w", slots=rng.choice((60, 90)))
    ids: list[MessageId] = []
    fired: list[MessageId] = []
    cancelled: set[MessageId] = set()
    unsure: set[MessageId] = set()
    """Of a message in a missing file `cancel` says that it was not there, and it is cancelled when it is back."""
    for _ in range(60):
        do = rng.choice(
            ("enqueue", "enqueue", "cancel", "take", "back", "fire", "fire", "deal", "deal", "close", "sync")
        )
        if do == "enqueue":
            ids += stage.enqueue(
                *(rng.choice((rng.random() * 8, rng.random() * 150)) for _ in range(rng.randint(1, 5)))
            )
        elif do == "cancel" and ids:
            id_ = rng.choice(ids)
            with Wheel(stage.path, clock=stage.clock) as wheel:
                (cancelled if wheel.cancel(id_) else unsure).add(id_)
        elif do == "take" and stage.files():
            name = rng.choice(stage.files())
            if name not in stage.stash:
                stage.take(name)
        elif do == "back" and stage.stash:
            stage.put_back(rng.choice(sorted(stage.stash)))
        elif do == "fire":
            stage.clock.advance(rng.choice((0.5, 3, 20)))
            fired += stage.fire()
        elif do == "deal":
            try:
                stage.deal()
            except Damaged:  # no place for a message: then both are needed
                for name in sorted(stage.stash):
                    stage.put_back(name)
        elif do == "close":
            stage.close() if not stage.stash else None
    for name in sorted(stage.stash):
        stage.put_back(name)
    stage.close()
    late: list[MessageId] = []
    for _ in range(2):
        stage.clock.advance(300)
        late += stage.fire()
        stage.deal()
        stage.close()
    fired += late
    assert set(ids) - cancelled - unsure <= set(fired)
    assert not cancelled & set(late)
    assert len(fired) == len(set(fired))
    assert not verify(open_directory(stage.path, write=False)).damage
