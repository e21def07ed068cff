"""A mirror and its link: what a producer did not write is written for it, and what came too late goes again."""

from __future__ import annotations

import pytest

from filewheel.disk.directory import open_directory
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S
from filewheel.replication.mirror_match import HEARD_US, OWED_US, SURPLUS_US, Announcement, MirrorMatch
from filewheel.roster.fence import LOOK_US
from filewheel.roster.stale import mark_stale
from tests.replication.support import Pair, fire
from tests.support_wheel import a_put, an_id

mirrored = pytest.mark.parametrize("pair", ["mirror"], indirect=True)


def a_frame(body: bytes, puts: int = 1, drops: int = 0) -> Frame:
    id_ = an_id(1)
    return Frame(0, 0, 0, 0, puts, drops, id_, id_, body)


def alone(pair: Pair) -> Journal:
    """A producer that was killed between its two writes: what it writes is in the primary only."""
    return Journal(open_directory(pair.primary, write=True))


def late(pair: Pair) -> Journal:
    """A producer that goes on after a pause: what it writes is in the mirror only."""
    return Journal(open_directory(pair.backup, write=True))


@mirrored
def test_what_producers_mirror_is_not_shipped_as_well(pair: Pair) -> None:
    pair.settle(1)
    assert pair.member().state == "current"
    shipped = pair.tick().report.shipped
    with pair.keeper() as keeper, pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=1)
        wheel.enqueue(b"later", delay=500)
        pair.tick(3)
        pair.clock.advance(2)
        assert len(fire(pair, keeper)) == 50
        assert pair.settle(2).report.shipped == shipped
        pair.assert_equal()


@mirrored
@pytest.mark.parametrize("boot", ["the same boot", "another boot"])
def test_nor_is_it_by_a_link_that_begins_by_healing(pair: Pair, boot: str) -> None:
    pair.settle(1)
    pair.kill()
    pair.boot = boot
    pair.settle(1)
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=500)
        assert pair.settle(2).report.shipped == 0
        pair.assert_equal()


@mirrored
def test_what_a_killed_producer_did_not_mirror_is_written_for_it_after_a_while(pair: Pair) -> None:
    pair.settle(1)
    journal = alone(pair)
    id_ = journal.new_id(pair.clock.now_us() + 500 * US_PER_S)
    journal.append([a_put(id_)], 1)
    pair.tick(3)
    assert id_ not in pair.pending(pair.backup)
    pair.clock.advance(OWED_US / US_PER_S)
    pair.tick(2)
    assert id_ in pair.pending(pair.backup)
    journal.append([pack_drop(id_, CANCELLED)], 0)
    pair.settle(1)
    assert id_ not in pair.pending(pair.backup)
    journal.close()


@mirrored
@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_that_comes_after_its_message_was_fired_and_forgotten_goes_again(pair: Pair, killed: bool) -> None:
    pair.settle(1)
    with pair.keeper() as keeper:
        journal, other = alone(pair), late(pair)
        id_ = journal.new_id(pair.clock.now_us() + US_PER_S)
        put = a_put(id_)
        journal.append([put], 1)
        pair.settle(2)
        assert fire(pair, keeper) == [id_]
        pair.settle(40)
        keeper._housekeeper.deal_all()
        assert pair.pending(pair.backup) == set()
        other.append([put], 1)
        if killed:
            # It knew of it, had dealt it, and had not decided yet.
            link = pair.tick(3, 0.4)
            link.keeper._housekeeper.deal_all()
            pair.kill()
        else:
            pair.tick(1)
            assert pair.pending(pair.backup) == {id_}
        pair.settle()
        assert pair.pending(pair.backup) == set()
        journal.close()
        other.close()


@mirrored
@pytest.mark.parametrize("phase", range(6))
def test_no_place_is_written_down_while_a_frame_below_it_is_owed(pair: Pair, phase: int) -> None:
    pair.settle(1)
    journal = alone(pair)
    pair.tick(1 + phase, 0.05)
    id_ = journal.new_id(pair.clock.now_us() + 500 * US_PER_S)
    journal.append([pack_drop(an_id(1), CANCELLED)], 0)
    pair.tick(1, 0.05)
    journal.append([a_put(id_)], 1)
    for turn in range(20):
        if turn == 3:
            journal.append([pack_drop(an_id(1), CANCELLED)], 0)  # the first once more
        position = pair.tick(1, 0.05).bookmark.positions.get(journal.writer)
        # The put is the second frame.
        assert position is None or position.number < 2 or id_ in pair.pending(pair.backup)
    assert id_ in pair.pending(pair.backup)
    journal.close()


