"""Claims by globs: topics that share a bound, and topics that go first, also behind a long backlog of others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncKeeper, BadArgument, Keeper, MessageId, Wheel
from filewheel.laps.window import Budget
from filewheel.message import to_datetime
from tests.firing.test_ready_aside import SMALL, deal, open_keeper
from tests.support import FakeClock


def test_topics_that_fit_a_glob_share_its_bound_but_for_those_that_are_keys_themselves(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        mails = [wheel.enqueue(b"", topic=topic) for topic in ("mail.a", "mail.b", "mail.own", "mail.c")]
        other = wheel.enqueue(b"", topic="other")
        assert keeper.claim(at_most={"mail*": 2, "mail.own": 1}).ids == [*mails[:3], other]
        assert keeper.has_passed_over("mail*")
        assert keeper.has_passed_over("mail.a")
        assert not keeper.has_passed_over("mail.own")
        assert keeper.claim(at_most={"mail*": 2, "mail.own": 1}).ids == [mails[3]]


def test_a_star_bounds_all_topics_that_nothing_else_names(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        wheel.enqueue_many([b""] * 50, topic=[f"t{n}" for n in range(50)])
        wheel.enqueue(b"", topic="named")
        assert Counter(m.topic == "named" for m in keeper.claim(at_most={"named": 5, "*": 3})) == {False: 3, True: 1}
        assert len(keeper.claim(at_most={"*": 7, "named": 0})) == 7


def test_a_topic_that_is_written_as_a_glob_is_meant_by_its_own_name_first(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        ids = [wheel.enqueue(b"", topic=topic) for topic in ("a*", "ab")]
        assert keeper.claim(at_most={"a[*]": 1, "ab": 0}).ids == ids[:1]


def test_what_goes_first_is_claimed_first_and_in_due_order_at_each_level(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        for n, topic in enumerate(["x", "soon.a", "x", "now", "soon.b", "x", "now"]):
            wheel.enqueue(str(n).encode(), topic=topic)
        first = ["now", "soon*"]
        assert [m.payload for m in keeper.claim(3, first=first)] == [b"3", b"6", b"1"]
        assert [m.payload for m in keeper.claim(first=first)] == [b"4", b"0", b"2", b"5"]


@pytest.mark.parametrize("dealt", [True, False], ids=["in files", "in journals"])
def test_a_late_urgent_message_goes_before_a_backlog_that_fits_no_memory_and_nothing_is_lost(
    wheel_dir: Path, clock: FakeClock, dealt: bool
) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel, open_keeper(wheel_dir, clock) as keeper:
        low = wheel.enqueue_many(
            [b"x"] * 2000, topic=[f"low{n % 300}" for n in range(2000)], at=clock.wall_us / 1e6 - 60
        )
        urgent = wheel.enqueue(b"", topic="urgent")
        if dealt:
            deal(keeper)
        batch = keeper.claim(1, first=["urgent"])
        assert batch.ids == [urgent]
        assert len(keeper._head.ready) <= SMALL.records * 2
        keeper.ack(batch)
        taken: list[bytes] = []
        for _ in range(10):
            taken += keeper.claim(20, first=["urgent"]).ids
            newcomer = wheel.enqueue(b"", topic="urgent")
            assert keeper.claim(1, first=["urgent"]).ids == [newcomer]
        while batch := keeper.claim(50, first=["urgent"]):
            taken += batch.ids
        assert taken == list(low)
        deal(keeper)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_globs_claims_have_each_message_is_claimed_once_within_them_and_first_things_first(
    wheel_dir: Path, clock: FakeClock, seed: int
) -> None:
    rng = random.Random(seed)
    topics = ["a", "a1", "a2", "b", "b1", "c"]
    layouts: list[tuple[list[str], list[str]]] = [
        ([], []), (["a*"], []), (["a1", "a*", "*"], []), ([], ["b*"]), (["c"], ["a1", "a*"]), (["a*", "b"], ["b", "c"]),
    ]  # fmt: skip
    alive: dict[bytes, str] = {}
    hands: set[bytes] = set()
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel:
        budget = Budget(records=rng.choice([4, 16, 64]), bytes=rng.choice([400, 4000, 1 << 20]))
        with open_keeper(wheel_dir, clock, budget) as keeper:
            keys, first = layouts[0]
            for _ in range(150):
                match rng.randrange(7):
                    case 0 | 1:
                        delays = [rng.uniform(-20, 5) for _ in range(rng.randrange(1, 30))]
                        names = [rng.choice(topics) for _ in delays]
                        ids = wheel.enqueue_many([b"p" * rng.randrange(40)] * len(delays), delay=delays, topic=names)
                        alive |= zip(ids, names, strict=True)
                    case 2:
                        for id_ in rng.sample(sorted(alive), min(len(alive), 5)):
                            if id_ not in hands:
                                wheel.cancel(MessageId(id_))
                                del alive[id_]
                    case 3:
                        clock.advance(rng.uniform(0, 3))
                        deal(keeper)
                    case 4:
                        back = rng.sample(sorted(hands), len(hands) // 2)
                        keeper.give_back(back)
                        hands -= set(back)
                    case _:
                        if rng.random() < 0.2:
                            keys, first = rng.choice(layouts)
                        rooms = {key: rng.randrange(12) for key in keys}
                        batch = keeper.claim(rng.randrange(1, 40), at_most=rooms, first=first)
                        check(batch, rooms, first, alive, hands, clock)
                        hands |= set(batch.ids)
                        done = [i for i in hands if rng.random() < 0.3]
                        keeper.ack(done)
                        hands -= set(done)
                        for id_ in done:
                            del alive[id_]
            clock.advance(10)
            deal(keeper)
            while batch := keeper.claim(50, first=rng.choice([[], ["a*"]])):
                hands |= set(batch.ids)
            assert hands == set(alive)
            keeper.ack(list(hands))
            assert keeper._head.ready.waiting == {}
            deal(keeper)
            assert wheel.stats().pending == 0


def check(
    batch: Any, rooms: dict[str, int], first: list[str], alive: dict[bytes, str], hands: set[bytes], clock: FakeClock
) -> None:
    """Fail unless a claim is within its bounds, and took what goes first before anything else that was due."""
    names = [m.topic for m in batch]
    counts = Counter(share(name, [*rooms, *first]) for name in names)
    assert all(counts[key] <= room for key, room in rooms.items())
    keys = [(level(share(m.topic, [*rooms, *first]), first), bytes(m.id)) for m in batch]
    assert keys == sorted(keys)
    for message in batch:
        assert alive[message.id] == message.topic
        assert message.id not in hands
        assert message.due_us <= clock.now_us()
    if keys and keys[-1][0] == len(first) > 0:  # one that does not go first: all that do, and had room, were taken
        for id_, topic in alive.items():
            due_us = MessageId(id_).due_us
            if level(share(topic, [*rooms, *first]), first) < len(first) and due_us <= clock.now_us():
                bound = share(topic, [*rooms, *first])
                assert id_ in hands or id_ in batch.ids or counts[bound] >= rooms.get(bound, 10**9)


def share(topic: str, keys: list[str]) -> str:
    if topic in keys:
        return topic
    return next((key for key in keys if fnmatchcase(topic, key)), topic)


def level(key: str, first: list[str]) -> int:
    return next((n for n, glob in enumerate(first) if key == glob or fnmatchcase(key, glob)), len(first))


def test_an_async_keeper_claims_first_things_first_too(wheel_dir: Path) -> None:
    async def main() -> list[bytes]:
        with Wheel(wheel_dir) as wheel:
            wheel.enqueue_many([b"1", b"2"], topic=["low", "high"])
        async with AsyncKeeper(wheel_dir) as keeper:
            return [m.payload for m in await keeper.claim(1, first=["high"])]

    assert asyncio.run(main()) == [b"2"]


@pytest.mark.parametrize("wrong", ["urgent*", b"x", 3, [3], {"a"}, None], ids=repr)
def test_what_is_no_list_of_topics_is_refused(wheel_dir: Path, wrong: Any) -> None:
    with Keeper(wheel_dir) as keeper, pytest.raises(BadArgument, match="first is"):
        keeper.claim(first=wrong)


def test_the_first_message_of_a_backlog_that_was_passed_over_is_still_the_next_one_due(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel, open_keeper(wheel_dir, clock) as keeper:
        ids = wheel.enqueue_many([b"x"] * 200, topic="low")
        assert not keeper.claim(at_most={"*": 0})
        assert keeper.next_due() == to_datetime(ids[0].due_us)
        taken: list[bytes] = []
        while batch := keeper.claim(50):
            taken += batch.ids
        assert taken == list(ids)
