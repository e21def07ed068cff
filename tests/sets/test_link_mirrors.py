"""A mirror and its link: what a producer did not write is written for it, and what came too late goes again."""

from __future__ import annotations

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S
from filewheel.roster.fence import LOOK_US
from filewheel.roster.stale import mark_stale
from tests.sets.support import Pair, fire
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
def test_what_producers_mirror_and_a_tick_copies_too_is_there_once(pair: Pair) -> None:
    pair.settle(1)
    assert pair.member().state == "current"
    with pair.keeper() as keeper, pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=1)
        wheel.enqueue(b"later", delay=500)
        pair.tick(3)
        pair.clock.advance(2)
        assert len(fire(pair, keeper)) == 50
        pair.settle(2)
        pair.assert_equal()


@mirrored
def test_what_a_killed_producer_did_not_mirror_is_copied_by_the_next_tick(pair: Pair) -> None:
    pair.settle(1)
    journal = alone(pair)
    id_ = journal.new_id(pair.clock.now_us() + 500 * US_PER_S)
    journal.append([a_put(id_)], 1)
    pair.tick(2)
    assert id_ in pair.pending(pair.backup)
    journal.append([pack_drop(id_, CANCELLED)], 0)
    pair.settle(1)
    assert id_ not in pair.pending(pair.backup)
    journal.close()


@mirrored
@pytest.mark.parametrize("when", ["all along", "at last", "all along, and the link is killed"])
def test_a_mirror_is_current_when_it_has_what_was_cancelled_and_enqueued_before_producers_heard_of_it(
    pair: Pair, when: str
) -> None:
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 60, delay=500)
    journal = alone(pair)  # it looks at the roster every fifth of a second
    is_filled, heard_us, left = False, 0, list(ids)
    while pair.member().state != "current":
        if pair.member().is_filled != is_filled:
            is_filled, heard_us = True, pair.clock.now_us() + LOOK_US
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
def test_a_mirror_that_fails_before_it_is_current_is_compared_again(pair: Pair) -> None:
    while not pair.member().is_filled:
        pair.tick()
    assert pair.member().state == "joining"
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


def damage(pair: Pair, payload: bytes) -> None:
    """Flip a bit of a message in the primary's journal; the mirror's is whole."""
    pair.damaged = [pair.primary, pair.backup]
    for path in (pair.primary / "journal").glob("*.log"):
        data = bytearray(path.read_bytes())
        if payload in data:
            data[data.index(payload)] ^= 1
            path.write_bytes(data)


@mirrored
@pytest.mark.parametrize("ticks", [0, 2])
@pytest.mark.parametrize("is_linked", [True, False])
def test_what_a_damaged_primary_deals_past_comes_back_from_the_mirror(pair: Pair, ticks: int, is_linked: bool) -> None:
    pair.settle(1)
    with Wheel(pair.primary, clock=pair.clock) as wheel:
        ids = {bytes(wheel.enqueue(b"message %d" % n, delay=500)) for n in range(3)}
        pair.tick(ticks)
        if not is_linked:
            pair.close()
        damage(pair, b"message 1")
        if is_linked:
            pair.settle(1)  # the link steps over the damage before a keeper does
        pair.keeper().close()  # its producer lives, so the segment stays
        pair.settle(1)
        assert pair.pending(pair.primary) == ids
        assert pair.pending(pair.backup) == ids
