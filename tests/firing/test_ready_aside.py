"""Claims that pass topics over: each message is claimed once and in order, whatever the memory that they wait in."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Message, MessageId, Wheel
from filewheel.firing.ready import Aside
from filewheel.format.record import pack_message, topic_of
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import to_datetime
from tests.support import FakeClock
from tests.support_wheel import an_id

SMALL = Budget(records=64, bytes=1 << 20)


def open_keeper(path: Path, clock: FakeClock, budget: Budget = SMALL) -> Keeper:
    return Keeper(path, clock=clock, background=False, budget=budget)


def deal(keeper: Keeper) -> None:
    Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


def topics(batch: object) -> list[str]:
    return [m.topic for m in batch]  # type: ignore[attr-defined]


def test_what_is_over_the_bound_of_its_topic_is_passed_over_and_comes_in_order_when_there_is_room(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        slow = [wheel.enqueue(b"", topic="slow") for _ in range(8)]
        free = wheel.enqueue(b"", topic="free")
        first = keeper.claim(at_most={"slow": 2})
        assert first.ids == [*slow[:2], free]
        assert keeper.has_passed_over("slow")
        assert not keeper.has_passed_over("free")
        assert len(keeper.claim(at_most={"slow": 0})) == 0
        assert keeper.claim(3, at_most={"slow": 4}).ids == slow[2:5]
        assert keeper.claim().ids == slow[5:]
        assert not keeper.has_passed_over("slow")


@pytest.mark.parametrize("budget", [SMALL, Budget(records=16, bytes=1 << 20)])
def test_an_overdue_newcomer_of_a_topic_that_was_passed_over_is_claimed_in_its_order(
    wheel_dir: Path, clock: FakeClock, budget: Budget
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock, budget) as keeper:
        slow = [wheel.enqueue(b"", topic="slow", delay=i - 100) for i in range(12)]
        assert not keeper.claim(at_most={"slow": 0})
        first = [wheel.enqueue(b"", topic="slow", delay=i - 200) for i in range(12)]
        between = wheel.enqueue(b"", topic="slow", delay=-99.5)
        last = wheel.enqueue(b"", topic="slow", delay=-1)
        expected = [*first, slow[0], between, *slow[1:], last]
        assert [keeper.claim(at_most={"slow": 1}).ids for _ in expected] == [[id_] for id_ in expected]
        assert not keeper.claim()


def test_what_was_passed_over_is_offered_again_by_the_next_keeper_and_not_after_a_cancel(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        with open_keeper(wheel_dir, clock) as keeper:
            slow = [wheel.enqueue(b"", topic="slow") for _ in range(4)]
            assert keeper.claim(at_most={"slow": 1}).ids == slow[:1]
            assert wheel.cancel(slow[2])
            assert keeper.claim(at_most={"slow": 1}).ids == [slow[1]]
            assert keeper.claim().ids == [slow[3]]
            assert keeper._head.ready.waiting  # all that is claimed
        with open_keeper(wheel_dir, clock) as keeper:
            assert keeper.claim().ids == [slow[0], slow[1], slow[3]]


def test_when_the_clock_goes_back_what_was_passed_over_is_not_handed_out_early(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel, open_keeper(wheel_dir, clock) as keeper:
        slow = wheel.enqueue(b"", topic="slow")
        assert not keeper.claim(at_most={"slow": 0})
        clock.wall_us -= 60_000_000
        assert not keeper.claim()
        clock.wall_us += 60_000_000
        assert keeper.claim().ids == [slow]


def test_a_backlog_of_one_topic_fills_no_memory_and_hides_nothing_of_another(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel, open_keeper(wheel_dir, clock) as keeper:
        slow = wheel.enqueue_many([b"x"] * 2000, topic="slow", at=clock.wall_us / 1e6 - 60)
        free = wheel.enqueue_many([b"y"] * 10, topic="free")
        deal(keeper)
        batch = keeper.claim(at_most={"slow": 0})
        assert batch.ids == list(free)
        assert len(keeper._head.ready) <= SMALL.records * 2
        assert keeper._head.ready.aside.count <= SMALL.records // 4
        assert keeper.next_due() == to_datetime(slow[0].due_us)
        keeper.ack(batch)
        taken: list[bytes] = []
        while batch := keeper.claim(50, at_most={"slow": 7}):
            taken += batch.ids
            keeper.ack(batch)
            deal(keeper)
        assert taken == list(slow)
        assert keeper._head.ready.waiting == {}
        deal(keeper)
        assert wheel.stats().pending == 0


def test_a_file_stays_while_a_topic_that_was_passed_over_has_messages_in_it(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel, open_keeper(wheel_dir, clock) as keeper:
        slow = wheel.enqueue_many([b"x"] * 200, topic="slow", delay=[10 + n / 10 for n in range(200)])
        deal(keeper)
        clock.advance(31)
        assert not keeper.claim(at_most={"slow": 0})
        clock.advance(3600)
        keeper.claim(at_most={"slow": 0})
        assert len(keeper._head.ready) < 64  # the rest is on disk only
        deal(keeper)
        taken: list[bytes] = []
        while batch := keeper.claim(30):
            taken += batch.ids
        assert taken == list(slow)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_enqueued_cancelled_passed_over_and_given_back_is_claimed_once_by_whom_has_room(
    wheel_dir: Path, clock: FakeClock, seed: int
) -> None:
    rng = random.Random(seed)
    alive: dict[bytes, str] = {}
    hands: dict[bytes, str] = {}
    with Wheel(wheel_dir, clock=clock, sync="never") as wheel:
        budget = Budget(records=rng.choice([4, 16, 64]), bytes=rng.choice([400, 4000, 1 << 20]))
        with open_keeper(wheel_dir, clock, budget) as keeper:
            for _ in range(200):
                match rng.randrange(8):
                    case 0 | 1:
                        topic = rng.choice("abc")
                        delays = [rng.uniform(-20, 5) for _ in range(rng.randrange(1, 30))]
                        for id_ in wheel.enqueue_many(
                            [b"p" * rng.randrange(40)] * len(delays), delay=delays, topic=topic
                        ):
                            alive[id_] = topic
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
                        for id_ in back:
                            del hands[id_]
                    case _:
                        rooms = {topic: rng.randrange(12) for topic in "ab" if rng.random() < 0.8}
                        batch = keeper.claim(rng.randrange(1, 40), at_most=rooms)
                        counts = Counter(topics(batch))
                        assert all(counts[topic] <= room for topic, room in rooms.items())
                        assert batch.ids == sorted(batch.ids)
                        for message in batch:
                            assert alive[message.id] == message.topic
                            assert message.id not in hands
                            assert message.due_us <= clock.now_us()
                            hands[message.id] = message.topic
                        if rng.random() < 0.7:
                            done = [i for i in hands if rng.random() < 0.5]
                            keeper.ack(done)
                            for id_ in done:
                                del hands[id_], alive[id_]
            clock.advance(10)
            deal(keeper)
            while batch := keeper.claim(50):
                hands |= {m.id: m.topic for m in batch}
            assert hands == alive
            keeper.ack(list(hands))
            assert keeper._head.ready.waiting == {}
            deal(keeper)
            assert wheel.stats().pending == 0


def test_a_message_that_comes_back_where_others_of_its_topic_were_left_is_found_on_disk_once() -> None:
    aside = Aside(Budget(records=8, bytes=1 << 20))
    puts = [pack_message(Message(MessageId(an_id(5, n)), b"", "t")) for n in range(6)]
    for put in puts:
        assert aside.keep(b"t", put)
    assert sorted(aside.let_go()) == puts[1:]  # six are too many, and so are three
    assert not aside.keep(b"t", puts[3])
    assert aside.without_known([puts[0], puts[4]]) == []
    assert aside.floor(b"\xff") == puts[1][4:20]


def test_the_topic_of_a_record_is_read_without_taking_it_apart_wherever_it_stands() -> None:
    for topic in ("", "t", "ü" * 15, "x" * 200):
        for attempt in (0, 127, 128, 1 << 20):
            for root in (None, MessageId(an_id(4, 1))):
                message = Message(MessageId(an_id(5, 1)), b"p", topic, {}, attempt, 7, root)
                assert topic_of(pack_message(message)) == topic.encode()
    assert topic_of(b"\x98\x01\xc4\x10" + bytes(16) + b"\xc0\xc0\xc0\xc0\xc0\xc0") == b""


def test_a_bound_that_is_no_count_is_refused(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock), open_keeper(wheel_dir, clock) as keeper:
        with pytest.raises(BadArgument, match="at_most"):
            keeper.claim(at_most={"t": -1})
