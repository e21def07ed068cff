"""AsyncKeeper and `AsyncWheel.due`: who gets which message, what is acknowledged when, and who takes over."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncKeeper,
    AsyncWheel,
    BadArgument,
    Closed,
    Keeper,
    Locked,
    Message,
    NotClaimed,
    Wheel,
    WheelFull,
)
from filewheel.disk.disk import SYSTEM
from filewheel.message import REASON
from tests.aio.support import LoopFactory, SleepyDisk, Watch, our_threads, run_in, turns
from tests.support import FakeClock, FaultyDisk, run

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine in a loop of each kind; no thread may be left."""
    factory: LoopFactory | None = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop

    def playing(main: Coroutine[Any, Any, Any]) -> Any:
        result = run_in(factory, main)
        assert our_threads() == []
        return result

    return playing


def offered(path: Path) -> list[tuple[bytes, int]]:
    """What the next keeper offers: payload and attempt."""
    with Keeper(path) as keeper:
        return [(m.payload, m.attempt) for m in keeper.claim()]


def test_asking_for_the_next_acknowledges_the_one_before(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"a", b"b", b"c"])
            assert [m.payload async for m in wheel.due(wait=False)] == [b"a", b"b", b"c"]
        assert offered(wheel_dir) == []

    play(main())


@pytest.mark.parametrize("how", ["breaks", "raises"])
def test_a_body_that_ends_early_puts_its_message_back(wheel_dir: Path, play: Run, how: str) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"a", b"b", b"c"])
            with contextlib.suppress(KeyError):
                async for message in wheel.due():
                    if message.payload == b"b":
                        if how == "breaks":
                            break
                        raise KeyError
            rest = [(m.payload, m.attempt) async for m in wheel.due(wait=False)]
            assert rest == [(b"c", 0), (b"b", 1)]
        assert offered(wheel_dir) == []

    play(main())


def test_a_message_in_hand_when_the_wheel_closes_is_offered_by_the_next_keeper(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"a", b"b", b"c"])
            due = wheel.due(limit=2)
            assert (await anext(due)).payload == b"a"
            assert (await anext(due)).payload == b"b"
        with pytest.raises(Closed):
            await anext(due)
        assert offered(wheel_dir) == [(b"b", 0), (b"c", 0)]

    play(main())


def test_what_a_killed_process_had_not_acknowledged_is_offered_again(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(6)])
    out = run(
        """
        import asyncio, os, sys
        from filewheel import AsyncWheel

        async def main():
            async with AsyncWheel(sys.argv[1]) as wheel:
                async for message in wheel.due():
                    print(message.payload.decode(), flush=True)
                    if message.payload == b"3":
                        os._exit(0)

        asyncio.run(main())
        """,
        wheel_dir,
    )
    assert out.split() == ["0", "1", "2", "3"]
    again = [payload for payload, _ in offered(wheel_dir)]
    assert again[-3:] == [b"3", b"4", b"5"]


def test_a_message_put_back_or_buried_in_the_body_is_not_acknowledged(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"good", b"flaky", b"hopeless", b"good too"])
            due = wheel.due(wait=False)
            with pytest.raises(NotClaimed):
                await due.nack(Message(await wheel.enqueue(b"later", delay=60), b""))
            async for message in due:
                if message.payload == b"flaky":
                    await due.nack(message, delay=30)
                elif message.payload == b"hopeless":
                    await due.bury(message, reason="no such user")
            (dead,) = [m async for m in wheel.list(dead=True)]
            assert (dead.payload, dead.headers[REASON]) == (b"hopeless", "no such user")
            left = [(m.payload, m.attempt) async for m in wheel.list()]
            assert left == [(b"flaky", 1), (b"later", 0)]

    play(main())


