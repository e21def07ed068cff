"""The keeper: what fires when, in which order, and what becomes of it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from filewheel import BadArgument, Cancelled, Closed, Keeper, Locked, Message, MessageId, NotClaimed, Wheel
from filewheel.disk.directory import open_directory
from filewheel.format.record import pack_message
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S
from filewheel.roster.repeats import note_repeats
from tests.support import FakeClock


@contextlib.contextmanager
def open_keeper(path: Path, clock: FakeClock, **options: object) -> Iterator[Keeper]:
    """A keeper without its thread, on a clock that is moved by hand."""
    keeper = Keeper(path, clock=clock, background=False, **options)  # type: ignore[arg-type]
    try:
        yield keeper
    finally:
        keeper.close()


def payloads(messages: object) -> list[bytes]:
    return [m.payload for m in messages]  # type: ignore[attr-defined]


def deal(keeper: Keeper, *, spread: bool = True) -> None:
    Deal(keeper._store, spread=spread, finished=keeper._head.finished).run()


def test_nothing_fires_before_it_is_due_and_everything_after(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue(b"x", delay=10)
        assert not keeper.claim()
        clock.advance(9.999999)
        assert not keeper.claim()
        clock.advance(0.000001)
        batch = keeper.claim()
        assert payloads(batch) == [b"x"]
        assert not keeper.claim()
        keeper.ack(batch)
        assert wheel.stats().pending == 0


def test_a_past_message_fires_at_once_and_keeps_its_due(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        keeper.claim()
        wheel.enqueue(b"late", delay=-86_400)
        wheel.enqueue(b"now")
        batch = keeper.claim()
        assert payloads(batch) == [b"late", b"now"]
        assert batch[0].due_us == clock.wall_us - 86_400_000_000
        keeper.ack(batch)


@pytest.mark.parametrize("dealt", [False, True], ids=["from the journals", "from the laps"])
def test_any_delay_fires_at_its_time(wheel_dir: Path, clock: FakeClock, dealt: bool) -> None:
    delays = [0, 0.5, 1, 59, 899, 900, 901, 1800, 4000, 86_400, 400 * 86_400, 3650 * 86_400]
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        start = clock.wall_us
        for delay in delays:
            wheel.enqueue(b"%g" % delay, delay=delay)
        if dealt:
            deal(keeper)
    with open_keeper(wheel_dir, clock) as keeper:
        for delay in delays:
            clock.wall_us = start + round(delay * 1e6) - 1
            assert not keeper.claim()
            clock.wall_us += 1
            batch = keeper.claim()
            assert payloads(batch) == [b"%g" % delay]
            keeper.ack(batch)


def test_messages_fire_in_due_order_however_they_came(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as one, Wheel(wheel_dir, clock=clock) as two:
        with open_keeper(wheel_dir, clock) as keeper:
            for i in range(50):
                (one, two)[i % 2].enqueue(b"%02d" % ((i * 37) % 50), delay=(i * 37) % 50)
                if i == 25:
                    deal(keeper)
            clock.advance(100)
            fired: list[bytes] = []
            while batch := keeper.claim(7):
                fired += payloads(batch)
                keeper.ack(batch)
            assert fired == [b"%02d" % i for i in range(50)]


def test_what_was_claimed_and_not_acknowledged_is_offered_again_by_the_next_keeper(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue_many([b"a", b"b", b"c"])
        batch = keeper.claim()
        keeper.ack(batch[0])
        assert not keeper.claim()
    with open_keeper(wheel_dir, clock) as keeper:
        assert payloads(keeper.claim()) == [b"b", b"c"]


def test_a_batch_acknowledges_only_what_is_still_claimed(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue_many([b"a", b"b", b"c"])
        batch = keeper.claim()
        keeper.ack(batch[1])
        keeper.nack(batch[2], delay=5)
        assert keeper.ack(batch) == 1
        assert keeper.ack(batch) == 0
        assert wheel.stats().pending == 1


def test_acknowledging_what_is_not_claimed_is_an_error_that_names_it(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        id_ = wheel.enqueue(b"a")
        (message,) = keeper.claim()
        keeper.ack(message)
        with pytest.raises(NotClaimed, match=str(id_)):
            keeper.ack(message)
        with pytest.raises(NotClaimed):
            keeper.nack(MessageId.make(1, 2, 3))
        with pytest.raises(BadArgument, match="a count from 1"):
            keeper.claim(0)


def test_a_message_put_back_fires_again_later_with_its_attempt_raised(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        first = wheel.enqueue(b"a", topic="t", headers={"h": "1"})
        (message,) = keeper.claim()
        second = keeper.nack(message, delay=timedelta(seconds=30))
        assert not keeper.claim()
        clock.advance(30)
        (message,) = keeper.claim()
        assert (message.id, message.root, message.attempt) == (second, first, 1)
        assert (message.payload, message.topic, message.headers) == (b"a", "t", {"h": "1"})
        keeper.nack(message)
        (message,) = keeper.claim()
        assert (message.root, message.attempt) == (first, 2)
        keeper.ack(message)
        assert wheel.stats().pending == 0


def test_a_buried_message_is_a_dead_letter_until_it_is_rescheduled(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        due_us = wheel.enqueue(b"a", delay=-5).due_us
        (message,) = keeper.claim()
        keeper.nack(message)
        (message,) = keeper.claim()
        dead = keeper.bury(message, reason="exit 1")
        clock.advance(10**8)
        assert not keeper.claim()
        assert (wheel.stats().pending, wheel.stats().dead) == (0, 1)
        (letter,) = wheel.list(dead=True)
        assert (letter.id, letter.is_dead, letter.due_us, letter.attempt) == (dead, True, due_us, 2)
        assert letter.headers == {"filewheel.reason": "exit 1"}
        assert list(wheel.list()) == []
        wheel.reschedule(letter.id, delay=0)
        (message,) = keeper.claim()
        assert (message.payload, message.attempt, message.headers, message.is_dead) == (b"a", 0, {}, False)
        keeper.ack(message)
        assert wheel.stats().dead == 0


@pytest.mark.parametrize("dealt", [False, True])
def test_a_cancel_that_returned_is_never_started(wheel_dir: Path, clock: FakeClock, dealt: bool) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        ids = wheel.enqueue_many([b"%d" % i for i in range(6)], delay=[0, 1, 2, 3, 2000, 90_000])
        if dealt:
            deal(keeper)
        keeper.claim(1)
        for i in (1, 3, 4, 5):
            assert wheel.cancel(ids[i])
        clock.advance(200_000)
        assert payloads(keeper.claim()) == [b"2"]


def test_a_cancel_while_it_runs_keeps_it_from_being_retried(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        id_ = wheel.enqueue(b"a")
        (message,) = keeper.claim()
        assert wheel.cancel(id_)
        assert keeper.nack(message) is None
        clock.advance(100)
        assert not keeper.claim()
        assert wheel.stats().pending == 0


@pytest.mark.parametrize("when", ["it waits", "it is claimed"])
def test_a_retried_message_is_not_found_by_its_first_id_and_goes_on(
    wheel_dir: Path, clock: FakeClock, when: str
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        first = wheel.enqueue(b"a")
        (message,) = keeper.claim()
        new = keeper.nack(message, delay=2)
        if when == "it waits":
            assert wheel.cancel(first) is Cancelled.NOT_FOUND
        clock.advance(10)
        (again,) = keeper.claim()
        if when == "it is claimed":
            assert wheel.cancel(first) is Cancelled.NOT_FOUND
        assert again.id == new
        later = keeper.nack(again, delay=1)
        assert later is not None
        assert wheel.cancel(later) is Cancelled.STOPPED
        assert wheel.stats().pending == 0


def test_finished_seconds_are_deleted_whole(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue_many([b"%d" % i for i in range(100)], delay=list(range(100)))
        deal(keeper)
        assert wheel.stats().slot_files == 100
        clock.advance(50)
        batch = keeper.claim()
        keeper.ack(batch[1:])
        clock.advance(10)
        keeper.claim()
        deal(keeper)
        left = {p.name for p in wheel_dir.glob("laps/*/*.slot")}
        # Claimed and not acknowledged: the first second, and the ten just claimed; and what is not due yet.
        assert len(left) == 1 + 10 + 39
        assert wheel.stats().pending == 50


def test_after_everything_fired_and_a_clean_close_nothing_is_left(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(500)], delay=[i * 17 for i in range(500)])
    for _ in range(3):
        with open_keeper(wheel_dir, clock) as keeper:
            clock.advance(4000)
            while batch := keeper.claim(40):
                keeper.ack(batch)
    with open_keeper(wheel_dir, clock):
        pass
    assert sorted(os.listdir(wheel_dir / "journal")) == []
    assert sorted(os.listdir(wheel_dir / "laps")) == []


def test_memory_for_what_is_due_is_bounded_and_firing_stays_in_order(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel:
        with open_keeper(wheel_dir, clock, budget=Budget(records=64, bytes=1 << 20)) as keeper:
            keeper.claim(1)
            # Far more than the budget, all due before what is in memory, from the latest to the earliest.
            for i in range(40, 0, -1):
                wheel.enqueue_many(
                    [b"%05d" % (i * 100 + j) for j in range(100)], delay=[j - 100 * (41 - i) for j in range(100)]
                )
                keeper._store.ingest()
                assert len(keeper._head.ready) <= 64
            deal(keeper)
            fired = []
            while batch := keeper.claim(50):
                assert len(keeper._head.ready) <= 128
                fired += [m.due_us for m in batch]
                keeper.ack(batch)
            assert len(fired) == 4000
            assert wheel.stats().pending == 0


def test_a_dense_second_streams_in_order_within_the_budget(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel:
        moment = clock.wall_us / 1e6 + 100
        for _ in range(20):
            wheel.enqueue_many([b"x" * 50] * 1000, at=moment)
        with open_keeper(wheel_dir, clock, budget=Budget(records=1000, bytes=1 << 20)) as keeper:
            deal(keeper)
            assert wheel.stats().slot_files == 1
            clock.advance(101)
            ids: list[bytes] = []
            while batch := keeper.claim(300):
                assert len(keeper._head.ready) <= 2000
                ids += batch.ids
                keeper.ack(batch)
            assert ids == sorted(ids)
            assert len(set(ids)) == 20_000


def test_batches_wait_for_what_comes_and_end_when_the_keeper_is_closed(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        keeper = Keeper(wheel_dir)
        fired: list[Message] = []

        def consume() -> None:
            for batch in keeper.batches():
                fired.extend(batch)
                keeper.ack(batch)

        thread = threading.Thread(target=consume)
        thread.start()
        wheel.enqueue(b"soon", delay=0.3)
        wheel.enqueue(b"now")
        deadline = time.monotonic() + 10
        while len(fired) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        keeper.close()
        thread.join(120)
        assert not thread.is_alive()
        assert payloads(fired) == [b"now", b"soon"]


def test_a_second_keeper_in_another_handle_is_refused_by_name_or_waits(wheel_dir: Path) -> None:
    with (
        Keeper(wheel_dir),
        pytest.raises(Locked, match=rf"this very process \({os.getpid()}\) is the keeper\. Try: close the keeper that"),
    ):
        Keeper(wheel_dir, wait=False)
    with pytest.raises(Closed):
        keeper = Keeper(wheel_dir, wait=False)
        keeper.close()
        keeper.claim()


def test_a_clock_that_goes_back_fires_nothing_early_and_nothing_twice(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue(b"a", delay=1)
        wheel.enqueue(b"b", delay=3)
        clock.advance(1)
        keeper.ack(keeper.claim())
        clock.step(-3600)
        assert not keeper.claim()
        assert "the clock went back by 3600 s" in caplog.text
        clock.advance(3601.999999)
        assert not keeper.claim()
        clock.advance(0.000001)
        assert payloads(keeper.claim()) == [b"b"]


def test_a_jump_ahead_is_logged_loudly_and_fires_or_holds_as_told(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"a", b"b"], delay=[7200, 10])
        with open_keeper(wheel_dir, clock, on_jump="hold") as keeper:
            keeper.claim()
            clock.step(10 * 365 * 86_400)
            assert not keeper.claim()
            assert any(r.levelno == logging.CRITICAL and "jumped ahead" in r.message for r in caplog.records)
            clock.advance(10)
            assert payloads(keeper.claim()) == [b"b"]
        with open_keeper(wheel_dir, clock) as keeper:
            assert payloads(keeper.claim()) == [b"b", b"a"]
    caplog.clear()
    with open_keeper(wheel_dir, clock) as keeper:
        keeper.claim()
        clock.advance(8 * 3600)  # the machine slept: the steady clock counted it, and nothing is strange
        keeper.claim()
        assert "jumped" not in caplog.text


def test_while_much_waits_a_deal_follows_on_the_last_without_a_pause(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.firing.housekeeper.DEAL_PUTS", 10)
    monkeypatch.setitem(Deal.__init__.__kwdefaults__, "chunk_records", 20)
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        for _ in range(4):
            wheel.enqueue_many([b"x"] * 20, delay=7200)
        clock.advance(1)
        left = []
        for _ in range(4):  # and the clock stands still
            keeper._housekeeper.step()
            left.append(keeper._store.undealt_puts)
        assert left == [60, 40, 20, 0]


def test_segments_of_producers_that_ended_are_dealt_while_the_keeper_runs(wheel_dir: Path, clock: FakeClock) -> None:
    with open_keeper(wheel_dir, clock) as keeper:
        for i in range(70):
            with Wheel(wheel_dir, clock=clock) as wheel:
                wheel.enqueue(b"%d" % i, delay=5000)
        keeper._store.ingest(test_locks=True)
        clock.advance(1)
        keeper._housekeeper.step()
        assert len(os.listdir(wheel_dir / "journal")) <= 1
        assert len(os.listdir(wheel_dir / "laps")) == 1


def sleeps(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Take note of how long the keeper sleeps, and do not."""
    slept: list[float] = []

    def wait_hint(fd: int | None, timeout_s: float) -> bool:
        slept.append(timeout_s)
        return False

    monkeypatch.setattr(keeper._disk, "wait_hint", wait_hint)
    return slept


