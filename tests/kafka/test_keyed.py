"""A keyed topic: of each key only the last record waits, also when the log is read again from anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import POSITION
from tests.kafka.parts import Log, a_put, check_whole, ids_of, killed, offsets, open_partition, pending
from tests.support import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "3"


@pytest.fixture
def partition(path: Path, clock: FakeClock) -> Iterator[Partition]:
    made = open_partition(path, clock, keyed=True)
    yield made
    made.close()


def test_a_record_replaces_the_waiting_one_with_its_key(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 5, key=b"a"), a_put(1, 5, key=b"b"), a_put(2, 5)])
    partition.take_in([a_put(3, 6, key=b"a")])
    clock.advance(100)
    assert offsets(partition.next_chunk(10)) == [1, 2, 3]


def test_a_record_without_a_value_cancels_it_and_nothing_comes_of_the_record_itself(
    partition: Partition, clock: FakeClock
) -> None:
    partition.take_in([a_put(0, 5, key=b"a"), a_put(1, 5, key=b"b")])
    partition.take_in([a_put(2, 1, key=b"a", cancels=True), a_put(3, 1, key=b"c", cancels=True)])
    assert partition.ingested == 4
    clock.advance(100)
    assert offsets(partition.next_chunk(10)) == [1]


def test_within_a_batch_the_last_record_of_a_key_counts(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 5, key=b"a"), a_put(1, 4, key=b"a"), a_put(2, 3, key=b"b")])
    partition.take_in([a_put(3, 5, key=b"b"), a_put(4, 5, key=b"b", cancels=True), a_put(5, 5, key=b"c")])
    clock.advance(100)
    assert offsets(partition.next_chunk(10)) == [1, 5]
    assert partition.waiting == 2


@pytest.mark.parametrize("apart", [False, True], ids=["one batch", "many batches"])
def test_an_occurrence_that_was_due_when_another_was_made_is_not_replaced_by_that(
    partition: Partition, clock: FakeClock, apart: bool
) -> None:
    puts = [
        a_put(0, 5, key=b"a"),
        a_put(1, 9, key=b"a", unless_due_s=5),  # that one is due: it stays
        a_put(2, 5, key=b"b"),
        a_put(3, 4, key=b"b", unless_due_s=4.9),  # it is not: it is replaced
        a_put(4, 9, key=b"c", unless_due_s=99),  # none waits
        a_put(5, 5, key=b"d"),
        a_put(6, 9, key=b"d"),  # a call that replaces another does so at any time
    ]
    for batch in [[put] for put in puts] if apart else [puts]:
        partition.take_in(batch)
    clock.advance(100)
    assert sorted(offsets(partition.next_chunk(10))) == [0, 3, 4, 6]


def test_an_occurrence_that_was_left_out_is_left_out_again_when_the_log_is_read_again(
    path: Path, clock: FakeClock
) -> None:
    puts = [a_put(0, 5, key=b"a"), a_put(1, 9, key=b"a", unless_due_s=6)]
    first = open_partition(path, clock, keyed=True)
    first.take_in(puts)
    killed(first)
    second = open_partition(path, clock, keyed=True)
    for put in puts:
        second.take_in([put])
    clock.advance(100)
    assert offsets(second.next_chunk(10)) == [0]
    second.close()


def test_any_bytes_are_a_key(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 5, key=b""), a_put(1, 5, key=b"\xff" * 5000), a_put(2, 5, key=b"\0")])
    partition.take_in([a_put(3, 5, key=b""), a_put(4, 5, key=b"\xff" * 5000)])
    clock.advance(100)
    assert offsets(partition.next_chunk(10)) == [2, 3, 4]


def test_one_that_is_being_sent_is_too_late_to_cancel_and_does_not_go_out_again(
    partition: Partition, clock: FakeClock
) -> None:
    partition.take_in([a_put(0, 5, key=b"a"), a_put(1, 5, key=b"b"), a_put(2, 50, key=b"c")])
    clock.advance(10)
    chunk = partition.next_chunk(10)
    partition.take_in([a_put(3, 6, key=b"a"), a_put(4, 6, key=b"b", cancels=True)])
    partition.give_back(chunk)
    assert partition.waiting == 2
    chunk = partition.next_chunk(10)
    assert offsets(chunk) == [3]
    partition.take_in([a_put(5, 60, key=b"a")])
    partition.settle(chunk)
    clock.advance(100)
    assert partition.waiting == 2
    partition.settle(partition.next_chunk(10))
    assert (partition.waiting, partition.low()) == (0, 6)


def test_an_old_record_that_is_read_again_does_not_replace_its_successor(path: Path, clock: FakeClock) -> None:
    log = Log()
    log.add(5, key=b"a")
    log.add(7, key=b"a")
    first = open_partition(path, clock, keyed=True)
    log.read(first)
    killed(first)
    second = open_partition(path, clock, keyed=True)
    second.take_in(log.puts[:1])  # alone: its successor is in no batch of this reading
    second.advance(log.end)
    clock.advance(100)
    assert offsets(second.next_chunk(10)) == [2]
    second.close()


def test_a_record_that_went_out_replaces_its_predecessor_again(path: Path, clock: FakeClock) -> None:
    log = Log()
    log.add(60, key=b"x")  # the marker's `low` stays below all
    log.add(50, key=b"a")
    log.add(5, key=b"a")
    first = open_partition(path, clock, keyed=True)
    log.read(first, 2)
    log.read(first)
    clock.advance(10)
    assert log.fire(first) == [log.puts[2].offset]
    first.close()
    for name in ("journal", "laps", "keys"):  # the disk is lost, and the log is read from its start
        for file in sorted((path / name).rglob("*")):
            if file.is_file():
                file.unlink()
    (path / POSITION).unlink()
    (path / "checkpoint").unlink()
    second = open_partition(path, clock, keyed=True)
    second.apply(log.marker)
    for put in log.puts:
        second.take_in([put])
    clock.advance(100)
    assert offsets(second.next_chunk(10)) == [log.puts[0].offset]
    second.close()


def test_one_that_was_replaced_does_not_go_out_though_it_was_taken_in_again_after_its_drop(
    path: Path, clock: FakeClock
) -> None:
    first = open_partition(path, clock, keyed=True)
    first.next_chunk(1)
    first.take_in([a_put(0, 5, key=b"a"), a_put(1, 90, key=b"x")])
    first.take_in([a_put(2, 5, key=b"a", cancels=True)])
    killed(first)
    second = open_partition(path, clock, keyed=True)
    clock.advance(10)
    # As a standby: a marker has moved what memory holds past the first record, which is then read again.
    second.apply(Marker().after_chunk(0, ids_of([a_put(9, 8)])[0]))
    second.take_in([a_put(0, 5, key=b"a")])
    second.take_in([a_put(1, 90, key=b"x"), a_put(2, 5, key=b"a", cancels=True)])
    assert not second.next_chunk(10).ids
    second.close()
    assert pending(path) == [1]
    check_whole(path)


@pytest.mark.parametrize("seed", range(12))
def test_any_history_with_kills_ends_as_the_log_says(path: Path, clock: FakeClock, seed: int) -> None:
    rng = random.Random(seed)
    log = Log()
    partition = open_partition(path, clock, keyed=True)
    log.take_over(partition)
    now_s = 0.0
    for _ in range(60):
        match rng.randrange(8):
            case 0 | 1 | 2:
                key = rng.choice([None, b"a", b"b", b"c"])
                log.add(now_s + rng.choice([-5, 1, 20, 200]), key=key, cancels=key is not None and rng.random() < 0.3)
            case 3:
                log.read(partition, rng.randrange(1, 4))
            case 4:
                log.read(partition)
                log.fire(partition, rng.randrange(1, 4))
            case 5:
                now_s += 15
                clock.advance(15)
            case 6:
                rng.choice([partition.flush, partition._keeper._housekeeper.deal_all])()
            case 7:
                killed(partition)
                if rng.random() < 0.3:
                    (path / POSITION).unlink()
                partition = open_partition(path, clock, keyed=True)
                log.take_over(partition)
    log.read(partition)
    assert partition.next_chunk(0).ids == []
    assert partition.waiting == len(log.waiting())
    clock.advance(1000)
    while log.fire(partition):
        pass
    assert not log.waiting()
    assert len(log.fired) == len(set(log.fired))
    partition.close()
    assert pending(path) == []
    check_whole(path)
