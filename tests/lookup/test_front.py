"""What is due first, asked again and again: always what a walk over everything finds."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from filewheel import AsyncWheel, Keeper, Wheel
from filewheel.laps.deal import Deal
from filewheel.lookup import front
from filewheel.lookup.snapshot import DEAD_FLOOR
from filewheel.message import US_PER_S
from tests.support import FakeClock


def walked(wheel: Wheel, count: int) -> list[bytes]:
    """Return what a walk finds."""
    with wheel.snapshot() as snapshot:
        return [m.id for m in snapshot.messages()][:count]


def first(wheel: Wheel, count: int) -> list[bytes]:
    """Return what is remembered; it must be, here."""
    assert wheel._front.first(count) is not None
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


def test_a_cancel_that_is_read_before_its_message_counts(wheel: Wheel) -> None:
    known = wheel.enqueue(b"known", delay=50)
    assert first(wheel, 1) == [known]
    id_ = wheel.enqueue(b"x", delay=10)
    (put,) = wheel._finder.find([id_]).values()
    wheel._front.first(1)
    finder = wheel._finder
    # As where the journal with the drop is listed before the one with the put.
    finder._journals._news = [], [id_]
    assert first(wheel, 1) == [known]
    finder._journals._news = [put], []
    assert first(wheel, 1) == [known]


def test_more_news_than_are_remembered_make_it_look_anew(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.lookup.journals.NEWS_MAX", 20)
    assert first(wheel, 1) == []
    ids = wheel.enqueue_many([b"x"] * 30, delay=list(range(30, 60)))
    wheel.get(ids[0])
    assert first(wheel, 3) == list(ids[:3])


def test_what_is_asked_for_beyond_what_is_remembered_is_walked_to(wheel: Wheel) -> None:
    ids = wheel.enqueue_many([b"x"] * 400, delay=list(range(400)))
    assert [m.id for m in wheel.peek(400)] == list(ids)
    assert wheel._front.first(256) is not None
    assert wheel._front.first(5, DEAD_FLOOR) is not None
