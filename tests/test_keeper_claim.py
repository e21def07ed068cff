"""Claiming by a time: what is due later stays, nothing is early, and a claim that waits ends when the time has come."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from filewheel import AsyncKeeper, AsyncWheel, BadArgument, Closed, Keeper, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.message import US_PER_S, to_datetime
from tests.support import START_US, FakeClock

NOW = to_datetime(START_US)


def payloads(messages: object) -> list[bytes]:
    return [m.payload for m in messages]  # type: ignore[attr-defined]


def test_what_is_due_after_the_time_stays_for_a_later_claim(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    wheel.enqueue_many([b"a", b"b", b"c"], delay=[1, 2, 3])
    clock.advance(10)
    assert payloads(keeper.claim(until=NOW + timedelta(seconds=0.999999))) == []
    assert payloads(keeper.claim(until=NOW + timedelta(seconds=2))) == [b"a", b"b"]
    assert payloads(keeper.claim(until=START_US / US_PER_S + 2)) == []
    assert payloads(keeper.claim()) == [b"c"]


def test_a_time_that_lies_ahead_makes_nothing_due_early(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    wheel.enqueue_many([b"a", b"b"], delay=[0, 1])
    assert payloads(keeper.claim(until=NOW + timedelta(days=1))) == [b"a"]
    clock.advance(1)
    assert payloads(keeper.claim(until=NOW + timedelta(days=1))) == [b"b"]


def test_of_what_is_due_by_a_time_no_more_than_the_limit_is_claimed(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.enqueue_many([b"a", b"b", b"c"], delay=[1, 2, 3])
    clock.advance(10)
    assert payloads(keeper.claim(1, until=NOW + timedelta(seconds=2))) == [b"a"]
    assert payloads(keeper.claim(5, until=NOW + timedelta(seconds=2))) == [b"b"]


@pytest.mark.parametrize("until", [-1, 0, 253_402_300_800])
def test_any_time_may_be_given(wheel: Wheel, keeper: Keeper, until: int) -> None:
    wheel.enqueue(b"x")
    assert payloads(keeper.claim(until=until)) == ([b"x"] if until > 0 else [])


@pytest.mark.parametrize("wrong", [{"until": NOW.replace(tzinfo=None)}, {"until": "09:00"}, {"wait": 1}])
def test_a_wrong_argument_of_claim_is_refused_on_both_faces(
    wheel_dir: Path, keeper: Keeper, clock: FakeClock, wrong: dict[str, object]
) -> None:
    with pytest.raises(BadArgument):
        keeper.claim(**wrong)  # type: ignore[arg-type]
    keeper.close()

    async def main() -> None:
        async with AsyncKeeper(wheel_dir, clock=clock) as other:
            with pytest.raises(BadArgument):
                await other.claim(**wrong)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_claim_that_waits_returns_empty_handed_once_its_time_has_passed(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"later", delay=3600)
        assert payloads(keeper.claim(wait=True, until=SYSTEM_CLOCK.now_us() / US_PER_S + 0.05)) == []
        assert payloads(keeper.claim(wait=True, until=0)) == []


def test_a_claim_that_waits_is_given_what_comes_due(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        id_ = wheel.enqueue(b"x", delay=0.05)
        (message,) = keeper.claim(wait=True)
        assert message.id == id_


def test_a_claim_that_waits_for_a_time_is_given_what_is_due_before_it(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        id_ = wheel.enqueue(b"x", delay=0.05)
        (message,) = keeper.claim(wait=True, until=SYSTEM_CLOCK.now_us() / US_PER_S + 3600)
        assert message.id == id_


def test_a_claim_that_waits_raises_when_the_keeper_is_closed(wheel_dir: Path) -> None:
    keeper = Keeper(wheel_dir)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            keeper.claim(wait=True)
        except Closed as exc:
            raised.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    keeper.close()
    thread.join(60)
    assert [type(exc) for exc in raised] == [Closed]


def test_an_event_loop_claims_by_a_time_alike(wheel_dir: Path) -> None:
    async def main() -> None:
        start = to_datetime(SYSTEM_CLOCK.now_us())
        hour = timedelta(hours=1)
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            await wheel.enqueue_many([b"a", b"b"], at=[start - 2 * hour, start - hour])
            assert payloads(await keeper.claim(until=start - 3 * hour)) == []
            assert payloads(await keeper.claim(wait=True, until=start - 3 * hour)) == []
            assert payloads(await keeper.claim(until=start - 2 * hour)) == [b"a"]
            assert payloads(await keeper.claim(wait=True, until=start + hour)) == [b"b"]

    asyncio.run(main())


def test_what_was_claimed_for_a_cancelled_task_and_is_due_later_waits_for_whoever_asks_for_it(wheel_dir: Path) -> None:
    async def main() -> None:
        start = to_datetime(SYSTEM_CLOCK.now_us())
        hour = timedelta(hours=1)
        async with AsyncWheel(wheel_dir) as wheel, wheel.keeper() as keeper:
            await wheel.enqueue_many([b"a", b"b"], at=[start - 2 * hour, start - hour])
            claims = asyncio.create_task(keeper.claim())
            await asyncio.sleep(0)  # it is handed to the thread
            while len(keeper._keeper._head.claims) < 2:  # type: ignore[union-attr]
                time.sleep(0.001)  # not in the loop, which would take the answer
            claims.cancel()
            await asyncio.wait([claims])
            assert claims.cancelled()
            while keeper._keeper._head.claims:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            assert payloads(await keeper.claim(until=start - 3 * hour)) == []
            assert payloads(await keeper.claim(until=start - 2 * hour)) == [b"a"]
            assert payloads(await keeper.claim()) == [b"b"]

    asyncio.run(main())
