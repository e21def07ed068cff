"""Messages that `due()` hands out one right after the other begin together; what waits longer has not begun."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncKeeper,
    AsyncScheduler,
    AsyncWheel,
    Cancelled,
    Closed,
    Keeper,
    NotClaimed,
    Wheel,
)
from filewheel.aio import keeper as aiokeeper
from tests.support import eventually

COUNT = 60
LONG_US = 10**12


def test_messages_that_are_asked_for_at_once_begin_together(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokeeper, "_TOGETHER_US", LONG_US)
    sizes: list[int] = []
    may_begin = Keeper.may_begin

    def counting(self: Keeper, *ids: bytes) -> bool:
        sizes.append(len(ids))
        return may_begin(self, *ids)

    async def main() -> list[bytes]:
        async with AsyncKeeper(wheel_dir) as keeper:
            keeper._began_us = LONG_US  # as if some had begun a moment ago
            return [m.payload async for m in keeper.due(wait=False)]

    monkeypatch.setattr(Keeper, "may_begin", counting)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"%d" % n for n in range(COUNT)])
        assert asyncio.run(main()) == [b"%d" % n for n in range(COUNT)]
        assert wheel.stats().pending == 0
    assert sizes == [2, 4, 8, 16, 30]


def test_what_waits_behind_a_body_that_takes_its_time_has_not_begun(wheel_dir: Path) -> None:
    async def main() -> set[Cancelled]:
        outcomes = set()
        handed = []
        with Wheel(wheel_dir) as wheel:
            ids = wheel.enqueue_many([b"x"] * COUNT)
            async with AsyncKeeper(wheel_dir) as keeper:
                async for message in keeper.due(wait=False):
                    handed.append(message.id)
                    if keeper._begun:  # some that wait have begun with it
                        assert await asyncio.to_thread(eventually, lambda: not keeper._begun)
                        assert wheel.cancel(message.id) is Cancelled.BEGUN
                        outcomes.update(wheel.cancel(i) for i in ids if i not in handed)
            assert wheel.stats().pending == 0
        return outcomes if len(handed) < COUNT else set()

    for _ in range(50):  # on a slow machine nothing is asked for within a millisecond
        if outcomes := asyncio.run(main()):
            assert outcomes == {Cancelled.STOPPED}
            return
    pytest.skip("this machine is too slow for two messages in a millisecond")


def test_what_waited_behind_a_body_that_held_up_the_loop_is_asked_about_again(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[bytes]:
        handed = []
        with Wheel(wheel_dir) as wheel:
            ids = wheel.enqueue_many([b"%d" % n for n in range(6)])
            async with AsyncKeeper(wheel_dir) as keeper:
                keeper._began_us = LONG_US
                async for message in keeper.due(wait=False):
                    handed.append(message.payload)
                    if message.payload == b"2":
                        assert keeper._begun == 3
                        assert wheel.cancel(ids[4]) is Cancelled.BEGUN
                        monkeypatch.setattr(aiokeeper, "_TOGETHER_US", 0)  # its time is up
        return handed

    monkeypatch.setattr(aiokeeper, "_TOGETHER_US", LONG_US)
    assert asyncio.run(main()) == [b"0", b"1", b"2", b"3", b"5"]


def test_of_messages_that_begin_together_one_that_was_cancelled_is_left_out(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> list[bytes]:
        handed = []
        with Wheel(wheel_dir) as wheel:
            ids = wheel.enqueue_many([b"%d" % n for n in range(8)])
            async with AsyncKeeper(wheel_dir) as keeper:
                keeper._began_us = LONG_US
                async for message in keeper.due(wait=False):
                    handed.append(message.payload)
                    if message.payload == b"1":  # the end of what began together
                        assert wheel.cancel(ids[4]) is Cancelled.STOPPED
                        await keeper.begin([])  # looks, so that the mark is known again
        return handed

    monkeypatch.setattr(aiokeeper, "_TOGETHER_US", LONG_US)
    assert asyncio.run(main()) == [b"%d" % n for n in range(8) if n != 4]


def test_what_had_begun_and_is_taken_back_is_stopped_by_a_cancel(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        ids: list[Any] = list(wheel.enqueue_many([b"a", b"b", b"c"]))
        keeper.claim(begun=False)
        assert keeper.may_begin(*ids)
        keeper.unbegin(*ids[1:])
        assert [wheel.cancel(i) for i in ids] == [Cancelled.BEGUN, Cancelled.STOPPED, Cancelled.STOPPED]
        assert keeper.begin(ids[1:]) == set(ids[1:])


def test_a_message_that_was_acknowledged_in_the_body_is_not_put_back_by_a_break(wheel_dir: Path) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"handled", b"left"])
            due = wheel.due(limit=1)
            with pytest.raises(NotClaimed):
                await due.ack(await anext(wheel.list()))
            async for message in due:
                await due.ack(message)
                with pytest.raises(NotClaimed):
                    await due.ack(message)
                break
            await due.aclose()
            assert [m.payload async for m in wheel.due(wait=False)] == [b"left"]

    asyncio.run(main())


def test_an_event_loop_is_told_whether_opening_made_the_wheel(tmp_path: Path) -> None:
    async def main() -> None:
        wheel = AsyncWheel.open_or_create(tmp_path / "w")
        with pytest.raises(Closed):
            assert wheel.is_new
        async with wheel:
            assert wheel.is_new
        async with AsyncWheel.open_or_create(tmp_path / "w") as again:
            assert not again.is_new

    asyncio.run(main())


def test_an_event_loop_lists_and_moves_with_the_wheel_of_its_scheduler(wheel_dir: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir)
        with pytest.raises(Closed, match="not open in this loop"):
            assert scheduler.wheel
        async with scheduler:
            id_ = await scheduler.wheel.enqueue(b"x", delay=60, topic="later")
            moved = await scheduler.wheel.reschedule(id_, delay=120)
            assert [m.id async for m in scheduler.wheel.list()] == [moved]

    asyncio.run(main())