def test_tasks_that_iterate_share_the_messages(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            got: list[list[bytes]] = [[], [], []]

            async def consume(mine: list[bytes]) -> None:
                async for message in wheel.due(limit=7):
                    mine.append(message.payload)
                    await asyncio.sleep(0)

            consumers = [asyncio.create_task(consume(mine)) for mine in got]
            for start in range(0, 60, 20):
                await wheel.enqueue_many([b"%02d" % i for i in range(start, start + 20)], delay=0.01)
            while sum(map(len, got)) < 60:
                await asyncio.sleep(0.001)
            assert sorted(itertools.chain(*got)) == [b"%02d" % i for i in range(60)]
            assert all(got)
            await wheel.close()
            await asyncio.gather(*consumers, return_exceptions=True)
        assert len(offered(wheel_dir)) <= 3

    play(main())


def test_iterating_ends_when_the_wheel_is_closed_while_it_waits(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        wheel = await AsyncWheel(wheel_dir).open()

        async def consume() -> list[bytes]:
            return [m.payload async for m in wheel.due()]

        consumers = [asyncio.create_task(consume()) for _ in range(2)]
        await wheel.enqueue(b"x")
        while (await wheel.stats()).pending:
            await asyncio.sleep(0.001)
        await wheel.close()
        assert sorted(await asyncio.gather(*consumers)) == [[], [b"x"]]

    play(main())


def test_the_keeper_claims_acknowledges_puts_back_and_buries(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            assert len(await keeper.claim()) == 0
            await wheel.enqueue_many([b"a", b"b", b"c", b"d"])
            batch = await keeper.claim(3)
            assert [m.payload for m in batch] == [b"a", b"b", b"c"]
            again = await keeper.nack(batch[0], delay=60)
            dead = await keeper.bury(batch[1], reason="why")
            assert await keeper.ack(batch) == 1
            with pytest.raises(NotClaimed):
                await keeper.ack(batch[0])
            with pytest.raises(BadArgument):
                await keeper.claim(0)
            assert [m.payload for m in await keeper.claim()] == [b"d"]
            assert again is not None
            assert dead is not None
            assert (await wheel.get(again)).attempt == 1  # type: ignore[union-attr]
            assert (await wheel.get(dead)).is_dead  # type: ignore[union-attr]
        assert not keeper.is_open
        with pytest.raises(Closed):
            await keeper.claim()
        with pytest.raises(Closed):
            await keeper.open()
        assert offered(wheel_dir) == [(b"d", 0)]

    play(main())


def test_a_claim_waits_until_a_message_is_due(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            waits = asyncio.create_task(keeper.claim(wait=True))
            id_ = await wheel.enqueue(b"x", delay=0.05)
            (message,) = await waits
            assert message.id == id_

    play(main())


@pytest.mark.parametrize("seed", range(3))
def test_whatever_was_claimed_for_a_cancelled_task_goes_to_the_next(wheel_dir: Path, play: Run, seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            got: list[bytes] = []

            async def take() -> None:
                batch = await keeper.claim(chance.randrange(1, 6), wait=True)
                got.extend(m.payload for m in batch)
                await keeper.ack(batch)

            tasks: list[asyncio.Task[None]] = []
            for i in range(150):
                tasks.append(asyncio.create_task(take()))
                await wheel.enqueue(b"%d" % i, delay=chance.choice([0, 0, 0.002]), sync="never")
                await turns(chance.randrange(4))
                if chance.random() < 0.7:
                    chance.choice(tasks).cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while len(got) < 150:
                await take()
            assert sorted(got) == sorted(b"%d" % i for i in range(150))

    play(main())


def test_a_claim_that_bounds_a_topic_keeps_to_it_also_with_what_a_cancelled_task_had_claimed(
    wheel_dir: Path, play: Run
) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel, AsyncKeeper(wheel_dir) as keeper:
            slow = [await wheel.enqueue(b"", topic="slow") for _ in range(5)]
            free = await wheel.enqueue(b"", topic="free")
            gone = asyncio.create_task(keeper.claim(2))
            await asyncio.sleep(0)
            gone.cancel()  # it may have claimed two, or none
            with pytest.raises(asyncio.CancelledError):
                await gone
            await keeper.ack([])  # in the thread that claimed
            await keeper.ack([])  # behind what was given back
            with pytest.raises(BadArgument, match="at_most"):
                await keeper.claim(at_most={"slow": -1})
            assert (await keeper.claim(at_most={"slow": 0})).ids == [free]
            assert (await keeper.claim(at_most={"slow": 3})).ids == slow[:3]
            assert (await keeper.claim(wait=True)).ids == slow[3:]

    play(main())


def test_a_consumer_that_is_cancelled_hands_its_place_to_the_next(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            first = asyncio.create_task(anext(wheel.due()))
            second = asyncio.create_task(anext(wheel.due()))
            while "filewheel-aio-due" not in our_threads():
                await asyncio.sleep(0.001)
            await turns()
            first.cancel()
            await turns()
            await wheel.enqueue(b"x")
            assert (await second).payload == b"x"

    play(main())


def test_an_acknowledgement_that_fails_is_raised_at_the_next_step_and_the_message_offered_again(
    wheel_dir: Path, play: Run
) -> None:
    full = False

    def fail(kind: str, name: str) -> None:
        if full and kind == "pwrite" and name.startswith("journal/"):
            raise OSError(errno.ENOSPC, "full")

    async def main() -> None:
        nonlocal full
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=lambda path: SleepyFaultyDisk(path, fail))) as wheel:
            await wheel.enqueue_many([b"a", b"b"])
            due = wheel.due(limit=2)  # both at once: a claim on a full disk would raise too, before the acknowledgement
            await anext(due)
            full = True
            with pytest.raises(WheelFull):
                async with asyncio.timeout(60):
                    for _ in range(2):
                        await anext(due)
            full = False
        assert (b"a", 0) in offered(wheel_dir)

    play(main())


class SleepyFaultyDisk(FaultyDisk, SleepyDisk):
    """Fails as told, and only a hint ends a sleep."""


async def asleep(watch: Watch) -> None:
    """Wait until the keeper has gone to sleep."""
    while not watch.counts.get("wait_hint"):
        await asyncio.sleep(0.001)


def test_whoever_sleeps_until_something_is_due_is_woken_by_a_message_put_back(wheel_dir: Path, play: Run) -> None:
    watch = Watch(SleepyDisk)

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=watch)) as wheel, wheel.keeper() as keeper:
            await wheel.enqueue_many([b"x", b"y"])
            batch = await keeper.claim()
            waits = asyncio.create_task(keeper.claim(wait=True))
            await asleep(watch)
            await keeper.nack(batch[0])
            async with asyncio.timeout(60):
                assert [m.attempt for m in await waits] == [1]

    play(main())


def test_a_sleeping_claim_ends_when_the_keeper_is_closed(wheel_dir: Path, play: Run) -> None:
    watch = Watch(SleepyDisk)

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=watch)) as wheel:
            keeper = await wheel.keeper().open()
            waits = asyncio.create_task(keeper.claim(wait=True))
            await asleep(watch)
            async with asyncio.timeout(60):
                await keeper.close()
                with pytest.raises(Closed):
                    await waits

    play(main())


