"""The wheel of a partition: what is taken in waits, goes out once, and survives."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import Damaged, Locked, Wheel, WheelFull, WrongSource
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import POSITION, SOURCE, RecordOrigin
from filewheel.kafka.records.fate import offset_of
from tests.kafka import parts
from tests.kafka.parts import Log, a_put, check_whole, ids_of, killed, offsets, open_partition, pending
from tests.support import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "delay" / "3"


@pytest.fixture
def partition(path: Path, clock: FakeClock) -> Iterator[Partition]:
    made = open_partition(path, clock)
    yield made
    made.close()


def test_a_new_wheel_has_no_position_and_nothing_to_do(partition: Partition) -> None:
    assert (partition.position, partition.ingested, partition.next_due_us(), partition.low()) == (None, 0, None, 0)
    assert not partition.next_chunk(10).ids
    assert partition.housekeep() is None


def test_records_go_out_when_they_are_due_by_due_and_offset(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 20), a_put(1, 10), a_put(2, 10), a_put(3, 5000)])
    assert partition.ingested == 4
    clock.advance(9.999999)
    assert not partition.next_chunk(10).ids
    clock.advance(0.000001)
    assert partition.next_due_us() == clock.wall_us
    chunk = partition.next_chunk(10)
    assert (offsets(chunk), chunk.ingested, chunk.last_id) == ([1, 2], 4, ids_of([a_put(2, 10)])[0])
    partition.settle(chunk)
    clock.advance(10)
    assert offsets(partition.next_chunk(10)) == [0]


def test_nothing_goes_out_before_the_time_that_the_caller_gives(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 1), a_put(1, 2)])
    clock.advance(5)
    assert offsets(partition.next_chunk(10, parts.START_US + 1_500_000)) == [0]


def test_a_chunk_that_was_given_back_goes_out_again(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(0, 1), a_put(1, 2)])
    clock.advance(5)
    first = partition.next_chunk(1)
    partition.give_back(first)
    assert offsets(partition.next_chunk(10)) == [0, 1]


def test_a_record_that_is_taken_in_twice_is_taken_in_once(partition: Partition) -> None:
    partition.take_in([a_put(0, 1), a_put(1, 2)])
    partition.take_in([a_put(0, 1), a_put(1, 2), a_put(2, 3)])
    assert partition.ingested == 3
    assert partition._keeper._store.undealt_puts == 3


def test_a_chunk_has_everything_that_is_due_however_little_memory_holds(path: Path, clock: FakeClock) -> None:
    partition = Partition(path, parts.SOURCE, budget=parts.Budget(records=8, bytes=4000), env=parts.env_at(clock))
    partition.take_in([a_put(n, 100 - n) for n in range(100)])
    clock.advance(1000)
    assert offsets(partition.next_chunk(1000)) == list(range(99, -1, -1))
    partition.close()


def test_a_message_that_cannot_be_read_is_lost_and_no_chunk_passes_over_it(
    partition: Partition, clock: FakeClock
) -> None:
    partition.take_in([a_put(0, 1)])
    bad = b"\x98\x01\xc4\x10" + ids_of([a_put(1, 1)])[0] + b"\xc0\xc0\xc0\xc0\x80\xc0"
    partition._keeper.add_puts(bad, 1, bad[4:20], bad[4:20])
    partition.advance(2)
    partition.take_in([a_put(2, 1)])
    clock.advance(5)
    with pytest.raises(Damaged, match="were lost"):
        partition.next_chunk(2)
    assert partition.has_lost


def test_low_does_not_count_on_what_was_lost(partition: Partition, path: Path, clock: FakeClock) -> None:
    partition.take_in([a_put(n, 400_000) for n in range(3)])
    partition.close()  # deals them into the file of their lap
    (file,) = (path / "laps").iterdir()
    file.write_bytes(bytes(file.stat().st_size))
    again = open_partition(path, clock)
    again.apply(Marker())
    with pytest.raises(Damaged, match="were lost"):
        again.next_chunk(10)
    while again.waiting is None:
        again.housekeep()
    assert (again.ingested, again.low()) == (3, 0)
    again.close()
    once_more = open_partition(path, clock)
    assert once_more.position == 0
    once_more.close()


def test_a_record_that_arrives_during_a_claim_is_in_the_chunk_or_behind_its_offset(
    partition: Partition, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.take_in([a_put(0, 1)])
    clock.advance(10)
    claim = partition._keeper.claim
    late = threading.Thread(target=partition.take_in, args=([a_put(1, 0.5)],))

    def claim_slowly(*args: Any, **options: Any) -> Any:
        batch = claim(*args, **options)
        if not batch and not late.ident:
            late.start()
            late.join(0.3)
        return batch

    monkeypatch.setattr(partition._keeper, "claim", claim_slowly)
    chunk = partition.next_chunk(10)
    late.join()
    assert (offsets(chunk), chunk.ingested) == ([0], 1)


# -- reading again ---------------------------------------------------------------------------------------------


def test_a_killed_process_leaves_everything_and_reads_again_from_the_last_flush(path: Path, clock: FakeClock) -> None:
    log = Log()
    for n in range(10):
        log.add(n)
    first = open_partition(path, clock)
    log.read(first, 5)
    first.flush()
    log.read(first)
    killed(first)
    second = open_partition(path, clock)
    assert (second.position, second.ingested) == (9, 9)
    log.take_over(second)
    clock.advance(100)
    assert log.fire(second) == [n * 2 for n in range(10)]
    assert not log.waiting()
    second.close()
    assert pending(path) == []
    check_whole(path)


def test_what_went_out_does_not_come_back_when_it_is_read_again(path: Path, clock: FakeClock) -> None:
    log = Log()
    for n in range(6):
        log.add(n)
    first = open_partition(path, clock)
    log.read(first)
    clock.advance(3)
    log.fire(first)
    assert first.position is None
    killed(first)
    second = open_partition(path, clock)
    log.take_over(second)
    assert not second.next_chunk(10).ids
    clock.advance(100)
    assert log.fire(second) == [8, 10]
    second.close()
    assert pending(path) == []


def test_what_went_out_is_not_in_the_wheel_when_it_is_read_again(path: Path, clock: FakeClock) -> None:
    partition = open_partition(path, clock)
    puts = [a_put(n, n) for n in range(4)]
    partition.apply(Marker().after_chunk(4, ids_of(puts)[2]))
    partition.take_in(puts)
    partition.close()
    assert pending(path) == [3]


def test_what_the_marker_calls_done_is_dropped_when_the_wheel_is_opened(path: Path, clock: FakeClock) -> None:
    log = Log()
    for n in range(6):
        log.add(n)
    first = open_partition(path, clock)
    log.read(first)
    first.flush()
    clock.advance(3)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.fire(first, on_sent=die)
    killed(first)
    second = open_partition(path, clock)
    assert second.apply(log.marker) == 4
    assert not second.next_chunk(10).ids
    second.close()
    assert pending(path) == [8, 10]


def test_what_the_marker_calls_done_is_not_handed_out_though_it_was_not_dropped(
    partition: Partition, clock: FakeClock
) -> None:
    puts = [a_put(n, n) for n in range(4)]
    partition.take_in(puts)
    partition.apply(Marker(low=2))  # no step names an id: nothing is dropped yet
    clock.advance(10)
    assert offsets(partition.next_chunk(10)) == [2, 3]
    assert partition.waiting == 2


def test_a_chunk_goes_on_behind_messages_that_are_done(partition: Partition, clock: FakeClock) -> None:
    partition.take_in([a_put(n, n) for n in range(4)])
    partition.apply(Marker(low=1))
    clock.advance(10)
    assert offsets(partition.next_chunk(2)) == [1, 2]


def test_a_standby_drops_what_the_owner_fired_and_takes_in_none_of_it(path: Path, clock: FakeClock) -> None:
    log = Log()
    standby = open_partition(path, clock)
    owner = open_partition(path.with_name("4"), clock)
    for n in range(8):
        log.add(n)
    log.read(owner)
    log.read(standby, 4)
    clock.advance(5)
    assert log.fire(owner, 3) == [0, 2, 4]
    assert standby.apply(log.marker) == 3
    assert log.fire(owner) == [6, 8, 10]
    assert standby.apply(log.marker) == 1
    log.read(standby)
    clock.advance(100)
    assert offsets(standby.next_chunk(10)) == [12, 14]
    standby.close()
    owner.close()
    check_whole(path)


def test_an_overdue_record_that_the_owner_had_not_taken_in_stays_when_a_marker_is_applied(
    partition: Partition, clock: FakeClock
) -> None:
    partition.take_in([a_put(0, 1), a_put(1, 2), a_put(2, 1)])
    clock.advance(10)
    marker = Marker().after_chunk(2, ids_of([a_put(1, 2)])[0])
    assert partition.apply(marker) == 2
    assert offsets(partition.next_chunk(10)) == [2]


def test_the_wheel_stays_whole_when_records_are_dealt_between_two_readings(path: Path, clock: FakeClock) -> None:
    log = Log()
    for n in range(40):
        log.add(n * 10)
    for _ in range(4):
        partition = open_partition(path, clock)
        log.take_over(partition)
        (path / POSITION).unlink()
        clock.advance(60)
        log.fire(partition)
        partition._keeper._housekeeper.deal_all()
        killed(partition)
    partition = open_partition(path, clock)
    log.take_over(partition)
    clock.advance(1000)
    while log.fire(partition):
        pass
    assert sorted(log.fired) == sorted(set(log.fired)) == [n * 2 for n in range(40)]
    partition.close()
    assert pending(path) == []
    check_whole(path)


# -- a full disk -----------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_in_the_middle_of_a_batch_leaves_what_was_taken_in(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.kafka.partition.packing.FRAME_BYTES", 200)
    store, writes = partition._keeper._store, []

    def write(*args: Any, write: Any = store.write_body) -> None:
        writes.append(args)
        if len(writes) == 3:
            raise WheelFull("no space left", path="here")
        write(*args)

    monkeypatch.setattr(store, "write_body", write)
    puts = [a_put(n, 1) for n in range(10)]
    with pytest.raises(WheelFull):
        partition.take_in(puts)
    assert 0 < partition.ingested < 10
    partition.take_in(puts)
    assert (partition.ingested, store.undealt_puts) == (10, 10)


def test_what_went_out_on_a_full_disk_is_dropped_later_and_not_handed_out_again(
    partition: Partition, path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.take_in([a_put(0, 1), a_put(1, 2)])
    clock.advance(1)
    chunk = partition.next_chunk(10)

    def full(*args: Any) -> None:
        raise WheelFull("no space left", path="here")

    with monkeypatch.context() as patch:
        patch.setattr(partition._keeper._store, "drop", full)
        partition.settle(chunk)
        clock.advance(10)
        assert partition.housekeep() is not None
        second = partition.next_chunk(10)
        assert offsets(second) == [1]
        partition.settle(second)
    assert partition.waiting == 2
    partition.housekeep()
    assert partition.waiting == 0
    partition.close()
    assert pending(path) == []


# -- low -------------------------------------------------------------------------------------------------------


def test_low_is_that_of_the_marker_until_everything_was_counted(path: Path, clock: FakeClock) -> None:
    first = open_partition(path, clock)
    first.take_in([a_put(n, 100) for n in range(10_000)])
    first.close()
    second = open_partition(path, clock)
    second.apply(Marker(low=7))
    assert (second.low(), second.waiting) == (7, None)
    second.next_chunk(10)
    assert (second.low(), second.waiting) == (7, 10_000)
    second.apply(Marker(low=0))
    assert second.low() == 0
    second.close()


def test_low_is_the_first_offset_that_waits(partition: Partition, clock: FakeClock) -> None:
    partition.next_chunk(1)
    partition.take_in([a_put(n, n if n != 100 else 5000) for n in range(10_000)])
    assert partition.low() == 0
    clock.advance(4094)
    partition.settle(partition.next_chunk(5000))
    assert (partition.low(), partition.waiting) == (100, 10_000 - 4094)
    clock.advance(906)
    partition.settle(partition.next_chunk(5000))
    assert partition.low() == 5001
    clock.advance(10_000)
    partition.settle(partition.next_chunk(2000))
    assert partition.low() == 7001
    partition.settle(partition.next_chunk(5000))
    assert (partition.low(), partition.waiting) == (10_000, 0)


def test_records_that_come_and_go_during_the_count_are_counted_once(
    path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.kafka.partition.partition.WALK_BUDGET", parts.Budget(records=100, bytes=1 << 20))
    first = open_partition(path, clock)
    first.take_in([a_put(n, n) for n in range(1000)])
    first.close()
    second = open_partition(path, clock)
    clock.advance(499)
    chunk = second.next_chunk(300)  # the first hundred are counted by now
    second.settle(chunk)
    second.take_in([a_put(1000 + n, n) for n in range(50)])
    while second.housekeep() == 0:
        second.settle(second.next_chunk(20))
    left = second.waiting
    assert left is not None
    rest = second.next_chunk(10_000)
    second.settle(rest)
    clock.advance(100_000)
    last = second.next_chunk(10_000)
    assert left == len(rest.ids) + len(last.ids)
    second.settle(last)
    assert (second.waiting, second.low()) == (0, 1050)
    second.close()


# -- the two files ---------------------------------------------------------------------------------------------


def test_data_of_another_topic_is_refused(path: Path, clock: FakeClock) -> None:
    open_partition(path, clock).close()
    for other in (
        RecordOrigin("cluster-2", "delay", 3),
        RecordOrigin("cluster-1", "delay", 4),
        RecordOrigin("cluster-1", "other", 3),
    ):
        with pytest.raises(WrongSource, match="remove this directory"):
            open_partition(path, clock, source=other)
    named = RecordOrigin("cluster-1", "delay", 3, "abc")
    open_partition(path, clock, source=named).close()
    with pytest.raises(WrongSource, match="id abc"):
        open_partition(path, clock, source=RecordOrigin("cluster-1", "delay", 3, "def"))
    open_partition(path, clock).close()


def test_a_wheel_with_records_and_without_a_source_is_damaged(path: Path, clock: FakeClock) -> None:
    partition = open_partition(path, clock)
    (path / SOURCE).unlink()
    partition.close()
    open_partition(path, clock).close()  # nothing was in it
    partition = open_partition(path, clock)
    partition.take_in([a_put(0, 1)])
    partition.close()
    (path / SOURCE).write_text("{}")
    with pytest.raises(Damaged, match="unreadable"):
        open_partition(path, clock)
    (path / SOURCE).unlink()
    with pytest.raises(Damaged, match="it is missing, and the wheel has records"):
        open_partition(path, clock)


def test_a_position_that_cannot_be_read_is_none_and_one_of_another_wheel_too(path: Path, clock: FakeClock) -> None:
    partition = open_partition(path, clock)
    for n in range(3):
        partition.take_in([a_put(n, 1)])
        partition.flush()
    partition.close()
    whole = (path / POSITION).read_bytes()
    for at in (0, 4096):  # one of the two is torn
        torn = bytearray(whole)
        torn[at : at + 40] = bytes(40)
        (path / POSITION).write_bytes(torn)
        second = open_partition(path, clock)
        assert second.position in (2, 3)
        killed(second)
    (path / POSITION).write_bytes(os.urandom(5000))
    second = open_partition(path, clock)
    assert (second.position, second.ingested) == (None, 0)
    second.close()
    other = open_partition(path.with_name("5"), clock)
    other.close()
    (path.with_name("5") / POSITION).write_bytes(whole)
    other = open_partition(path.with_name("5"), clock)
    assert other.position is None
    other.close()


def test_two_processes_cannot_have_one_partition(partition: Partition, path: Path, clock: FakeClock) -> None:
    with pytest.raises(Locked):
        open_partition(path, clock)


def test_tools_see_an_ordinary_wheel(partition: Partition, path: Path) -> None:
    partition.take_in([a_put(1 << 30, 5), a_put((1 << 30) + 1, 6), a_put(1 << 40, 7)])
    partition.flush()
    with Wheel(path) as wheel:
        assert [offset_of(message.id) for message in wheel.list()] == [1 << 30, (1 << 30) + 1, 1 << 40]
        assert [message.topic for message in wheel.list()] == ["target"] * 3


def test_an_offset_beyond_a_sequence_number_is_packed_right(partition: Partition, clock: FakeClock) -> None:
    first = (1 << 30) - 2
    partition.advance(first)
    partition.take_in([a_put(first + n, 5) for n in range(4)])
    clock.advance(10)
    assert offsets(partition.next_chunk(10)) == [first + n for n in range(4)]