def test_a_keeper_that_holds_a_jump_sleeps_and_does_not_spin(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock, on_jump="hold") as keeper:
        assert not keeper.claim()
        wheel.enqueue(b"x", delay=2)
        assert not keeper.claim()
        clock.step(7200)
        assert not keeper.claim()
        slept = sleeps(keeper, monkeypatch)
        assert keeper.wait()
        assert slept == [0.5]


def test_what_memory_does_not_hold_is_claimed_without_a_sleep_in_between(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Wheel(wheel_dir, clock=clock, sync="never") as wheel,
        open_keeper(wheel_dir, clock, budget=Budget(records=20, bytes=1 << 20)) as keeper,
    ):
        wheel.enqueue_many([b"x"] * 300, delay=[i / 100 for i in range(300)])
        clock.advance(10)
        slept = sleeps(keeper, monkeypatch)
        claimed = 0
        for batch in keeper.batches(1000):
            assert not slept
            claimed += keeper.ack(batch)
            if claimed == 300:
                break


def test_after_a_batch_the_keeper_sleeps_before_it_looks_at_the_journals_again(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue(b"x")
        wheel.enqueue(b"y", delay=0.25)
        slept = sleeps(keeper, monkeypatch)
        batches = keeper.batches()
        keeper.ack(next(batches))
        passes = keeper._store.passes
        clock.advance(0.25)
        keeper.ack(next(batches))
        assert keeper._store.passes == passes + 1
        assert slept == []
        monkeypatch.setattr(keeper._disk, "wait_hint", lambda fd, timeout_s: slept.append(timeout_s) or keeper.close())
        assert list(batches) == []
        assert slept == [0.5]


def test_a_message_that_is_added_again_while_it_waits_in_memory_fires_once(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    clock = FakeClock()
    with Wheel.create(path, clock=clock) as wheel, Keeper(path, clock=clock, background=False) as keeper:
        id_ = wheel.enqueue(b"x", delay=1)
        assert len(keeper.claim()) == 0
        message = wheel.get(id_)
        assert message is not None
        write_again(path, message, times=1)
        assert len(keeper.claim()) == 0
        write_again(path, message, times=20)
        clock.advance(2)
        batch = keeper.claim()
        assert [m.id for m in batch] == [id_]
        keeper.ack(batch)
        assert len(keeper.claim()) == 0
        assert keeper._head.ready.waiting == {}


def write_again(path: Path, message: Message, *, times: int) -> None:
    """Write a put that is there already, as a replicator may."""
    directory = open_directory(path, write=True)
    journal = Journal(directory)
    journal.append([pack_message(message)] * times, times)
    journal.close()
    directory.disk.release()


def test_a_message_that_was_added_twice_and_fired_stays_gone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    clock = FakeClock()
    with Wheel.create(path, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=60)
        with Keeper(path, clock=clock, background=False) as keeper:
            keeper._housekeeper.deal_all()
            message = next(iter(wheel.snapshot().messages()))
            assert wheel.add([message]) == 1
            clock.advance(61)
            keeper.ack(keeper.claim())
        with Keeper(path, clock=clock, background=False) as keeper:
            assert len(keeper.claim()) == 0


def test_a_message_that_was_given_back_while_the_keeper_ran_and_fired_stays_gone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    clock = FakeClock()
    with Wheel.create(path, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=60)
        with Keeper(path, clock=clock, background=False) as keeper:
            keeper._housekeeper.deal_all()
            message = next(iter(wheel.snapshot().messages()))
            note_repeats(open_directory(path, write=True).disk)  # as who gives a message back
            write_again(path, message, times=1)
            clock.advance(61)
            keeper.ack(keeper.claim())
        with Keeper(path, clock=clock, background=False) as keeper:
            assert len(keeper.claim()) == 0


def test_a_drop_that_has_met_one_copy_of_its_message_in_a_deal_is_kept_for_one_that_the_next_deals(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.wheel"
    clock = FakeClock()
    with Wheel.create(path, clock=clock) as wheel, Wheel.create(tmp_path / "other", clock=clock) as other:
        other.enqueue(b"x", delay=60)
        (message,) = other.list()
        note_repeats(open_directory(path, write=True).disk)
        with Keeper(path, clock=clock, background=False) as keeper:
            write_again(path, message, times=1)
            keeper.claim()
            assert wheel.cancel(message.id)
            keeper.claim()
            write_again(path, message, times=1)
            keeper.claim()
            Deal(keeper._store, spread=True, finished=keeper._head.finished, chunk_records=2).run()
            assert keeper._store.has_undealt(), "the test shows nothing"
        clock.advance(61)
        with Keeper(path, clock=clock, background=False) as keeper:
            assert not keeper.claim()


def test_the_next_lap_is_one_file_until_two_minutes_before_it_begins_and_then_seconds(tmp_path: Path) -> None:
    clock = FakeClock()
    lap_us = 900 * US_PER_S
    clock.advance((lap_us - clock.now_us() % lap_us + lap_us // 3) / US_PER_S)  # a third of a lap has passed
    path = tmp_path / "wheel"
    with Wheel.create(path, clock=clock) as wheel, open_keeper(path, clock) as keeper:
        now, soon = (wheel.enqueue(b"x", delay=delay) for delay in (200, 900))
        deal(keeper)
        laps = [id_.due_us // lap_us for id_ in (now, soon)]
        assert laps[1] == laps[0] + 1
        assert [p.name for p in path.glob("laps/*.lap")] == [f"{laps[1]}-1.lap"]
        assert len(list(path.glob("laps/*/*.slot"))) == 1
        clock.advance(370)
        keeper.claim()
        keeper._housekeeper.step()
        assert list(path.glob("laps/*.lap")), "too early"
        clock.advance(111)
        keeper._housekeeper.step()
        assert not list(path.glob("laps/*.lap"))
        assert list(path.joinpath("laps", str(laps[1])).glob(f"{soon.due_us // US_PER_S}-*.slot"))
