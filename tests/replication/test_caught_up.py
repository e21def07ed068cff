"""What is called caught up, or current, is: of what was cancelled and acknowledged too."""

from __future__ import annotations

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.format.record import CANCELLED, RESCHEDULED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.replication.link import Link
from filewheel.replication.promote import Promotion, promote
from filewheel.roster.retention import Retained
from filewheel.roster.roster import Mode, roster_at
from tests.replication.support_sets import Place, place
from tests.support_wheel import a_put

__all__ = ["place"]


def go(place: Place) -> Promotion:
    return promote(place.b, clock=place.clock, wait_s=0)


def drop_in_primary_only(place: Place, *ids: bytes) -> None:
    """Cancel as a producer does that has not heard of the mirror yet: its drops are in the primary only."""
    journal = Journal(open_directory(place.a, write=True))
    journal.append([pack_drop(i, CANCELLED) for i in ids], 0)
    journal.close()


def follow_and_die(place: Place) -> None:
    """Follow for a moment, and end without a word, as a replicator does that is killed or finds a promotion."""
    roster = roster_at(place.a)
    assert roster is not None
    link = Link(str(place.a), roster.members[0], clock=place.clock)
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
    (place.b / "follows.json").unlink()  # power was cut: from where to go on is not known
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


def test_when_the_primary_gave_its_journals_up_a_promotion_does_not_say_that_it_caught_up(place: Place) -> None:
    place.make_set(place.b, mode="mirror")
    gone, *_ = place.enqueue(place.a, "cancelled", "fired")
    follow_and_die(place)
    drop_in_primary_only(place, gone)
    assert place.fire(place.a) == ["fired"]
    directory = open_directory(place.a, write=True)
    Retained(directory, limit_bytes=0).give_up()
    directory.disk.release()
    done = go(place)
    assert not done.caught_up
    assert any("not kept all of its journals" in note for note in done.notes)
    assert place.payloads(place.b) == ["cancelled"]
