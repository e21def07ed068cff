"""Keeper.settle: what became of a claimed message and what comes of it are one frame, whatever happens around it."""

from __future__ import annotations

import asyncio
import errno
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from filewheel import AsyncWheel, BadArgument, Damaged, Keeper, Message, NotClaimed, Wheel, WheelFull
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from filewheel.format.key_entries import BUCKET_BYTES_MAX
from filewheel.journal.settlement import Settlement, What
from filewheel.keys.unique import holding
from filewheel.message import KEY, REASON, MessageId, to_datetime
from tests.support import START_US, FakeClock, FaultyDisk


def a_message(n: int, *, due_us: int = START_US, **fields: Any) -> Message:
    return Message(MessageId.make(due_us, 77, n), b"%d" % n, **fields)


def frames(keeper: Keeper) -> int:
    """How many frames the keeper has written."""
    return keeper._store.own.appender.number


def payloads(wheel: Wheel, **which: Any) -> list[bytes]:
    return [m.payload for m in wheel.list(**which)]


def test_what_became_of_a_batch_and_all_that_comes_of_it_are_a_frame_of_what_ends_and_one_of_what_moves(
    wheel: Wheel, keeper: Keeper
) -> None:
    wheel.enqueue_many([b"ack", b"retry", b"defer", b"bury"])
    acked, retried, deferred, buried = keeper.claim()
    before = frames(keeper)
    moved_to = keeper.settle([
        Settlement(acked.id, puts=[a_message(1), a_message(2)], successor=a_message(3)),
        Settlement(retried.id, "retried", START_US + 1_000_000, puts=[a_message(4)], headers={"why": "x"}),
        Settlement(deferred.id, "deferred", START_US + 2_000_000),
        Settlement(buried.id, "buried", reason="no", successor=a_message(5)),
    ])  # fmt: skip
    assert frames(keeper) == before + 2
    assert moved_to[0] is None
    assert sorted(payloads(wheel)) == [b"1", b"2", b"3", b"4", b"5", b"defer", b"retry"]
    found = {m.payload: m for m in wheel.list()}
    assert (found[b"retry"].attempt, found[b"retry"].headers, found[b"retry"].root) == (1, {"why": "x"}, retried.id)
    assert (found[b"defer"].attempt, found[b"defer"].due_us, found[b"defer"].root) == (
        0,
        START_US + 2_000_000,
        deferred.id,
    )
    assert [found[b"retry"].id, found[b"defer"].id] == moved_to[1:3]
    (dead,) = wheel.list(dead=True)
    assert (dead.id, dead.headers[REASON], dead.due_us) == (moved_to[3], "no", START_US)


