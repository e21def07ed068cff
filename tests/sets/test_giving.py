"""Giving messages back: a keeper that runs learns of it before it reads one of them."""

from __future__ import annotations

from pathlib import Path

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.lookup.snapshot import Snapshot
from filewheel.sets.giving import Giver
from filewheel.sets.source import frames_in
from tests.support import FakeClock


def test_a_keeper_that_runs_learns_that_its_wheel_may_get_a_message_twice(
    wheel_dir: Path, tmp_path: Path, clock: FakeClock
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with Wheel.create(elsewhere, clock=clock) as other:
        id_ = other.enqueue(b"x", delay=5)
        with Snapshot(open_directory(elsewhere, write=False)) as snapshot:
            put = snapshot.find([id_])[id_]
    with Keeper(wheel_dir, background=False, clock=clock) as keeper:
        assert not keeper._store.repeats
        first, second = (Giver(open_directory(wheel_dir, write=True), "given back") for _ in range(2))
        for giver in (first, second):
            giver._journal.write([put], 1)  # both looked before either wrote
            giver.close()
        assert not keeper.claim()
        assert keeper._store.repeats
        clock.advance(6)
        keeper.ack(keeper.claim())
        assert not keeper.claim()
    with Keeper(wheel_dir, background=False, clock=clock) as keeper:
        assert not keeper.claim()


def test_of_a_move_whose_message_is_over_nothing_is_given_back(
    wheel_dir: Path, tmp_path: Path, clock: FakeClock
) -> None:
    elsewhere = tmp_path / "elsewhere"
    with Wheel.create(elsewhere, clock=clock) as other:
        other.reschedule(other.enqueue(b"x", delay=5), delay=7)
        (segment,) = (f"journal/{p.name}" for p in (elsewhere / "journal").iterdir())
        moves = [f for f in frames_in(open_directory(elsewhere, write=False), segment, 1 << 62) if f.drops]
    (move,) = moves
    giver = Giver(open_directory(wheel_dir, write=True), "given back")
    assert giver.adopt(move) == 0
    giver.close()
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert list(wheel.list()) == []
