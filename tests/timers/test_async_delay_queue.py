"""AsyncDelayQueue: as DelayQueue, for the tasks of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from filewheel import BadArgument, Closed, OtherLoop
from filewheel.testing import FakeClock
from filewheel.timers import AsyncDelayQueue
from tests.timers.support import PATIENCE_S


async def settle(condition: Callable[[], Any]) -> None:
    """Let the other tasks run until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


def run(main: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    asyncio.run(bounded())


def test_items_leave_in_the_order_of_due_times_and_none_before_its_own() -> None:
    async def main() -> None:
        clock = FakeClock()
        queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
        for name, delay in {"c": 30, "a": 10, "b": 20, "over": -5}.items():
            queue.put(name, delay)
        assert await queue.poll() == "over"
        assert await queue.poll() is None
        takers = [asyncio.create_task(queue.take()) for _ in range(2)]
        await settle(lambda: len(queue._waiting) == 2)
        clock.advance(10)
        await settle(lambda: takers[0].done() or takers[1].done())
        assert len(queue) == 2
        clock.advance(10)
        assert sorted(await asyncio.gather(*takers)) == ["a", "b"]
        clock.advance(10)
        drained: list[str] = []
        assert queue.drain_to(drained) == 1
        assert drained == ["c"]
        assert queue.peek() is None

    run(main)


def test_a_task_that_waits_gets_an_item_that_is_put_later_and_due_earlier() -> None:
    async def main() -> None:
        queue: AsyncDelayQueue[str] = AsyncDelayQueue()
        entry = queue.put("late", 3_600)
        taker = asyncio.create_task(queue.take())
        await settle(lambda: queue._waiting)
        queue.put("now", 0.001)
        assert await taker == "now"
        assert queue.remove(entry)
        assert await queue.poll(0.001) is None

    run(main)


def test_the_tasks_that_wait_share_many_items_in_real_time() -> None:
    async def main() -> None:
        queue: AsyncDelayQueue[int] = AsyncDelayQueue()
        takers = [asyncio.create_task(queue.take()) for _ in range(50)]
        await settle(lambda: len(queue._waiting) == 50)
        for n in range(50):
            queue.put(n, n % 5 / 1_000)
        assert sorted(await asyncio.gather(*takers)) == list(range(50))
        assert queue._leader is None
        assert not queue._waiting

    run(main)


def test_a_leader_that_is_cancelled_hands_over_and_takes_nothing() -> None:
    async def main() -> None:
        clock = FakeClock()
        queue: AsyncDelayQueue[str] = AsyncDelayQueue(clock=clock)
        queue.put("a", 10)
        leader = asyncio.create_task(queue.take())
        await settle(lambda: queue._leader is not None)
        follower = asyncio.create_task(queue.take())
        await settle(lambda: len(queue._waiting) == 2)
        leader.cancel()
        await settle(leader.cancelled)
        await settle(lambda: queue._leader is not None)
        clock.advance(10)
        assert await follower == "a"
        woken = asyncio.create_task(queue.take())
        other = asyncio.create_task(queue.take())
        await settle(lambda: len(queue._waiting) == 2)
        queue.put("b")
        woken.cancel()  # it was woken for the item already
        assert await other == "b"

    run(main)


def test_a_clock_that_moves_after_the_loop_has_ended_disturbs_nobody() -> None:
    clock = FakeClock()
    queues: list[AsyncDelayQueue[str]] = []

    async def main() -> None:
        queues.append(AsyncDelayQueue(clock=clock))

    run(main)
    clock.advance(1)
    assert len(queues[0]) == 0


def test_a_close_ends_who_waits_and_another_loop_is_refused() -> None:
    queues: list[AsyncDelayQueue[str]] = []

    async def main() -> None:
        queue: AsyncDelayQueue[str] = AsyncDelayQueue()
        queues.append(AsyncDelayQueue())
        queue.put("left", 100)
        taker = asyncio.create_task(queue.take())
        await settle(lambda: queue._waiting)
        assert queue.close() == ["left"]
        with pytest.raises(Closed):
            await taker
        with pytest.raises(Closed):
            queue.put("more")
        with pytest.raises(BadArgument):
            queues[0].put("a", float("nan"))
        with pytest.raises(BadArgument):
            queues[0].put(None)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            await queues[0].poll("1")  # type: ignore[arg-type]

    async def elsewhere() -> None:
        with pytest.raises(OtherLoop):
            queues[0].put("a")
        with pytest.raises(OtherLoop):
            await queues[0].take()

    run(main)
    run(elsewhere)
