"""Unique keys: at most one message with a key lives, whoever enqueues, retries, moves, dies or compacts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import (
    AsyncWheel,
    BadArgument,
    FilewheelError,
    Keeper,
    KeyHeld,
    Locked,
    Message,
    MessageId,
    NotClaimed,
    NotFound,
    Scheduler,
    TooLarge,
    Wheel,
    WheelFull,
)
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.locks import HeldLocks, number_of, take_keys
from filewheel.firing.housekeeper import TIDY_KEYS_US
from filewheel.format import layout
from filewheel.format.key_entries import ENTRY_BYTES, KeyEntry, UnreadableBytes, entries, listed, pack_entry
from filewheel.format.record import key_of, pack_message
from filewheel.format.settings import Settings
from filewheel.keys.index import LISTED_EACH_MAX, Keys
from filewheel.keys.upkeep import LISTED_MAX, Compactor
from filewheel.laps.deal import Deal
from filewheel.message import KEY
from filewheel.tools.dump import dump
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import FakeClock, FaultyDisk, spawn


def living(path: Path, key: str) -> list[Message]:
    """Return the messages that live and have a key, by a walk over everything: the index is not asked."""
    with Wheel(path) as reader:
        return [m for m in reader.list() if m.headers.get(KEY) == key]


def bucket_of(path: Path, key: str) -> Path:
    """Return the file in which a key is listed."""
    keys = Keys(open_directory(path, write=False))
    return path / layout.key_file(keys.hash_of(key)[0])


def lock_of(path: Path, key: str) -> HeldLocks:
    """Take the lock of a key, as a producer has it that was stopped in the middle of an enqueue."""
    held = HeldLocks(open_directory(path, write=True))
    assert not take_keys(held, [held._dir.settings.key_hash(key)], 0)
    return held


def deal(path: Path) -> None:
    """Deal everything, as a keeper does that comes and goes."""
    Keeper(path).close()


# -- the policies --------------------------------------------------------------------------------------------


def test_a_key_that_is_held_is_rejected_and_the_error_names_the_message(wheel: Wheel) -> None:
    first = wheel.enqueue(b"1", delay=60, key="report")
    with pytest.raises(KeyHeld, match="'report' is held by the message") as caught:
        wheel.enqueue(b"2", key="report")
    assert (caught.value.id, caught.value.key) == (first, "report")
    assert [m.id for m in wheel.list()] == [first]
    assert wheel.get(first).headers == {KEY: "report"}  # type: ignore[union-attr]


def test_keep_returns_the_message_that_holds_the_key_and_enqueues_nothing(wheel: Wheel) -> None:
    first = wheel.enqueue(b"1", delay=60, key="report", on_conflict="keep")
    assert wheel.enqueue(b"2", key="report", on_conflict="keep") == first
    assert [m.payload for m in wheel.list()] == [b"1"]


def test_replace_cancels_the_one_and_enqueues_the_other(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    first = wheel.enqueue(b"1", delay=5, key="report")
    second = wheel.enqueue(b"2", delay=10, key="report", on_conflict="replace")
    assert wheel.get(first) is None
    assert wheel.get(key="report").id == second  # type: ignore[union-attr]
    clock.advance(20)
    assert [m.payload for m in keeper.claim()] == [b"2"]


def test_other_keys_and_messages_without_one_are_not_touched(wheel: Wheel) -> None:
    for i in range(300):
        wheel.enqueue(b"%d" % i, delay=60, key=f"k{i}", sync="never")
        wheel.enqueue(b"plain", delay=60, sync="never")
    assert wheel.stats().pending == 600
    for i in range(300):
        found = wheel.get(key=f"k{i}")
        assert found is not None
        assert found.payload == b"%d" % i


def test_a_debounced_storm_leaves_the_last_one_and_a_short_list(wheel: Wheel, wheel_dir: Path) -> None:
    for i in range(500):
        wheel.enqueue(b"%d" % i, delay=60 + i, key="typing", on_conflict="replace", sync="never")
    assert [m.payload for m in living(wheel_dir, "typing")] == [b"499"]
    # Also where no keeper runs: a handle forgets what has ended. A deal enters the one that is left.
    assert len(wheel._keys.ids_of("typing")) <= LISTED_EACH_MAX + 2
    deal(wheel_dir)
    assert bucket_of(wheel_dir, "typing").stat().st_size == ENTRY_BYTES


def test_the_header_of_a_message_that_was_printed_is_its_key(wheel: Wheel) -> None:
    first = wheel.enqueue(b"1", delay=60, headers={KEY: "report", "to": "ann"})
    assert wheel.get(key="report").headers == {KEY: "report", "to": "ann"}  # type: ignore[union-attr]
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"2", headers={KEY: "report"})
    assert wheel.enqueue(b"2", headers={KEY: "report"}, key="report", on_conflict="keep") == first
    with pytest.raises(BadArgument, match="the header"):
        wheel.enqueue(b"2", headers={KEY: "report"}, key="other")
    with pytest.raises(BadArgument, match="goes alone"):
        wheel.enqueue_many([b"2"], headers={KEY: "another"})
    with pytest.raises(BadArgument, match="goes alone"):
        wheel.enqueue_many([b"2", b"3"], headers=[{KEY: "another"}, {}])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": ""}, BadArgument),
        ({"key": 5}, BadArgument),
        ({"key": b"x"}, BadArgument),
        ({"key": "é" * 128}, TooLarge),
        ({"key": "\udcff"}, BadArgument),
        ({"key": "x", "on_conflict": "ignore"}, BadArgument),
        ({"on_conflict": "replace"}, BadArgument),
        ({"on_conflict": "nonsense"}, BadArgument),
        ({"key": "x", "topic": "t" * 256}, TooLarge),
        ({"key": "x", "headers": {str(i): "" for i in range(65)}}, TooLarge),
    ],
)
def test_what_cannot_be_a_key_is_an_argument_error_and_nothing_is_done(
    wheel: Wheel, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        wheel.enqueue(b"x", **options)  # type: ignore[arg-type]
    assert wheel.stats().pending == 0


@pytest.mark.parametrize("key", ["filewheel.result:01MXD0436G00BX699GTW05FHEY", "filewheel.every:nightly"])
def test_the_key_of_a_result_or_a_schedule_is_taken_by_no_other_message(wheel: Wheel, key: str) -> None:
    scheduler = Scheduler(wheel.path)
    job = scheduler.on("job")(print)
    for take in (
        lambda: wheel.enqueue(b"x", key=key),
        lambda: wheel.enqueue(b"x", headers={"filewheel.key": key}),
        lambda: wheel.enqueue_many([b"x"], keys=[key]),
        lambda: wheel.check_message(b"x", key=key),
        lambda: scheduler.enqueue("job", key=key),
        lambda: job.map([()], keys=[key]),
    ):
        with pytest.raises(BadArgument, match="a schedule or a result"):
            take()
    assert wheel.stats().pending == 0
    scheduler.stop()


def test_a_key_has_up_to_255_bytes(wheel: Wheel) -> None:
    longest = "é" * 127 + "x"
    id_ = wheel.enqueue(b"x", delay=60, key=longest)
    assert wheel.get(key=longest).id == id_  # type: ignore[union-attr]


@pytest.mark.parametrize("call", ["get", "cancel"])
def test_an_id_or_a_key_is_given_and_only_one_of_them(wheel: Wheel, call: str) -> None:
    id_ = wheel.enqueue(b"x", delay=60, key="k")
    for options in ({}, {"id_": id_, "key": "k"}, {"key": ""}):
        with pytest.raises(BadArgument):
            getattr(wheel, call)(**options)
    with pytest.raises(BadArgument):
        wheel.reschedule(delay=5)  # type: ignore[call-overload]


# -- what ends a message releases its key --------------------------------------------------------------------


def test_an_acknowledged_message_has_let_go_of_its_key(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue(b"1", key="report")
    batch = keeper.claim()
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"2", key="report")
    keeper.ack(batch)
    assert wheel.get(key="report") is None
    wheel.enqueue(b"2", key="report")
    assert [m.payload for m in keeper.claim()] == [b"2"]


def test_a_cancelled_message_has_let_go_of_its_key(wheel: Wheel) -> None:
    wheel.cancel(wheel.enqueue(b"1", delay=60, key="report"))
    wheel.enqueue(b"2", delay=60, key="report")
    assert wheel.cancel(key="report")
    assert not wheel.cancel(key="report")
    wheel.enqueue(b"3", delay=60, key="report")
    assert [m.payload for m in wheel.list()] == [b"3"]


def test_a_dead_letter_has_let_go_of_its_key_and_takes_it_again_when_it_is_revived(
    wheel: Wheel, keeper: Keeper, wheel_dir: Path
) -> None:
    wheel.enqueue(b"1", key="report")
    dead = keeper.bury(keeper.claim()[0])
    assert dead is not None
    assert wheel.get(key="report") is None
    second = wheel.enqueue(b"2", delay=60, key="report")
    with pytest.raises(KeyHeld) as caught:
        wheel.reschedule(dead, delay=5)
    assert caught.value.id == second
    assert wheel.get(dead) is not None
    wheel.cancel(second)
    revived = wheel.reschedule(dead, delay=5)
    assert wheel.get(key="report").id == revived  # type: ignore[union-attr]
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"3", key="report")
    assert [m.id for m in living(wheel_dir, "report")] == [revived]


def test_a_key_that_was_dealt_fired_and_expired_is_free(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    for round_ in range(5):
        wheel.enqueue(b"%d" % round_, delay=3, key="report")
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"no", key="report")
        clock.advance(10)
        keeper.ack(keeper.claim())
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


# -- what moves a message keeps its key ----------------------------------------------------------------------


def test_a_retried_message_keeps_its_key(wheel: Wheel, keeper: Keeper, clock: FakeClock, wheel_dir: Path) -> None:
    wheel.enqueue(b"1", key="report")
    for _ in range(3):
        new = keeper.nack(keeper.claim()[0], delay=5)
        assert wheel.get(key="report").id == new  # type: ignore[union-attr]
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"2", key="report")
        clock.advance(5)
    assert len(living(wheel_dir, "report")) == 1


def test_a_rescheduled_message_keeps_its_key_by_id_and_by_key(wheel: Wheel) -> None:
    first = wheel.enqueue(b"1", delay=60, key="report")
    second = wheel.reschedule(first, delay=90)
    assert wheel.get(key="report").id == second  # type: ignore[union-attr]
    third = wheel.reschedule(key="report", delay=120, sync="never")
    assert wheel.get(key="report").id == third  # type: ignore[union-attr]
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"2", key="report")
    with pytest.raises(NotFound, match="no message holds the key"):
        wheel.reschedule(key="nobody", delay=1)
    with pytest.raises(NotFound):
        wheel.reschedule(first, delay=1)


def test_a_message_that_is_replaced_while_it_runs_is_not_retried(wheel: Wheel, keeper: Keeper, wheel_dir: Path) -> None:
    wheel.enqueue(b"1", key="report")
    (message,) = keeper.claim()
    second = wheel.enqueue(b"2", delay=60, key="report", on_conflict="replace")
    assert keeper.nack(message) is None
    assert [m.id for m in living(wheel_dir, "report")] == [second]


def test_cancel_by_key_finds_a_message_that_was_retried(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    first = wheel.enqueue(b"1", key="report")
    keeper.nack(keeper.claim()[0], delay=100)
    assert wheel.cancel(key="report")
    assert wheel.get(first) is None
    clock.advance(200)
    assert not keeper.claim()


# -- a keeper does not wait for a producer that was stopped --------------------------------------------------


def test_while_another_is_busy_with_the_key_a_retry_waits_and_the_keeper_does_not(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = wheel.enqueue(b"1", key="report")
    wheel.enqueue(b"other")
    message, other = keeper.claim()
    held = lock_of(wheel_dir, "report")
    with monkeypatch.context() as patched:
        patched.setattr("filewheel.disk.locks._PAUSE_S", "a keeper does not wait")
        new = keeper.nack(message, delay=5)
    assert new is not None
    keeper.ack(other)
    assert not keeper.claim()
    assert [m.id for m in living(wheel_dir, "report")] == [first]
    with pytest.raises(NotClaimed):
        keeper.nack(message)
    with pytest.raises(NotClaimed):
        keeper.ack(message)
    held.close()
    keeper.claim()
    assert [m.id for m in living(wheel_dir, "report")] == [new]
    clock.advance(5)
    assert [(m.id, m.attempt) for m in keeper.claim()] == [(new, 1)]


def test_a_batch_that_is_acknowledged_leaves_alone_what_waits_to_be_retried(
    wheel: Wheel, keeper: Keeper, wheel_dir: Path
) -> None:
    wheel.enqueue(b"1", key="report")
    wheel.enqueue(b"2")
    batch = keeper.claim()
    held = lock_of(wheel_dir, "report")
    new = keeper.nack(batch[0], delay=5)
    assert keeper.ack(batch) == 1
    held.close()
    keeper.claim()
    assert [m.id for m in wheel.list()] == [new]


def test_a_cancel_wins_over_a_retry_that_waits(wheel: Wheel, keeper: Keeper, wheel_dir: Path) -> None:
    first = wheel.enqueue(b"1", key="report")
    (message,) = keeper.claim()
    held = lock_of(wheel_dir, "report")
    assert keeper.nack(message) is not None
    wheel.cancel(first)
    held.close()
    assert not keeper.claim()
    assert not living(wheel_dir, "report")
    wheel.enqueue(b"2", delay=60, key="report")


def test_a_retry_that_waits_when_the_keeper_closes_is_done_or_offered_again(
    wheel: Wheel, clock: FakeClock, wheel_dir: Path
) -> None:
    hash_of = wheel._keys.hash_of
    other = next(k for k in "bcdefgh" if number_of(hash_of(k)) != number_of(hash_of("a")))  # one lock for each
    wheel.enqueue(b"1", key="a")
    wheel.enqueue(b"2", key=other)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        one, two = keeper.claim()
        a = lock_of(wheel_dir, "a")
        b = lock_of(wheel_dir, other)
        new = keeper.nack(one, delay=5)
        keeper.nack(two, delay=5)
        a.close()
    assert [m.id for m in living(wheel_dir, "a")] == [new]
    b.close()
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        assert [m.id for m in keeper.claim()] == [two.id]


def test_a_producer_that_waits_for_a_stopped_one_gives_up_and_says_so(
    wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.disk.locks.WAIT_S", 0.02)
    held = lock_of(wheel_dir, "report")
    with pytest.raises(Locked, match="busy with the key 'report'"):
        wheel.enqueue(b"1", key="report")
    held.close()
    wheel.enqueue(b"1", key="report")


def test_a_retry_on_a_full_disk_leaves_the_message_claimed(wheel_dir: Path, clock: FakeClock, wheel: Wheel) -> None:
    full = False

    def fail(kind: str, name: str) -> None:
        if full and (kind == "pwrite" or (kind == "open" and name.endswith(".lock"))):
            raise OSError(28, "No space left on device")

    wheel.enqueue(b"1", key="report")
    with Keeper(
        wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    ) as keeper:
        (message,) = keeper.claim()
        full = True
        with pytest.raises(WheelFull):
            keeper.nack(message, delay=5)
        full = False
        new = keeper.nack(message, delay=5)
        assert [m.id for m in living(wheel_dir, "report")] == [new]


def test_a_key_whose_message_moves_while_it_is_looked_for_is_found(
    wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.enqueue(b"1", delay=60, key="report")
    deal(wheel_dir)
    keys = Keys(open_directory(wheel_dir, write=False))
    real, moves = keys.read, iter([70])

    def read(bucket: int) -> bytes:
        for delay in moves:  # the journals were read; now the old id goes from the index too
            wheel.reschedule(key="report", delay=delay)
            directory = open_directory(wheel_dir, write=True)
            Compactor(Keys(directory)).compact(keys.hash_of("report")[0], 10**18)
        return real(bucket)

    monkeypatch.setattr(keys, "read", read)
    assert keys.find(["report"])["report"].id == wheel.get(key="report").id  # type: ignore[union-attr]


def test_a_message_that_moves_while_it_is_cancelled_by_its_key_is_cancelled(
    wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.enqueue(b"1", delay=60, key="report")
    real, moves = wheel._keys.find, iter([70, 80])

    def find(names: list[str]) -> object:
        found = real(names)
        for delay in moves:
            with Wheel(wheel_dir, clock=wheel._clock) as other:
                other.reschedule(key="report", delay=delay)
            break
        return found

    monkeypatch.setattr(wheel._keys, "find", find)
    assert wheel.cancel(key="report")
    assert not living(wheel_dir, "report")


def test_a_handle_sees_what_deals_have_entered_since_it_read_the_index(wheel: Wheel, wheel_dir: Path) -> None:
    for name in _some(wheel._keys, 5):
        with Wheel(wheel_dir) as other:
            other.enqueue(b"x", delay=60, key=name)
        deal(wheel_dir)
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"y", key=name)


def test_two_keys_with_one_hash_do_not_hold_each_other(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "key_hash", lambda self, key: b"\x07" * 16)
    wheel._keys.hash_of = wheel._dir.settings.key_hash  # type: ignore[method-assign]
    one, two = (wheel.enqueue(b"x", delay=60, key=key) for key in ("one", "two"))
    assert [wheel.get(key=key).id for key in ("one", "two")] == [one, two]  # type: ignore[union-attr]
    for key in ("one", "two"):
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"x", key=key)


def test_of_several_tasks_those_are_told_to_wait_whose_key_another_process_has(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.disk.locks.WAIT_S", 0.02)
    names = [f"k{i}" for i in range(40)]
    held = lock_of(wheel_dir, names[0])
    hash_of = held._dir.settings.key_hash
    busy = {n for n in names if number_of(hash_of(n)) == number_of(hash_of(names[0]))}

    async def body() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            calls = [wheel.enqueue(b"x", delay=60, key=name) for name in names]
            made = await asyncio.gather(*calls, return_exceptions=True)
            assert {n for n, one in zip(names, made, strict=True) if isinstance(one, Locked)} == busy
            held.close()
            await wheel.enqueue_many([b"x"] * len(busy), keys=sorted(busy))

    asyncio.run(body())


def test_of_eight_threads_that_enqueue_one_key_exactly_one_succeeds(wheel: Wheel, wheel_dir: Path) -> None:
    def grab(_: int) -> bool:
        try:
            wheel.enqueue(b"x", delay=60, key="one")
        except KeyHeld:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(grab, range(64))) == 1
        assert len(list(pool.map(lambda _: wheel.enqueue(b"y", key="one", on_conflict="replace"), range(64)))) == 64
    assert len(living(wheel_dir, "one")) == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("act", ["enqueue", "replace", "reschedule", "cancel"])
def test_whichever_call_of_the_system_fails_at_most_one_lives_and_the_index_names_it(
    tmp_path: Path, clock: FakeClock, act: str, code: int
) -> None:
    done = False
    at = 0
    while not done:
        at += 1
        path = tmp_path / f"{at}.wheel"
        Wheel.create(path, clock=clock).close()
        calls = -(10**9)

        def fail(kind: str, name: str, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(code, os.strerror(code), name)

        with Wheel(path, clock=clock) as other:
            if act != "enqueue":
                other.enqueue(b"1", delay=60, key="one")
            broken = Wheel(path, clock=clock, env=SYSTEM.using(disk=lambda where, fail=fail: FaultyDisk(where, fail)))
            calls = 0
            try:
                if act == "reschedule":
                    broken.reschedule(key="one", delay=70)
                elif act == "cancel":
                    broken.cancel(key="one")
                else:
                    broken.enqueue(b"2", delay=60, key="one", on_conflict="replace")
                done = calls < at
            except FilewheelError:
                pass
            calls = 10**9
            with contextlib.suppress(FilewheelError):
                broken.close()
            alive = living(path, "one")
            assert len(alive) <= 1
            found = other.get(key="one")
            assert [found and found.id] == [m.id for m in alive] or (found is None and not alive)
            if alive:
                with pytest.raises(KeyHeld):
                    other.enqueue(b"3", key="one")
            else:
                other.enqueue(b"3", key="one")
    assert at > 5


# -- crashes and damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 17, 39])
def test_a_torn_entry_hides_no_other(wheel: Wheel, wheel_dir: Path, cut: int) -> None:
    first = wheel.enqueue(b"1", delay=60, key="report")
    deal(wheel_dir)
    place = bucket_of(wheel_dir, "report")
    data = place.read_bytes()
    torn = data[: cut - 1] + bytes([data[cut - 1] ^ 1])  # or the next byte of the file may complete it
    place.write_bytes(data + torn)
    second = wheel.reschedule(first, delay=70)
    deal(wheel_dir)
    third = wheel.reschedule(second, delay=80)
    deal(wheel_dir)
    assert wheel.get(key="report").id == third  # type: ignore[union-attr]
    report = verify(open_directory(wheel_dir, write=False))
    assert [(f.kind, f.name, f.offset) for f in report.findings] == [("note", f"keys/{place.name}", ENTRY_BYTES)]


@pytest.mark.parametrize("how", ["flipped", "zeroed", "file removed", "keys/ removed"])
def test_a_damaged_index_is_damage_to_verify_and_repair_enters_every_key_anew(
    wheel: Wheel, wheel_dir: Path, how: str
) -> None:
    wheel.enqueue(b"1", delay=60, key="report")
    wheel.enqueue(b"1", delay=60, key="other")
    wheel.close()
    deal(wheel_dir)
    place = bucket_of(wheel_dir, "report")
    are_together = place == bucket_of(wheel_dir, "other")  # in one of 256 wheels
    data = bytearray(place.read_bytes())
    data[10] ^= 1
    if how == "keys/ removed":
        shutil.rmtree(wheel_dir / "keys")
    elif how == "file removed":
        place.unlink()
    else:
        place.write_bytes(data if how == "flipped" else bytes(len(data)))
    report = verify(open_directory(wheel_dir, write=False))
    assert f"keys/{place.name}" in {f.name for f in report.damage}
    assert all("not listed under their unique keys" in f.what for f in report.damage)
    with Wheel(wheel_dir) as reader:
        assert reader.get(key="report") is None
    count = 2 if how == "keys/ removed" or (are_together and how != "flipped") else 1
    assert repair(open_directory(wheel_dir, write=True)).done == [f"{count} keys were entered again"]
    assert not verify(open_directory(wheel_dir, write=False)).findings
    assert not repair(open_directory(wheel_dir, write=True)).done
    with Wheel(wheel_dir) as again, pytest.raises(KeyHeld):
        again.enqueue(b"2", key="report")


def test_what_ended_with_a_key_and_is_not_listed_any_more_is_no_damage(
    wheel: Wheel, keeper: Keeper, wheel_dir: Path
) -> None:
    wheel.enqueue(b"1", key="report")
    wheel.cancel(key="report")
    wheel.enqueue(b"2", key="report")
    keeper.bury(keeper.claim()[0])
    Deal(keeper._store, spread=False).run()
    assert not bucket_of(wheel_dir, "report").exists()
    assert not verify(open_directory(wheel_dir, write=False)).damage


def test_foreign_files_among_the_keys_are_left_alone(wheel: Wheel, wheel_dir: Path) -> None:
    wheel.enqueue(b"1", delay=60, key="report")
    (wheel_dir / "keys" / "notes.txt").write_text("mine")
    (wheel_dir / "keys" / "zz.keys").write_text("mine")
    found = {(f.kind, f.name) for f in verify(open_directory(wheel_dir, write=False)).findings}
    assert found == {("note", "keys/notes.txt"), ("note", "keys/zz.keys")}


@pytest.mark.damages
def test_a_link_in_place_of_a_bucket_is_not_followed(wheel: Wheel, wheel_dir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    wheel.enqueue(b"0", delay=60, key="other")
    bucket_of(wheel_dir, "report").unlink(missing_ok=True)
    bucket_of(wheel_dir, "report").symlink_to(outside)
    with pytest.raises(Exception, match="not a regular file"):
        wheel.enqueue(b"1", key="report")
    assert outside.read_bytes() == b""


def test_a_drop_that_frees_a_key_is_made_durable_before_the_key_is_taken(wheel_dir: Path, clock: FakeClock) -> None:
    calls: list[tuple[str, str]] = []
    with (
        Wheel(
            wheel_dir,
            clock=clock,
            env=SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call))),
        ) as one,
        Wheel(wheel_dir, clock=clock) as other,
    ):
        first = one.enqueue(b"1", delay=60, key="report")
        other.cancel(first, sync="never")
        calls.clear()
        with pytest.raises(KeyHeld):
            one.enqueue(b"2", delay=60, key="report")
            one.enqueue(b"3", delay=60, key="report")
        assert one._journal is not None
        assert other._journal is not None
        # A segment is written through the descriptor that it had under its temporary name.
        mine, others = layout.segment_tmp(one._journal.writer, 1), layout.segment(other._journal.writer, 1)
        assert calls.index(("fdatasync", others)) < calls.index(("pwrite", mine))


def test_a_writer_that_replaces_what_it_made_durable_itself_flushes_only_the_frame(
    wheel_dir: Path, clock: FakeClock
) -> None:
    calls: list[str] = []
    with Wheel(
        wheel_dir,
        clock=clock,
        env=SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call[0]))),
    ) as wheel:
        for i in range(10):
            wheel.enqueue(b"%d" % i, delay=60, key="typing", on_conflict="replace")
        calls.clear()
        for i in range(10):
            wheel.enqueue(b"%d" % i, delay=60, key="typing", on_conflict="replace")
        assert [c for c in calls if c in ("fdatasync", "sync_all", "sync_dir")] == ["fdatasync"] * 10


# -- processes -----------------------------------------------------------------------------------------------

GRABBER = """
import sys
from filewheel import KeyHeld, Wheel
path, count, policy = sys.argv[1], int(sys.argv[2]), sys.argv[3]
taken = 0
with Wheel(path) as wheel:
    for i in range(count):
        try:
            wheel.enqueue(b"x", delay=3600, key="one", on_conflict=policy)
            taken += 1
        except KeyHeld:
            pass
