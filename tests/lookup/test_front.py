"""What is due first, asked again and again: always what a walk over everything finds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncWheel, DiskError, Keeper, Message, MessageId, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format.frame import Frame
from filewheel.format.record import CANCELLED, ID, pack_drop, pack_message
from filewheel.laps.deal import Deal
from filewheel.lookup import front
from filewheel.lookup.front import Front
from filewheel.lookup.snapshot import DEAD_FLOOR, Filter
from filewheel.message import US_PER_S
from tests.support import FakeClock


def walked(wheel: Wheel, count: int) -> list[bytes]:
    """Return what a walk finds."""
    with wheel.snapshot() as snapshot:
        return [m.id for m in snapshot.messages()][:count]


def first(wheel: Wheel, count: int) -> list[bytes]:
    """Return what is remembered; it must be, here."""
    assert wheel._finder.first(Filter(), count) is not None
    return [m.id for m in wheel.peek(count)]


def test_a_wheel_says_when_its_next_message_is_due(wheel: Wheel, clock: FakeClock) -> None:
    assert wheel.next_due() is None
    wheel.enqueue(b"x", delay=60)
    early = wheel.enqueue(b"y", delay=30)
    due = wheel.next_due()
    assert due is not None
    assert due.timestamp() == pytest.approx(early.due_us / US_PER_S)
    assert wheel.cancel(early)
    assert wheel.next_due() == due + (wheel.peek()[0].due - due)
    assert [m.payload for m in wheel.list(limit=5)] == [b"x"]
    assert list(wheel.list(limit=5, before=clock.wall_us / US_PER_S + 60)) == []


def test_in_a_loop_too(wheel_dir: Path) -> None:
    async def body() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            assert await wheel.next_due() is None
            id_ = await wheel.enqueue(b"x", delay=60)
            due = await wheel.next_due()
            assert due is not None
            assert due.timestamp() == pytest.approx(id_.due_us / US_PER_S)
            assert [m.id async for m in wheel.list(limit=3)] == [id_]

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_written_moved_dealt_and_fired_it_is_what_a_walk_finds(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(front, "PUTS_MAX", 5)
    rng = random.Random(seed)
    with (
        Wheel(wheel_dir, clock=clock) as wheel,
        Wheel(wheel_dir, clock=clock) as other,
        Keeper(wheel_dir, clock=clock, background=False) as keeper,
    ):
        for _ in range(150):
            act, some = rng.random(), rng.choice([wheel, other])
            waits = walked(wheel, 50)
            if act < 0.45 or not waits:
                some.enqueue(b"x", delay=rng.randrange(100), sync="never", key=rng.choice([None, None, str(act)]))
            elif act < 0.55:
                some.enqueue_many([b"x"] * 3, delay=[rng.randrange(100) for _ in range(3)], sync="never")
            elif act < 0.65:
                some.cancel(rng.choice(waits), sync="never")
            elif act < 0.75:
                some.reschedule(rng.choice(waits), delay=rng.randrange(100), sync="never")
            elif act < 0.85:
                for message in keeper.claim(3):
                    if rng.random() < 0.5:
                        keeper.ack(message)
                    else:
                        keeper.nack(message, delay=rng.randrange(5))
            elif act < 0.93:
                clock.advance(rng.randrange(5))
            else:
                Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
            count = rng.choice([1, 3, 10])
            assert first(wheel, count) == walked(wheel, count)


def test_what_was_enqueued_and_dealt_between_two_looks_is_seen(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"late", delay=500)
        assert [m.payload for m in wheel.peek()] == [b"late"]
        with Wheel(wheel_dir, clock=clock) as other:
            other.enqueue(b"early", delay=100)
        Keeper(wheel_dir, clock=clock).close()
        assert not list((wheel_dir / "journal").glob(f"*{other._journal and other._journal.writer}*"))
        assert [m.payload for m in wheel.peek()] == [b"early"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT])
def test_what_could_not_be_read_once_is_not_remembered_as_nothing(wheel_dir: Path, clock: FakeClock, code: int) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=5000)
    Keeper(wheel_dir, clock=clock).close()

    class OnceUnreadable(OsDisk):
        left = True

        def open(self, name: str, mode: str) -> int:
            if name.endswith(".lap") and self.left:
                self.left = False
                raise OSError(code, os.strerror(code))
            return super().open(name, mode)

    with Wheel(wheel_dir, env=SYSTEM.using(clock=clock, disk=OnceUnreadable)) as wheel:
        with contextlib.suppress(DiskError):  # of EIO
            wheel.peek()
        assert [m.payload for m in wheel.peek()] == [b"x"]


def test_a_cancel_that_is_read_before_its_message_counts() -> None:
    """As where the journal with the drop is listed before the one with the put, and no cut lies between the two."""
    known, gone = (pack_message(Message(MessageId.make(us, 3, us), b"x")) for us in (50, 10))
    front = Front([known], DEAD_FLOOR, 1)
    drop = pack_drop(gone[ID], CANCELLED)
    front.take(Frame(0, 0, 1, 0, 0, 1, gone[ID], gone[ID], drop))
    front.take(Frame(0, 0, 1, 0, 1, 0, gone[ID], gone[ID], gone))
    assert front.first(Filter(), None) == [known]


def test_more_new_messages_than_are_remembered_move_the_horizon(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "PUTS_MAX", 20)
    assert first(wheel, 1) == []
    ids = wheel.enqueue_many([b"x"] * 50, delay=list(range(30, 80)))
    assert first(wheel, 3) == list(ids[:3])
    assert len(wheel._finder._memory._front._puts) <= 20  # type: ignore[union-attr]
    assert first(wheel, 40) == list(ids[:40])


def packed(first: int, count: int, size: int) -> list[bytes]:
    return [pack_message(Message(MessageId.make(us, 3, us), bytes(size))) for us in range(first, first + count)]


def frame_of(puts: list[bytes], drops: list[bytes]) -> Frame:
    """A frame with these puts, and drops of those."""
    records = b"".join([*(pack_drop(put[ID], CANCELLED) for put in drops), *puts])
    ids = [put[ID] for put in [*puts, *drops]]
    return Frame(0, 0, 1, 0, len(puts), len(drops), min(ids), max(ids), records)


def test_what_is_remembered_of_long_messages_is_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "BYTES_MAX", 10_000)
    later, early = packed(1000, 50, 1000), packed(100, 30, 1000)
    known = Front(later[:9], later[9][ID], 3)
    assert known.first(Filter(), 9) == later[:9]
    assert known.first(Filter(), 11) is None  # they are on disk
    known.take(frame_of(early, []))  # 40 KB then, and 20 are too many
    assert known.first(Filter(), 9) == early[:9]
    assert known.first(Filter(), 11) is None
    known.take(frame_of([], early[:8]))
    known.take(frame_of(packed(50, 8, 1000), []))  # what was dropped takes no room
    assert known.first(Filter(), 9) == [*packed(50, 8, 1000), early[8]]
    assert sum(map(len, known._puts.values())) == known._bytes <= 10_000


def test_however_long_they_are_as_many_as_are_wanted_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "BYTES_MAX", 10_000)
    later, early = packed(1000, 50, 1000), packed(100, 30, 1000)
    known = Front(later[:20], later[20][ID], 20)
    assert known.has(20)
    assert not known.has(21)
    known.take(frame_of(early, []))
    assert known.has(20)
    assert known.first(Filter(), 20) == early[:20]


def test_what_is_asked_for_beyond_what_is_remembered_is_walked_to(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "PUTS_MAX", 20)
    ids = wheel.enqueue_many([b"x"] * 400, delay=list(range(400)))
    assert [m.id for m in wheel.peek(400)] == list(ids)
    assert wheel._finder.first(Filter(), 256) is not None
    assert wheel._finder.first(Filter(), None) is None
    assert [m.id for m in wheel.list()] == list(ids)


@pytest.mark.parametrize("limit", [None, 2, 300])
def test_whatever_a_list_is_limited_to_a_remembered_one_has_what_a_walk_has(
    wheel: Wheel, clock: FakeClock, limit: int | None
) -> None:
    now_s = clock.wall_us / US_PER_S
    for n in range(40):
        wheel.enqueue(b"%d" % n, delay=n, topic=["mail.in", "mail.out", "sms"][n % 3])
    lists: list[dict[str, Any]] = [
        {}, {"topic": "sms"}, {"topic": "mail.*"}, {"topic": "none"}, {"before": now_s + 10}, {"after": now_s + 30},
        {"after": now_s + 10, "before": now_s + 12, "topic": "sms"}, {"before": now_s}, {"after": now_s + 100},
    ]  # fmt: skip
    for asked in lists:
        with wheel.snapshot() as snapshot:
            walked = list(snapshot.messages(Filter.of(**asked)))
        for _ in range(3):
            assert list(wheel.list(limit=limit, **asked)) == walked[:limit]


def test_a_list_that_nothing_has_changed_reads_next_to_nothing(
    wheel: Wheel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(500):
        wheel.enqueue(b"x" * 50, delay=n, sync="never")
    due = clock.wall_us / US_PER_S + 5
    for _ in range(2):
        assert len(list(wheel.list(before=due))) == 5
    read: list[int] = []
    real = wheel._dir.disk.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        read.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(wheel._dir.disk, "pread", pread)
    assert len(list(wheel.list(before=due))) == 5
    assert sum(read) < 1000
    wheel.enqueue(b"new", delay=1)
    assert len(list(wheel.list(before=due))) == 6


def test_the_deaths_of_dead_letters_are_what_a_list_of_them_is_limited_to(
    wheel: Wheel, wheel_dir: Path, clock: FakeClock
) -> None:
    deaths = []
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        for n in range(3):
            wheel.enqueue(b"%d" % n)
            clock.advance(10)
            deaths.append(clock.wall_us / US_PER_S)
            keeper.bury(keeper.claim()[0], reason="no")
    assert [m.payload for m in wheel.list(dead=True)] == [b"0", b"1", b"2"]
    assert [m.payload for m in wheel.list(dead=True, after=deaths[1])] == [b"1", b"2"]
    assert [m.payload for m in wheel.list(dead=True, before=deaths[1], limit=5)] == [b"0"]
