"""The waiting offsets of a partition are those of a set, at a bounded cost of memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from filewheel.kafka.partition.waiting import WaitingOffsets
from filewheel.kafka.records.fate import id_of
from filewheel.message import ID_END


def ids(offsets: list[int]) -> list[bytes]:
    return [id_of(1_000_000, offset) for offset in offsets]


def complete() -> WaitingOffsets:
    waiting = WaitingOffsets()
    waiting.start(0)
    waiting.walk([], ID_END, ends=True)
    return waiting


@pytest.mark.parametrize("seed", range(4))
def test_low_and_the_count_are_those_of_a_set(seed: int) -> None:
    rnd = random.Random(seed)
    waiting, model, next_ = complete(), set[int](), 0
    for _ in range(120):
        if rnd.random() < 0.5:
            next_ += rnd.choice([0, 0, 1, 700, 9000])
            count = rnd.choice([1, 3, 60, 4096, 5000])
            waiting.add_run(next_, count)
            model.update(range(next_, next_ + count))
            if rnd.random() < 0.3:  # read again
                again = rnd.randrange(count)
                waiting.add_run(next_ + again, count - again)
            next_ += count
        elif model:
            first = rnd.random() < 0.5
            known = sorted(model)
            gone = known[: rnd.randrange(1, 6000)] if first else rnd.sample(known, rnd.randrange(len(known)) // 2)
            waiting.remove(ids([*gone, *gone[:3]]))  # some of them twice
            model.difference_update(gone)
        assert waiting.low(next_) == min(model, default=next_)
        assert waiting.total == len(model)


def test_what_ends_before_the_walk_has_come_to_it_is_not_noted() -> None:
    waiting = WaitingOffsets()
    waiting.start(10)
    waiting.walk(ids([0, 1]), id_of(2_000_000, 0), ends=False)
    waiting.remove(ids([5]))
    waiting.add_run(10, 2)
    waiting.walk([id_of(3_000_000, 4), id_of(3_000_000, 11)], ID_END, ends=True)
    waiting.remove(ids([0, 1, 10]))
    assert (waiting.low(12), waiting.total) == (4, 2)


@pytest.mark.parametrize(("each", "bytes_each"), [(4096, 200), (2048, 900), (60, 450), (1, 350)])
def test_the_memory_of_a_block_has_a_bound(each: int, bytes_each: int) -> None:
    blocks = 300
    tracemalloc.start()
    try:
        waiting = complete()
        before = tracemalloc.get_traced_memory()[0]
        for block in range(blocks):
            waiting.add_run(block << 12, each)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < blocks * bytes_each
