"""Messages that a keeper takes in itself: with the ids of another log, in bulk, and perhaps twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.firing.housekeeper import DEAL_AGE_US
from filewheel.format.layout import REPEATS
from filewheel.kafka.partition.log_keeper import LogKeeper
from filewheel.laps.deal import OPEN_AHEAD_S, Deal
from filewheel.message import US_PER_S
from tests.support import START_US, FakeClock
from tests.support_wheel import a_put, an_id

SECOND = START_US // US_PER_S


@pytest.fixture
def keeper(wheel_dir: Path, clock: FakeClock) -> Iterator[LogKeeper]:
    with LogKeeper(wheel_dir, clock=clock, background=False) as made:
        yield made


def add(keeper: LogKeeper, *ids: bytes, cancels: tuple[bytes, ...] = ()) -> None:
    every = [*ids, *cancels]
    keeper.add_puts(b"".join(a_put(i) for i in ids), len(ids), min(every), max(every), cancels=cancels)


def deal(keeper: LogKeeper) -> None:
    Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


def test_added_messages_fire_in_the_order_of_their_ids_near_or_far(keeper: LogKeeper, clock: FakeClock) -> None:
    ids = [an_id(SECOND + s) for s in (2, 500, 0)]
    assert not keeper.claim()  # what is due in the next seconds is in memory now
    add(keeper, *ids)
    clock.advance(1000)
    assert keeper.claim().ids == sorted(ids)


def test_an_added_message_that_is_replaced_does_not_fire_though_it_is_in_memory(
    keeper: LogKeeper, clock: FakeClock
) -> None:
    old, new = an_id(SECOND, 1), an_id(SECOND + 2, 2)
    assert not keeper.claim()
    add(keeper, old)
    add(keeper, new, cancels=(old,))
    clock.advance(10)
    assert keeper.claim().ids == [new]


def test_a_message_that_was_dealt_and_added_again_ends_with_its_drop(wheel_dir: Path, clock: FakeClock) -> None:
    id_ = an_id(SECOND + 30)
    for _ in range(2):  # the second time the mark alone says that it may come again
        with LogKeeper(wheel_dir, clock=clock, background=False) as keeper:
            if not (wheel_dir / REPEATS).exists():
                keeper.expect_repeats()
            add(keeper, id_)
            deal(keeper)
    keeper = LogKeeper(wheel_dir, clock=clock, background=False)
    add(keeper, id_)
    keeper.add_puts(b"", 0, id_, id_, cancels=(id_,))
    deal(keeper)  # the drop meets the put of the same deal, and must reach the slot all the same
    keeper.close()
    with Wheel(wheel_dir) as wheel:
        assert not list(wheel.list())


def test_the_next_due_is_that_of_the_first_message_in_memory_or_on_disk(keeper: LogKeeper, clock: FakeClock) -> None:
    assert keeper.next_due_us() is None
    add(keeper, an_id(SECOND + 500, us=7), an_id(SECOND + 5000))
    assert keeper.next_due_us() == START_US + 500 * US_PER_S + 7
    deal(keeper)
    next_us = keeper.next_due_us()
    assert next_us is not None
    assert START_US < next_us <= START_US + 500 * US_PER_S + 7
    clock.advance(499)
    assert not keeper.claim()
    assert keeper.next_due_us() == START_US + 500 * US_PER_S + 7
    clock.advance(2)
    keeper.ack(keeper.claim())
    next_us = keeper.next_due_us()
    assert next_us is not None
    assert clock.wall_us < next_us <= START_US + 5000 * US_PER_S
    clock.advance(10_000)
    keeper.ack(keeper.claim())
    deal(keeper)
    assert keeper.next_due_us() is None


def test_the_next_due_is_right_after_memory_was_forgotten(keeper: LogKeeper, clock: FakeClock) -> None:
    assert not keeper.claim()
    add(keeper, an_id(SECOND + 3), an_id(SECOND + 5000))
    keeper.reload()
    next_us = keeper.next_due_us()
    assert next_us is not None
    assert next_us <= START_US + 3 * US_PER_S
    clock.advance(4)
    assert len(keeper.claim()) == 1


def test_a_keeper_without_work_says_so_and_one_with_work_says_when(keeper: LogKeeper, clock: FakeClock) -> None:
    assert keeper.housekeep() is None
    add(keeper, an_id(SECOND + 5000))
    wait_us = keeper.housekeep()
    assert wait_us is not None
    assert 0 < wait_us <= DEAL_AGE_US
    clock.advance(wait_us / US_PER_S)
    wait_us = keeper.housekeep()  # dealt into the file of its lap, which is opened shortly before it begins
    assert wait_us is not None
    lap_s = keeper.directory.settings.slots
    begins_s = (SECOND + 5000) // lap_s * lap_s
    assert wait_us == (begins_s - OPEN_AHEAD_S) * US_PER_S - clock.wall_us
    clock.advance(wait_us / US_PER_S)
    assert keeper.housekeep() is None
    assert not keeper._store.checkpoint.laps


def test_the_ids_of_what_waits_come_in_parts(keeper: LogKeeper) -> None:
    from filewheel.laps.window import Budget
    from filewheel.message import ID_MIN

    ids = [an_id(SECOND + n) for n in range(30)]
    add(keeper, *ids)
    deal(keeper)
    found: list[bytes] = []
    lo, ends = ID_MIN, False
    while not ends:
        some, lo, ends = keeper.pending_ids(lo, Budget(records=7, bytes=1 << 20))
        found += some
    assert found == ids