def test_what_is_put_and_due_is_claimed_next_and_an_acknowledged_one_never_again(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.enqueue(b"first")
    (first,) = keeper.claim()
    keeper.settle([Settlement(first.id, puts=[a_message(1)], successor=a_message(2, due_us=START_US + 10_000_000))])
    assert [m.payload for m in keeper.claim()] == [b"1"]
    clock.advance(10)
    assert [m.payload for m in keeper.claim()] == [b"2"]
    keeper.close()
    with Keeper(wheel_dir, clock=clock) as again:
        assert [m.payload for m in again.claim()] == [b"1", b"2"]
        again.settle(
            [Settlement(MessageId.make(START_US, 77, 1)), Settlement(MessageId.make(START_US + 10_000_000, 77, 2))]
        )


@pytest.mark.parametrize("what", ["retried", "deferred", "buried", "acked"])
def test_of_a_message_that_was_cancelled_while_it_ran_nothing_goes_on_but_what_its_transaction_enqueued(
    wheel: Wheel, keeper: Keeper, what: Any
) -> None:
    id_ = wheel.enqueue(b"x")
    keeper.claim()
    assert wheel.cancel(id_)
    settlement = Settlement(id_, what, START_US, puts=[a_message(1)], successor=a_message(2))
    assert keeper.settle([settlement]) == [None]
    assert payloads(wheel) == [b"1"]
    assert payloads(wheel, dead=True) == []


def test_after_ctrl_c_behind_the_frame_of_a_retry_the_message_is_handed_out(wheel: Wheel, keeper: Keeper) -> None:
    id_ = wheel.enqueue(b"x")
    keeper.claim()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(keeper._store, "note_own", Mock(side_effect=KeyboardInterrupt))
        keeper.nack(id_)
    keeper.ack(id_)
    (again,) = keeper.claim()
    assert (again.payload, again.attempt, again.root) == (b"x", 1, id_)


def test_what_is_not_claimed_is_refused_before_anything_is_written(wheel: Wheel, keeper: Keeper) -> None:
    waits = wheel.enqueue(b"later", delay=60)
    id_ = wheel.enqueue(b"x")
    keeper.claim()
    before = frames(keeper)
    for wrong in ([Settlement(id_), Settlement(waits)], [Settlement(id_), Settlement(id_)], [Settlement(bytes(16))]):
        with pytest.raises(NotClaimed):
            keeper.settle(wrong)
    with pytest.raises(NotClaimed, match="twice"):
        keeper.ack([id_, id_])
    assert frames(keeper) == before
    assert keeper.holds(id_)
    keeper.settle([Settlement(id_)])
    assert not keeper.holds(id_)
    with pytest.raises(NotClaimed):
        keeper.settle([Settlement(id_)])


def test_a_reason_that_is_no_unicode_or_too_long_is_kept_as_far_as_it_can_be(wheel: Wheel, keeper: Keeper) -> None:
    for _ in range(2):
        wheel.enqueue(b"x")
    first, second = keeper.claim()
    keeper.settle(
        [Settlement(first.id, "buried", reason="no \udcff"), Settlement(second.id, "buried", reason="ü" * 999)]
    )
    assert [m.headers[REASON] for m in wheel.list(dead=True)] == [r"no \udcff", "ü" * 500]


def test_on_a_full_disk_everything_stays_claimed_and_is_written_when_there_is_room(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock
) -> None:
    full = [False]

    def fail(kind: str, name: str) -> None:
        if full[0] and kind == "pwrite" and "journal" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    wheel.enqueue_many([b"a", b"b", b"c"])
    with Keeper(
        wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    ) as keeper:
        a, b, c = keeper.claim()
        settlements = [
            Settlement(a.id, puts=[a_message(1)]),
            Settlement(b.id, "retried", START_US, headers={KEY: "k"}),
            Settlement(c.id, "buried"),
        ]
        full[0] = True
        for _ in range(2):
            with pytest.raises(WheelFull):
                keeper.settle(settlements)
            assert all(keeper.holds(m.id) for m in (a, b, c))
            assert payloads(wheel) == [b"a", b"b", b"c"]
        full[0] = False
        keeper.settle(settlements)
        assert not any(keeper.holds(m.id) for m in (a, b, c))
    assert sorted(payloads(wheel)) == [b"1", b"b"]


@pytest.mark.parametrize("what", ["retried", "deferred"])
def test_a_settlement_that_says_no_time_is_due_at_once(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, what: What
) -> None:
    wheel.enqueue(b"a", delay=-60)
    (message,) = keeper.claim()
    (moved,) = keeper.settle([Settlement(message.id, what)])
    assert moved is not None
    assert moved.due_us == clock.now_us()
    assert keeper.claim().ids == [moved]


def test_on_a_full_disk_a_retry_makes_the_file_of_its_lock_with_the_room_of_the_ballast(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock
) -> None:
    def fail(kind: str, name: str) -> None:
        if kind in {"open", "mkdir"} and name.startswith("ids") and (wheel_dir / layout.BALLAST).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    wheel.enqueue(b"a")
    with Keeper(
        wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    ) as keeper:
        keeper._housekeeper.reserve.ballast.keep()
        (message,) = keeper.claim()
        keeper.nack(message)
    assert payloads(wheel) == [b"a"]
    assert not (wheel_dir / layout.BALLAST).exists()


def test_a_message_with_a_key_waits_while_another_holds_the_lock_and_is_written_at_the_next_claim(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    id_ = wheel.enqueue(b"keyed", key="k")
    other = wheel.enqueue(b"plain")
    keeper.claim()
    before = frames(keeper)
    with holding(wheel._keys, ["k"]):
        moved_to = keeper.settle([Settlement(id_, "retried", START_US), Settlement(other)])
        assert frames(keeper) == before + 1  # the plain one
        assert not keeper.holds(id_)
        assert [m.id for m in wheel.list()] == [id_]
        assert list(keeper.claim()) == []
        with pytest.raises(NotClaimed):
            keeper.ack(id_)
    (again,) = keeper.claim()
    assert (again.id, again.attempt, again.headers[KEY]) == (moved_to[0], 1, "k")
    holder = wheel.get(key="k")
    assert holder is not None
    assert holder.id == again.id


def test_a_keyed_successor_and_the_end_of_the_one_before_it_are_one_frame(wheel: Wheel, keeper: Keeper) -> None:
    id_ = wheel.enqueue(b"0", key="k")
    keeper.claim()
    before = frames(keeper)
    keeper.settle([Settlement(id_, successor=a_message(1, due_us=START_US + 5_000_000, headers={KEY: "k"}))])
    assert frames(keeper) == before + 1
    assert payloads(wheel) == [b"1"]
    holder = wheel.get(key="k")
    assert holder is not None
    assert holder.payload == b"1"


@pytest.mark.parametrize("late", [False, True], ids=["before it is settled", "while it waits for the lock"])
def test_a_keyed_message_that_was_cancelled_has_no_successor(wheel: Wheel, keeper: Keeper, late: bool) -> None:
    id_ = wheel.enqueue(b"0", key="k")
    keeper.claim()
    settlement = Settlement(id_, successor=a_message(1, due_us=START_US + 5_000_000, headers={KEY: "k"}))
    if late:
        with holding(wheel._keys, ["k"]):
            keeper.settle([settlement])
            wheel.cancel(id_)
        keeper.claim()
    else:
        wheel.cancel(id_)
        assert keeper.settle([settlement]) == [None]
    assert payloads(wheel) == []
    assert wheel.get(key="k") is None


def test_a_large_batch_is_several_frames_and_each_settlement_is_whole_in_one(
    wheel: Wheel, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.firing.settler.FRAME_BYTES", 1000)
    wheel.enqueue_many([bytes(400)] * 10)
    messages = list(keeper.claim())
    before = frames(keeper)
    keeper.settle([Settlement(m.id, "retried", START_US) for m in messages])
    assert before + 3 <= frames(keeper) <= before + 5
    assert len(payloads(wheel)) == 10


def test_whose_key_was_to_be_taken_fires_when_the_frame_that_takes_it_could_not_be_written(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = wheel.enqueue(b"held", delay=1, key="k")
    wheel.enqueue(b"job")
    (job,) = keeper.claim()
    new = a_message(1, due_us=START_US + 60_000_000, headers={KEY: "k"})
    settlement = Settlement(job.id, puts=[new], replaces=frozenset([new.id]))

    def full(records: object, puts: int) -> None:
        raise WheelFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(keeper._reserve, "write", full)
        with pytest.raises(WheelFull):
            keeper.settle([settlement])
    assert keeper.holds(job.id)
    clock.advance(1)
    batch = keeper.claim()
    assert [m.id for m in batch] == [held]
    keeper.ack(batch)
    keeper.settle([settlement])
    assert payloads(wheel) == [b"1"]


def test_whose_key_was_taken_does_not_fire_any_more(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    wheel.enqueue(b"held", delay=1, key="k")
    wheel.enqueue(b"job")
    (job,) = keeper.claim()
    new = a_message(1, due_us=START_US + 2_000_000, headers={KEY: "k"})
    keeper.settle([Settlement(job.id, puts=[new], replaces=frozenset([new.id]))])
    clock.advance(2)
    batch = keeper.claim()
    assert [m.payload for m in batch] == [b"1"]
    keeper.ack(batch)


def test_many_settlements_with_keys_share_a_look_and_a_frame(
    wheel: Wheel, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(300):
        wheel.enqueue(b"%d" % n, key=f"k{n}", sync="never")
    batch = list(keeper.claim())
    looks: list[int] = []
    real = keeper._keys._finder.holders
    monkeypatch.setattr(
        keeper._keys._finder, "holders", lambda hashes, dealt: looks.append(len(hashes)) or real(hashes, dealt)
    )
    before = frames(keeper)
    moved_to = keeper.settle([Settlement(m.id, "retried", START_US + 5_000_000) for m in batch])
    assert frames(keeper) - before == len(looks) < 10
    assert sum(looks) == 300
    assert sorted(m.id for m in wheel.list()) == sorted(filter(None, moved_to))
    assert all(wheel.get(key=f"k{n}").payload == b"%d" % n for n in range(300))  # type: ignore[union-attr]


def test_of_settlements_that_want_one_key_at_once_the_first_has_it(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue_many([b"a", b"b", b"c"])
    wheel.enqueue(b"held", key="k")
    batch = list(keeper.claim())
    puts = [a_message(n, headers={KEY: "k"}) for n in range(4)]
    # Three ask for the key of the last one, which is buried in the same call and lets go of it then.
    keeper.settle([
        Settlement(batch[0].id, puts=[puts[0]]),
        Settlement(batch[3].id, "buried", reason="no"),
        Settlement(batch[1].id, puts=[puts[1]]),
        Settlement(batch[2].id, puts=[puts[2]]),
    ])  # fmt: skip
    assert [m.payload for m in wheel.list() if KEY in m.headers] == [b"1"]
    assert [m.payload for m in wheel.list(dead=True)] == [b"held"]


def test_a_bad_file_of_keys_fails_the_settlements_that_need_it_and_no_others(
    wheel_dir: Path, wheel: Wheel, keeper: Keeper
) -> None:
    for n in range(9):
        wheel.enqueue(b"%d" % n, key=f"k{n}")
    batch = list(keeper.claim())
    bad = keeper._keys.hash_of("k4")[0]
    file = wheel_dir / layout.key_file(bad)
    file.write_bytes(b"")
    os.truncate(file, BUCKET_BYTES_MAX + 1)
    settlements = [Settlement(m.id, "retried", START_US + 5_000_000) for m in batch]
    with pytest.raises(Damaged):
        keeper.settle(settlements)
    held = [m for m in batch if keeper.holds(m.id)]
    assert [m.payload for m in held] == [b"%d" % n for n in range(9) if keeper._keys.hash_of(f"k{n}")[0] == bad]
    file.unlink()
    keeper.settle([s for s in settlements if s.id in {m.id for m in held}])
    assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(9)]


def test_a_delay_counts_from_the_settling_and_a_time_is_kept(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    wheel.enqueue_many([b"a", b"b", b"c", b"d"])
    a, b, c, d = keeper.claim()
    settlements = [
        Settlement(a.id, "retried", delay=2.5),
        Settlement(b.id, "deferred", delay=timedelta(minutes=1)),
        Settlement(c.id, "retried", at=to_datetime(START_US + 7)),
        Settlement(d.id, "deferred", at=START_US // 1_000_000 + 3),
    ]
    clock.advance(10)
    keeper.settle(settlements)
    assert {m.payload: (m.due_us - START_US, m.attempt) for m in wheel.list()} == {
        b"a": (12_500_000, 1),
        b"b": (70_000_000, 0),
        b"c": (7, 1),
        b"d": (3_000_000, 0),
    }


def test_many_with_keys_are_put_back_with_a_delay_in_one_frame(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue_many([b"x"] * 20, keys=[f"k{n}" for n in range(20)])
    batch = keeper.claim()
    before = frames(keeper)
    keeper.settle([Settlement(id_, "retried", delay=5) for id_ in batch.ids])
    assert frames(keeper) == before + 1
    assert {m.due_us for m in wheel.list()} == {START_US + 5_000_000}


@pytest.mark.parametrize(
    "wrong",
    [
        {"what": "retried", "delay": 1, "at": START_US},
        {"what": "retried", "delay": 1, "due_us": START_US},
        {"what": "deferred", "at": datetime(2030, 1, 1)},
        {"what": "retried", "delay": "1s"},
        {"what": "acked", "delay": 1},
        {"what": "buried", "at": 5},
    ],
)
def test_a_time_that_a_settlement_cannot_have_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Settlement(b"x" * 16, **wrong)


def test_a_delay_that_leads_past_the_calendar_settles_nothing(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue_many([b"a", b"b"])
    a, b = keeper.claim()
    with pytest.raises(BadArgument):
        keeper.settle([Settlement(a.id), Settlement(b.id, "retried", delay=1e12)])
    assert keeper.holds(a.id)
    assert keeper.holds(b.id)


def test_what_is_put_back_while_a_jump_of_the_clock_is_held_fires_after_its_delay(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with (
        Wheel(wheel_dir, clock=clock) as wheel,
        Keeper(wheel_dir, clock=clock, background=False, on_jump="hold") as keeper,
    ):
        wheel.enqueue_many([b"nacked", b"settled"])
        nacked, settled = keeper.claim()
        clock.step(7200)
        assert not keeper.claim()
        keeper.nack(nacked, delay=5)
        keeper.settle([Settlement(settled.id, "retried", delay=5)])
        clock.advance(4.9)
        assert not keeper.claim()
        clock.advance(0.1)
        assert [m.payload for m in keeper.claim()] == [b"nacked", b"settled"]


def test_an_event_loop_settles_many_at_once(wheel_dir: Path) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            await wheel.enqueue_many([b"a", b"b", b"c"])
            a, b, c = await keeper.claim()
            moved = await keeper.settle(
                [Settlement(a.id), Settlement(b.id, "retried", delay=60), Settlement(c.id, "buried", reason="no")]
            )
            assert moved[0] is None
            assert [m.id async for m in wheel.list()] == moved[1:2]
            assert [m.id async for m in wheel.list(dead=True)] == moved[2:]
            assert await keeper.settle([Settlement(id_) for id_ in ()]) == []

    asyncio.run(main())


def test_a_settlement_of_an_unknown_kind_is_refused_when_it_is_made() -> None:
    with pytest.raises(BadArgument, match="acked, retried, deferred, buried, killed, not 'foo'"):
        Settlement(bytes(16), "foo")  # type: ignore[arg-type]