print(taken)
"""


def test_of_eight_processes_that_enqueue_one_key_exactly_one_succeeds(wheel_dir: Path) -> None:
    children = [spawn(GRABBER, wheel_dir, 50, "reject") for _ in range(8)]
    taken = [int(child.communicate(timeout=120)[0]) for child in children]
    assert sum(taken) == 1
    assert len(living(wheel_dir, "one")) == 1


def test_of_a_storm_of_processes_that_replace_one_key_one_message_is_left(wheel_dir: Path) -> None:
    children = [spawn(GRABBER, wheel_dir, 60, "replace") for _ in range(4)]
    with Keeper(wheel_dir):
        assert all(int(child.communicate(timeout=120)[0]) == 60 for child in children)
    assert len(living(wheel_dir, "one")) == 1


RETRIER = """
import sys
from filewheel import Keeper
with Keeper(sys.argv[1]) as keeper:
    print("up", flush=True)
    for batch in keeper.batches():
        for message in batch:
            keeper.nack(message, delay=0.001)
"""


def test_what_is_retried_and_replaced_at_once_and_killed_again_and_again_stays_one(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        for _ in range(3):
            child = spawn(RETRIER, wheel_dir)
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            for i in range(40):
                wheel.enqueue(b"%d" % i, key="one", on_conflict="replace", sync="never")
                if i % 8 == 0:
                    wheel.reschedule(key="one", delay=0.002)
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            assert len(living(wheel_dir, "one")) == 1


# -- add and load --------------------------------------------------------------------------------------------


def test_messages_that_are_added_take_their_keys_and_a_conflict_adds_nothing(tmp_path: Path, wheel: Wheel) -> None:
    first = wheel.enqueue(b"1", delay=60, key="report")
    wheel.enqueue(b"plain", delay=70)
    messages = list(dump(wheel))
    assert wheel.add(messages) == 2  # they are here already
    Wheel.create(tmp_path / "copy.wheel").close()
    with Wheel(tmp_path / "copy.wheel") as copy:
        assert copy.add(messages) == 2
        assert copy.get(key="report").id == first  # type: ignore[union-attr]
        with pytest.raises(KeyHeld):
            copy.enqueue(b"2", key="report")
        copy.cancel(first)
        other = copy.enqueue(b"other", delay=5, key="report")
        copy.cancel(messages[1].id)
        assert copy.add(messages) == 0  # they have ended here
        wheel.reschedule(key="report", delay=90)
        with pytest.raises(KeyHeld, match="nothing was added"):
            copy.add(dump(wheel))
        assert [m.id for m in copy.list()] == [other]


def test_two_messages_of_one_key_cannot_be_added_together(wheel: Wheel) -> None:
    twins = [Message(MessageId.make(10**15 + i, 1, i), b"x", headers={KEY: "one"}) for i in range(2)]
    with pytest.raises(KeyHeld):
        wheel.add(twins)
    assert wheel.add(twins[:1]) == 1


def test_many_keys_are_added_at_once(wheel: Wheel) -> None:
    many = [Message(MessageId.make(10**15 + i, 1, i), b"x", headers={KEY: f"k{i}"}) for i in range(400)]
    assert wheel.add(many) == 400
    assert all(wheel.get(key=f"k{i}").id == many[i].id for i in range(0, 400, 40))  # type: ignore[union-attr]


def test_a_dead_letter_that_is_added_takes_no_key(wheel: Wheel, keeper: Keeper, tmp_path: Path) -> None:
    wheel.enqueue(b"1", key="report")
    keeper.bury(keeper.claim()[0])
    (dead,) = wheel.list(dead=True)
    with Wheel.create(tmp_path / "other") as other:  # what is pending here already would be left out
        holder = other.enqueue(b"2", delay=60, key="report")
        assert other.add([dead]) == 1
        assert [m.id for m in other.list(dead=True)] == [dead.id]
        assert other.get(key="report").id == holder  # type: ignore[union-attr]
    assert_whole(tmp_path / "other")


# -- compaction ----------------------------------------------------------------------------------------------


def _some(keys: Keys, count: int) -> list[str]:
    """Return keys that lie in one bucket, the seventh."""
    found: list[str] = []
    i = 0
    while len(found) < count:
        if keys.hash_of(f"k{i}")[0] == 7:
            found.append(f"k{i}")
        i += 1
    return found


def test_compaction_keeps_what_may_hold_a_key_and_leaves_out_the_rest(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, wheel_dir: Path
) -> None:
    names = _some(wheel._keys, LISTED_MAX + 4)
    for name in names[:-4]:
        wheel.enqueue(b"done", key=name, sync="never")
    keeper.claim(1000)
    Deal(keeper._store, spread=True).run()
    keeper.ack(list(keeper._head.claims))
    overdue = wheel.enqueue(b"overdue", key=names[-1])
    far = wheel.enqueue(b"far", delay=3600, key=names[-2])
    cancelled = wheel.enqueue(b"cancelled", delay=3600, key=names[-3])
    moved = wheel.enqueue(b"moved", delay=3600, key=names[-4])
    Deal(keeper._store, spread=True).run()
    last = wheel.reschedule(moved, delay=7200)
    Deal(keeper._store, spread=True).run()
    wheel.cancel(cancelled)
    clock.advance(5)
    clock.run_us += TIDY_KEYS_US * 8
    housekeeper = keeper._housekeeper
    for _ in range(8):
        housekeeper._looked_us = -(1 << 60)
        housekeeper._keys_tidied_us = -(1 << 60)
        housekeeper.step()
    name = layout.key_file(7)
    data = (wheel_dir / name).read_bytes()
    found = [e.id for e in entries(data, wheel._dir.seed(name)) if isinstance(e, KeyEntry)]
    # One that was cancelled and is still to come is kept without a look: compaction does not walk the backlog.
    assert found == [overdue, *sorted([far, cancelled]), last]
    assert wheel.get(key=names[-1]).id == overdue  # type: ignore[union-attr]
    assert wheel.get(key=names[-2]).id == far  # type: ignore[union-attr]
    assert wheel.get(key=names[-3]) is None
    assert wheel.get(key=names[-4]).id == last  # type: ignore[union-attr]
    wheel.enqueue(b"again", delay=60, key=names[0])
    assert not verify(wheel._dir).findings


@pytest.mark.parametrize("at", ["sync_all", "pwrite", "fdatasync", "rename", "sync_dir"])
def test_a_compaction_that_is_cut_short_anywhere_loses_nothing(
    wheel: Wheel, clock: FakeClock, wheel_dir: Path, at: str
) -> None:
    names = _some(wheel._keys, LISTED_MAX + 4)
    kept = [wheel.enqueue(b"x", delay=60, key=name, sync="never") for name in names[:3]]
    for name in names[3:]:
        wheel.enqueue(b"x", key=name, sync="never")
    deal(wheel_dir)
    for name in names[3:]:
        wheel.cancel(key=name, sync="never")
    clock.advance(5)

    def fail(kind: str, name: str) -> None:
        if kind == at:
            raise KeyboardInterrupt

    keys = Keys(open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))))
    with pytest.raises(KeyboardInterrupt):
        Compactor(keys).tidy(clock.wall_us, [7])
    for name, id_ in zip(names[:3], kept, strict=True):
        assert wheel.get(key=name).id == id_  # type: ignore[union-attr]
    assert not verify(wheel._dir).findings
    again = Compactor(Keys(open_directory(wheel_dir, write=True)))
    assert again.tidy(clock.wall_us, [7]) == (0 if at == "sync_dir" else 1)
    assert again.tidy(clock.wall_us, [7]) == 0
    wheel.reschedule(key=names[1], delay=90)
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"x", key=names[0])


@pytest.mark.parametrize("is_known", [True, False])
def test_a_compaction_keeps_the_keys_of_messages_whose_file_is_away_for_a_while(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, wheel_dir: Path, is_known: bool
) -> None:
    names = _some(wheel._keys, 3)
    for name in names:
        wheel.enqueue(b"x", delay=1, key=name, sync="never")
    Deal(keeper._store, spread=True).run()
    clock.advance(5)
    claimed = keeper.claim(1)
    keeper.ack(claimed)
    compactor = Compactor(keeper._keys)
    if is_known:  # the files were read before
        assert all(wheel.get(key=name) for name in names[1:])
        assert len(keeper._keys.find(names)) == 3
    (slot,) = wheel_dir.glob("laps/*/*.slot")
    slot.rename(wheel_dir / "away")
    compactor.compact(7, clock.wall_us)
    (wheel_dir / "away").rename(slot)
    for name in names[1:]:
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"y", key=name)
    wheel.enqueue(b"y", delay=60, key=names[0])


def test_memory_does_not_grow_with_the_keys_that_wait(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        ids = [MessageId.make(10**16 + i, 1, i) for i in range(50_000)]
        for start in range(0, len(ids), 5_000):
            part = ids[start : start + 5_000]
            wheel.add((Message(i, b"x", headers={KEY: f"k{i.due_us}"}) for i in part), sync="never")
    with Keeper(wheel_dir):
        pass  # it is dealt now
    with Wheel(wheel_dir) as wheel:
        tracemalloc.start()
        try:
            for i in range(0, 50_000, 2_000):
                with pytest.raises(KeyHeld):
                    wheel.enqueue(b"x", key=f"k{10**16 + i}")
            wheel.enqueue(b"x", key="new")
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # 50,000 keys and ids in memory would be 5 MB more. What is kept are the frames read last: 3.3 MB.
    assert held < 6 * 2**20


def test_a_key_that_is_not_dealt_takes_few_bytes_of_a_handle(wheel_dir: Path) -> None:
    count = 50_000
    with Wheel(wheel_dir, sync="never") as wheel:
        for start in range(0, count, 5_000):
            wheel.enqueue_many([b"x"] * 5_000, delay=3600, keys=[f"k{n}" for n in range(start, start + 5_000)])
    with Wheel(wheel_dir, sync="never") as wheel:
        tracemalloc.start()
        try:
            for n in range(20):
                wheel.enqueue(b"x", delay=3600, key=f"new {n}")
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"x", key=f"k{count - 1}")
    # 32 bytes each, and room to grow: 2.4 MB with all the rest. As objects they would take 9.
    assert held < 4 * 2**20


# -- the bytes -----------------------------------------------------------------------------------------------

HASHES = st.binary(min_size=16, max_size=16)


@given(st.lists(st.one_of(st.tuples(HASHES, HASHES), st.binary(max_size=60)), max_size=12), st.integers(0, 2**32 - 1))
def test_every_entry_is_found_whatever_lies_between(parts: list[tuple[bytes, bytes] | bytes], seed: int) -> None:
    one = (b"\1" * 16, b"\1" * 16)
    data = b"".join(p if isinstance(p, bytes) else pack_entry(seed, *p) for p in (one, *parts, one))
    wanted = [one, *(p for p in parts if isinstance(p, tuple)), one]
    found = list(entries(data, seed))
    assert [(e.hash, e.id) for e in found if isinstance(e, KeyEntry)] == [w for w in wanted if w[0] != bytes(16)]
    for hash_, id_ in wanted:
        assert id_ in listed(data, seed, hash_)
    assert listed(data, seed ^ 1, b"\1" * 16) == []
    covered = sum(e.end - e.offset for e in found if isinstance(e, UnreadableBytes))
    assert covered == sum(len(p) for p in parts if isinstance(p, bytes))


def test_the_key_of_a_put_is_its_header_and_not_what_its_payload_says() -> None:
    id_ = MessageId.make(10**15, 1, 1)
    assert key_of(pack_message(Message(id_, KEY.encode()))) is None
    assert key_of(pack_message(Message(id_, b"x"))) is None
    assert key_of(pack_message(Message(id_, b"x", headers={KEY: "k"}))) == "k"
    assert key_of(b"\x98" + KEY.encode()) is None