def test_a_wheel_that_closes_ends_its_standby(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        with Keeper(wheel_dir):
            wheel = await AsyncWheel(wheel_dir).open()
            consumer = asyncio.create_task(anext(wheel.due()))
            while "filewheel-aio-keeper" not in our_threads():
                await asyncio.sleep(0.001)
            with pytest.raises(BadArgument, match="open already"):
                wheel.keeper()
            await wheel.close()
            with pytest.raises(Closed):
                await consumer
            assert not any(name.startswith("filewheel-aio") for name in our_threads())

    play(main())


# -- standby -------------------------------------------------------------------------------------------------


def test_a_standby_takes_over_and_holds_up_nobody_meanwhile(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            with Keeper(wheel_dir) as present:
                with pytest.raises(Locked):
                    await anext(wheel.due(wait=False))
                with pytest.raises(Locked):
                    await wheel.keeper(wait=False).open()
                waits = asyncio.create_task(anext(wheel.due()))
                for i in range(5):
                    await wheel.enqueue(b"%d" % i)
                assert len(present.claim(3)) == 3
                assert not waits.done()
            assert (await waits).payload == b"0"

    play(main())


def test_a_standby_that_is_cancelled_or_closed_leaves_nothing(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        with Keeper(wheel_dir):
            mine = our_threads()
            standby = AsyncKeeper(wheel_dir)
            for count in (0, 3, 20):
                opening = asyncio.create_task(standby.open())
                await turns(count)
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
                assert our_threads() == mine
            opening = asyncio.create_task(standby.open())
            await turns()
            await standby.close()
            with pytest.raises(Closed):
                await opening
            assert our_threads() == mine
        assert offered(wheel_dir) == []

    play(main())


def test_a_keeper_whose_opening_was_cancelled_late_lets_the_next_in(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        for count in range(1, 30, 4):
            keeper = AsyncKeeper(wheel_dir, wait=False)
            opening = asyncio.create_task(keeper.open())
            await turns(count)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            await keeper.close()
            async with AsyncKeeper(wheel_dir, wait=False):
                pass

    play(main())


def test_a_wheel_has_one_keeper_and_iterating_uses_it(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            async with wheel.keeper() as keeper:
                with pytest.raises(BadArgument, match="open already"):
                    wheel.keeper()
                await wheel.enqueue_many([b"a", b"b"])
                assert (await anext(wheel.due())).payload == b"a"
                async for message in keeper.due():
                    if message.attempt:
                        break
            async with wheel.keeper() as keeper:
                assert [m.attempt for m in await keeper.claim()] == [2]

    play(main())


@pytest.mark.parametrize("how", ["async with", "aclosing", "close"])
def test_an_iteration_that_is_closed_lets_another_process_fire_at_once(wheel_dir: Path, play: Run, how: str) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"a", b"b"])
            due = wheel.due()
            if how == "async with":
                async with due:
                    assert (await anext(due)).payload == b"a"
            elif how == "aclosing":
                async with contextlib.aclosing(due):
                    assert (await anext(due)).payload == b"a"
            else:
                assert (await anext(due)).payload == b"a"
                await due.close()
                await due.close()
            with Keeper(wheel_dir, wait=False) as other:
                assert sorted((m.payload, m.attempt) for m in other.claim()) == [(b"a", 1), (b"b", 0)]
            with pytest.raises(StopAsyncIteration):
                await anext(due)
            async with wheel.due(wait=False) as again:  # a closed iteration does not keep the wheel from firing again
                assert sorted([m.payload async for m in again]) == [b"a", b"b"]

    play(main())


def test_the_keeper_stays_open_until_the_last_iteration_that_uses_it_is_closed(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"a", b"b", b"c", b"d"])
            first, second, third = wheel.due(), wheel.due(), wheel.due()
            for due in (first, second, third):
                await anext(due)
            del third, due  # left by `break`: it uses the keeper no more
            await first.close()
            with pytest.raises(Locked):
                Keeper(wheel_dir, wait=False)
            await anext(second)
            await second.close()
            Keeper(wheel_dir, wait=False).close()
            async with wheel.keeper():
                async with wheel.due() as due:
                    await anext(due)
                with pytest.raises(Locked):  # the program's own
                    Keeper(wheel_dir, wait=False)

    play(main())


def test_an_iteration_that_is_closed_while_it_stands_by_ends(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        with Keeper(wheel_dir):
            async with AsyncWheel(wheel_dir) as wheel:
                due = wheel.due()
                task = asyncio.create_task(anext(due, None))  # type: ignore[arg-type]
                while not due._close or not wheel._keepers:
                    await asyncio.sleep(0)
                await due.close()
                assert await task is None

    play(main())


def test_an_async_keeper_takes_an_open_keeper_over_and_frees_its_lock_in_the_end(
    wheel_dir: Path, clock: FakeClock, play: Run
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x")

    async def main() -> None:
        async with AsyncKeeper(Keeper(wheel_dir, clock=clock, history=3)) as keeper:
            (message,) = await keeper.claim(wait=True)
            await keeper.ack(message)
            with pytest.raises(Locked):
                Keeper(wheel_dir, wait=False, clock=clock)
        with Keeper(wheel_dir, wait=False, clock=clock) as again:
            assert not again.claim()
            for wrong in ({"history": 3}, {"env": SYSTEM.using(clock=clock)}, {"flush_interval_s": 1.0}):
                with pytest.raises(BadArgument, match="has its options"):
                    AsyncKeeper(again, **wrong)  # type: ignore[arg-type]
        with pytest.raises(Closed):
            await AsyncKeeper(again).open()

    play(main())
