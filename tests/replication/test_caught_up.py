"""What is called caught up, or current, is: of what was cancelled and acknowledged too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.record import ACKED, CANCELLED, RESCHEDULED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.journal.tail import Tail
from filewheel.replication import promote as module
from filewheel.replication.follower import Follower
from filewheel.replication.link import Link
from filewheel.replication.promote import Promotion, promote
from filewheel.roster.retention import Retention
from filewheel.roster.roster import Mode, roster_at
from tests.replication.support_sets import Place, place
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
    Retention(directory, limit_bytes=0).give_up()
    directory.disk.release()
    done = go(place)
    assert not done.caught_up
    assert any("not retained all journals" in note for note in done.notes)
    assert place.payloads(place.b) == ["cancelled"]


@pytest.mark.parametrize("mode", ["mirror", "ship"])
@pytest.mark.parametrize("delay", [-4000, 0, 1000])
def test_what_the_backup_has_a_drop_of_stays_gone_though_the_old_primary_lost_that_drop_before_it_was_flushed(
    place: Place, mode: Mode, delay: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.firing.housekeeper.LOOK_US", 0)  # whatever is old enough is dealt at each turn
    monkeypatch.setattr("filewheel.firing.housekeeper.DEAL_AGE_US", 0)
    monkeypatch.setattr("filewheel.replication.lap_copy.STEP_BYTES", 1)  # the laps are compared one by one
    place.make_set(place.b, mode=mode)
    place.enqueue(place.a, "before it", delay=-9000)
    (gone,) = place.enqueue(place.a, "acknowledged", delay=delay)
    place.enqueue(place.a, "kept", delay=9000)
    assert place.may_fire() == [place.a]  # its keeper deals
    place.level(place.a)
    (place.b / "follows.json").unlink()  # the replicator was killed: the promotion compares
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


def test_what_was_moved_and_cancelled_while_a_link_went_to_the_end_of_the_journals_does_not_stay_in_the_backup(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b)
    (old,) = place.enqueue(place.a, "moved", delay=1000)
    (place.b / "follows.json").unlink()  # so it compares, and passes over what the journals hold
    directory = open_directory(place.a, write=True)
    journals = [Journal(directory) for _ in range(2)]
    due_us = place.clock.now_us() + 2_000_000_000
    for journal in journals:
        journal.append([a_put(journal.new_id(due_us))], 1)
    names = directory.disk.listdir("journal")
    earlier, later = sorted(journals, key=lambda j: next(n for n, name in enumerate(names) if j.writer in name))
    original = Follower._poll
    done: list[bytes] = []

    def poll(self: Follower, tail: Tail, listing: dict[str, set[int]], test_locks: bool) -> Iterator[Any]:
        yield from original(self, tail, listing, test_locks)
        if tail.writer == earlier.writer and not done:  # the move lies behind the first pass, the cancel before it
            done.append(bytes(earlier.new_id(due_us)))
            earlier.append([pack_drop(old, RESCHEDULED), a_put(done[0])], 1)
            later.append([pack_drop(done[0], CANCELLED)], 0)

    monkeypatch.setattr(Follower, "_poll", poll)
    place.level(place.a)
    assert done
    assert done[0] not in place.waiting(place.b)
    assert place.waiting(place.b).keys() == place.waiting(place.a).keys()
    for journal in journals:
        journal.close()
