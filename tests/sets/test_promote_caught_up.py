"""What is called caught up, or current, is: of what was cancelled and acknowledged too."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.record import ACKED, CANCELLED, RESCHEDULED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.roster.roster import Mode, roster_at
from filewheel.sets import promote as module
from filewheel.sets.link import Link
from filewheel.sets.promote import Promotion, promote
from tests.sets.support_sets import Place, place
from tests.support_wheel import a_put

__all__ = ["place"]


def go(place: Place) -> Promotion:
    return promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)


def drop_in_primary_only(place: Place, *ids: bytes) -> None:
    """Cancel as a producer does that has not heard of the mirror yet: its drops are in the primary only."""
    journal = Journal(open_directory(place.a, write=True))
    journal.append([pack_drop(i, CANCELLED) for i in ids], 0)
    journal.close()


def follow_and_die(place: Place) -> None:
    """Follow for a moment, and end without a word, as a replicator does that is killed or finds a promotion."""
    roster = roster_at(place.a)
    assert roster is not None
    link = Link(str(place.a), roster.members[0], env=SYSTEM.using(clock=place.clock))
    link.tick()
    link.abandon()


@pytest.mark.parametrize("mode", ["mirror", "ship"])
@pytest.mark.parametrize("dealt", [False, True])
def test_a_cancel_that_the_backup_has_not_got_holds_after_a_promotion_that_has_to_compare(
    place: Place, mode: Mode, dealt: bool
) -> None:
    place.make_set(place.b, mode=mode)
    gone, *_ = place.enqueue(place.a, "cancelled", "kept", delay=1000)
    follow_and_die(place)
    drop_in_primary_only(place, gone)
    if dealt:
        place.fire(place.a)  # a keeper deals when it closes
    done = go(place)
    assert done.caught_up
    assert place.payloads(place.b) == ["kept"]


def test_a_move_that_the_mirror_has_not_got_leaves_one_message(place: Place) -> None:
    place.make_set(place.b, mode="mirror")
    (old,) = place.enqueue(place.a, "moved", delay=1000)
    follow_and_die(place)
    journal = Journal(open_directory(place.a, write=True))
    new = journal.new_id(place.clock.now_us() + 2_000_000_000)
    journal.append([pack_drop(old, RESCHEDULED), a_put(new)], 1)
    journal.close()
    assert go(place).caught_up
    assert set(place.waiting(place.b)) == {new}


def test_what_only_the_backup_has_and_the_primary_has_no_drop_of_fires(place: Place) -> None:
    place.make_set(place.b, mode="mirror")
    place.enqueue(place.a, "both", delay=1000)
    follow_and_die(place)
    with Wheel(place.a, clock=place.clock) as wheel:
        first = next(iter(wheel.list())).id
    journal = Journal(open_directory(place.b, write=True))  # power was cut in the primary before it was flushed there
    only = journal.new_id(first.due_us + 1)
    journal.append([a_put(only)], 1)
    journal.close()
    assert go(place).caught_up
    assert set(place.waiting(place.b)) == {bytes(first), only}


@pytest.mark.parametrize("mode", ["mirror", "ship"])
@pytest.mark.parametrize("delay", [-4000, 0, 1000])
def test_what_the_backup_has_a_drop_of_stays_gone_though_the_old_primary_lost_that_drop_before_it_was_flushed(
    place: Place, mode: Mode, delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.firing.housekeeper.LOOK_US", 0)  # whatever is old enough is dealt at each turn
    monkeypatch.setattr("filewheel.firing.housekeeper.DEAL_AGE_US", 0)
    place.make_set(place.b, mode=mode)
    place.enqueue(place.a, "before it", delay=-9000)
    (gone,) = place.enqueue(place.a, "acknowledged", delay=delay)
    place.enqueue(place.a, "kept", delay=9000)
    assert place.may_fire() == [place.a]  # its keeper deals
    place.level(place.a)
    with closing(Journal(open_directory(place.b, write=True))) as journal:
        journal.append([pack_drop(gone, ACKED)], 0)
    assert go(place).caught_up
    assert place.payloads(place.b) == ["before it", "kept"]


@pytest.mark.parametrize("mode", ["mirror", "ship"])
def test_what_a_primary_dropped_before_it_was_promoted_again_does_not_come_back_from_a_backup_that_lacks_the_drop(
    place: Place, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b, mode=mode)
    (gone,) = place.enqueue(place.a, "cancelled", delay=1000)
    place.level(place.a)
    drop_in_primary_only(place, gone)
    with monkeypatch.context() as patch:
        patch.setattr(module.Promoting, "_catch_up", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go(place)
    module.promote(place.a, env=SYSTEM.using(clock=place.clock), wait_s=0)
    place.level(place.a)
    assert place.payloads(place.a) == place.payloads(place.b) == []


@pytest.mark.parametrize("gone", [False, True])
def test_what_the_promoted_wheel_has_a_drop_of_does_not_come_back_from_a_backup_that_lacks_it(
    place: Place, gone: bool
) -> None:
    place.make_set(place.b, place.c)
    (id_,) = place.enqueue(place.a, "acknowledged", delay=-9000)  # its lap is over, and goes whole with the next deal
    place.enqueue(place.a, "kept", delay=9000)
    place.level(place.a)
    with closing(Journal(open_directory(place.b, write=True))) as journal:
        journal.append([pack_drop(id_, ACKED)], 0)
    if gone:
        shutil.rmtree(place.a)
    assert go(place).caught_up != gone
    place.level(place.b)
    assert place.payloads(place.b) == place.payloads(place.c) == ["kept"]


def interrupted(*_: object) -> None:
    """End as Ctrl-C ends a promotion."""
    raise KeyboardInterrupt


def a_lap_file(path: Path) -> Path:
    """Return the one lap file of a wheel."""
    (file,) = path.glob("laps/*.lap")
    return file


@pytest.mark.damages
def test_what_a_primary_in_doubt_has_lost_stays_in_the_backup_that_is_promoted(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "one", "two", delay=10_000)
    place.fire(place.a)
    place.level(place.a)
    a_lap_file(place.a).unlink()
    (place.a / "checkpoint").write_bytes(b"not a checkpoint")
    place.fire(place.a)
    assert place.payloads(place.b) == ["one", "two"]
    done = go(place)
    assert done.caught_up
    assert place.payloads(place.b) == ["one", "two"]