def test_a_frame_that_both_sides_have_shown_is_in_neither_list() -> None:
    matcher = MirrorMatch()
    one, other = a_frame(b"one"), a_frame(b"other")
    matcher.in_source(one, 0)
    matcher.in_target(one, 1)
    matcher.in_target(other, 1)
    matcher.in_source(other, 2)
    assert matcher.owed(OWED_US * 9) == matcher.surplus(SURPLUS_US * 9) == []
    assert matcher.owed_since_us() is None


def test_what_is_owed_comes_in_its_order_after_the_time_that_a_write_may_take() -> None:
    matcher = MirrorMatch()
    first, again, third = a_frame(b"first", 0, 1), a_frame(b"again"), a_frame(b"third")
    matcher.in_source(first, 1000)
    matcher.in_source(again, 2000)
    matcher.in_source(first, 900_000)  # the same commit once more: it is owed since the first time
    matcher.in_source(third, 900_000)
    assert matcher.owed_since_us() == 1000
    assert matcher.owed(OWED_US) == []
    assert matcher.owed(OWED_US + 1000) == [first]
    assert matcher.owed_since_us() == 2000
    assert matcher.owed(OWED_US + 2000) == [again]
    assert matcher.owed(900_000) == []


def test_what_was_written_by_the_one_who_asks_is_nobodys_copy() -> None:
    matcher = MirrorMatch()
    frame = a_frame(b"mine")
    matcher.expect(frame)
    matcher.in_target(frame, 0)
    assert not matcher.has_surplus
    matcher.in_target(frame, 0)  # and this is somebody's
    assert matcher.has_surplus
    assert matcher.surplus(SURPLUS_US) == [frame]
    assert not matcher.has_surplus


@mirrored
@pytest.mark.parametrize("when", ["all along", "at last", "all along, and the link is killed"])
def test_a_mirror_is_current_when_it_has_what_was_cancelled_and_enqueued_before_producers_heard_of_it(
    pair: Pair, when: str
) -> None:
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 60, delay=500)
    journal = alone(pair)  # it looks at the roster every fifth of a second
    state, heard_us, left = pair.member().state, 0, list(ids)
    while pair.member().state != "current":
        if pair.member().state != state:
            state, heard_us = pair.member().state, pair.clock.now_us() + LOOK_US
            if when.endswith("killed"):
                pair.kill()
        left_us = heard_us - pair.clock.now_us()
        if len(left) > 1 and (0 < left_us <= 20_000 if when == "at last" else not heard_us or left_us > 0):
            journal.append([pack_drop(left.pop(), CANCELLED)], 0)
            journal.append([a_put(journal.new_id(pair.clock.now_us() + 500 * US_PER_S))], 1)
        pair.tick()
    assert 1 < len(left) < len(ids)
    pair.assert_equal()
    journal.close()


@mirrored
def test_nor_is_it_by_a_link_that_begins_while_the_mirror_is_matching(pair: Pair) -> None:
    while pair.member().state == "joining":
        pair.tick()
    pair.kill()
    assert pair.member().state == "matching"
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=500)
        pair.tick()
        wheel.enqueue_many([b"y"] * 50, delay=500)
        assert pair.settle(2).report.shipped == 0
    assert pair.member().state == "current"
    pair.assert_equal()


def test_a_mirror_that_was_announced_waits_for_two_passes_after_everybody_has_heard_of_it() -> None:
    entrance = Announcement(0)
    assert entrance.complete_us(LOOK_US, passes=8) is None
    assert entrance.complete_us(HEARD_US, passes=10) is None
    assert entrance.complete_us(HEARD_US + 1, passes=11) is None
    assert entrance.complete_us(HEARD_US + 2, passes=12) == HEARD_US + 2
    assert entrance.complete_us(HEARD_US + 3, passes=13) == HEARD_US + 2


@mirrored
def test_a_mirror_that_fails_before_it_is_current_is_compared_again(pair: Pair) -> None:
    while pair.member().state == "joining":
        pair.tick()
    assert pair.member().state == "matching"
    directory = open_directory(pair.primary, write=True)
    found = mark_stale(directory, lambda m: True, "it failed", epoch=pair.roster().epoch, now_us=pair.clock.now_us())
    assert found is not None
    assert pair.member().state == "stale"
    journal = alone(pair)
    id_ = journal.new_id(pair.clock.now_us() + 500 * US_PER_S)
    journal.append([a_put(id_)], 1)
    pair.settle(2)
    assert pair.member().state == "current"
    pair.assert_equal()
    journal.close()
