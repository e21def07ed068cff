"""Pauses: what is paused is neither claimed nor begun, and fires in its order once it is resumed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncKeeper, AsyncWheel, Closed, DiskError, Keeper, Message, MessageId, Pause, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import holder
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import SCHEDULE, US_PER_S, to_datetime
from tests.support import FakeClock, FaultyDisk, eventually

SMALL = Budget(records=64, bytes=1 << 20)
NIGHTLY = {SCHEDULE: json.dumps({"name": "nightly", "when": "0 3 * * *"})}


@pytest.fixture
def wheel(wheel_dir: Path, clock: FakeClock) -> Iterator[Wheel]:
    """An open wheel whose time the test decides."""
    with Wheel(wheel_dir, clock=clock, sync="never") as opened:
        yield opened


@pytest.fixture
def keeper(wheel: Wheel, clock: FakeClock) -> Iterator[Keeper]:
    """Its keeper, with little memory."""
    with open_keeper(wheel, clock) as opened:
        yield opened


def open_keeper(wheel: Wheel, clock: FakeClock, budget: Budget = SMALL) -> Keeper:
    return Keeper(wheel.path, clock=clock, background=False, budget=budget)


def deal(keeper: Keeper) -> None:
    Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


def payloads(batch: Any) -> list[bytes]:
    return [m.payload for m in batch]


def test_of_a_paused_topic_nothing_is_claimed_and_all_of_it_in_its_order_after_the_resume(
    wheel: Wheel, keeper: Keeper
) -> None:
    wheel.pause(topic="mail*", why="the server is down")
    mails = [wheel.enqueue(b"", topic=topic, delay=-at) for at, topic in enumerate(["mail", "mailbox", "mail.in"])]
    other = wheel.enqueue(b"", topic="other")
    assert keeper.claim(begun=False).ids == [other]
    assert not keeper.claim()
    assert [m.id for m in wheel.list()] == [*reversed(mails), other]
    (ended,) = wheel.resume(topic="mail*")
    assert (ended.name, ended.why) == ("mail*", "the server is down")
    assert keeper.claim().ids == mails[::-1]
    assert not wheel.paused()


def test_of_a_paused_wheel_nothing_is_claimed_and_a_keeper_that_starts_is_paused_too(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    ids = [wheel.enqueue(b""), wheel.enqueue(b"", topic="t")]
    wheel.pause()
    assert not keeper.claim()
    keeper.close()
    with open_keeper(wheel, clock) as again:
        assert not again.claim()
        wheel.resume()
        assert again.claim().ids == ids


@pytest.mark.parametrize("way", [{}, {"topic": "t"}, {"topic": "?"}, {"topic": "*"}])
def test_what_was_claimed_before_the_pause_returned_does_not_begin_and_is_offered_after_the_resume(
    wheel: Wheel, keeper: Keeper, way: dict[str, str]
) -> None:
    ids = [wheel.enqueue(b"", topic="t") for _ in range(3)]
    batch = keeper.claim(begun=False)
    assert keeper.may_begin(ids[0])
    keeper.unbegin(ids[0])
    wheel.pause(**way)
    assert not keeper.may_begin(ids[0])
    assert keeper.begin(batch) == set(ids)
    assert not keeper.holds(ids[0])
    assert not keeper.claim()
    wheel.resume(**way)
    assert keeper.claim().ids == ids


def test_a_pause_that_the_keeper_knows_keeps_a_claimed_message_from_beginning_in_memory_too(
    wheel: Wheel, keeper: Keeper
) -> None:
    ids = [wheel.enqueue(b"", topic="t"), wheel.enqueue(b"", topic="u")]
    keeper.claim(begun=False)
    wheel.pause(topic="t")
    keeper.claim()  # it looks at the pauses, and at the mark
    assert not keeper.may_begin(ids[0])
    assert keeper.may_begin(ids[1])
    assert keeper.begin([ids[0]]) == {ids[0]}


def test_a_pause_between_a_claim_and_its_begin_keeps_the_messages(wheel: Wheel, keeper: Keeper) -> None:
    id_ = wheel.enqueue(b"", topic="t")
    take = keeper._head.claim

    def claim(*args: Any) -> Any:
        found = take(*args)
        wheel.pause(topic="t")  # the claim has looked already
        return found

    keeper._head.claim = claim  # type: ignore[method-assign]
    assert not keeper.claim()
    keeper._head.claim = take  # type: ignore[method-assign]
    wheel.resume(topic="t")
    assert keeper.claim().ids == [id_]


def test_what_has_begun_goes_on_and_is_acknowledged_or_put_back_while_it_is_paused(
    wheel: Wheel, keeper: Keeper
) -> None:
    wheel.enqueue(b"done", topic="t")
    wheel.enqueue(b"failed", topic="t")
    done, failed = keeper.claim()
    wheel.pause(topic="t")
    assert keeper.ack(done) == 1
    again = keeper.nack(failed)
    assert not keeper.claim()
    wheel.resume(topic="t")
    assert keeper.claim().ids == [again]


def test_a_keeper_that_cannot_see_the_mark_sees_a_pause_with_its_next_look(wheel: Wheel, keeper: Keeper) -> None:
    """A lane that is full claims nothing: the look for a promotion finds the pause too."""
    id_ = wheel.enqueue(b"", topic="t")
    keeper.claim(begun=False)
    mark = (Path(wheel.path) / "begun").read_bytes()[:16]
    wheel.pause(topic="t")
    with (Path(wheel.path) / "begun").open("r+b") as begun:
        begun.write(mark)
    keeper.check_may_fire()
    assert not keeper.may_begin(id_)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("call", ["open", "identity"])
def test_while_the_pauses_cannot_be_read_nothing_begins(wheel: Wheel, clock: FakeClock, call: str, number: int) -> None:
    fails = 0

    def fail(kind: str, name: str) -> None:
        nonlocal fails
        if fails and (kind, name) == (call, "paused.json"):
            fails -= 1
            raise OSError(number, os.strerror(number), name)

    disk = SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    with Keeper(wheel.path, env=disk, clock=clock, background=False) as keeper:
        keeper.claim()
        wheel.pause(topic="t")
        wheel.enqueue(b"held", topic="t")
        free = wheel.enqueue(b"free")
        for _ in range(2):
            fails = 1
            with pytest.raises(DiskError):
                keeper.claim()
        assert keeper.claim().ids == [free]


def test_of_a_paused_schedule_only_the_occurrences_wait(wheel: Wheel, keeper: Keeper) -> None:
    wheel.pause(schedule="nightly")
    odd = {"no json": {SCHEDULE: "{"}, "no name": {SCHEDULE: "{}"}, "no object": {SCHEDULE: "3"}}
    call = wheel.enqueue(b"", topic="report")
    occurrence = wheel.enqueue(b"", topic="report", headers=NIGHTLY)
    others = [wheel.enqueue(b"", topic="report", headers=headers) for headers in odd.values()]
    hourly = wheel.enqueue(b"", topic="report", headers={SCHEDULE: '{"name": "hourly"}'})
    assert keeper.claim().ids == [call, *others, hourly]
    wheel.resume(schedule="nightly")
    assert keeper.claim().ids == [occurrence]


def test_an_occurrence_that_waits_for_room_of_its_topic_is_not_claimed_when_its_schedule_is_paused_meanwhile(
    wheel: Wheel, keeper: Keeper
) -> None:
    first = wheel.enqueue(b"", topic="report", headers=NIGHTLY)
    second = wheel.enqueue(b"", topic="report")
    assert not keeper.claim(at_most={"report": 0})
    wheel.pause(schedule="nightly")
    assert keeper.claim(begun=False).ids == [second]
    wheel.resume(schedule="nightly")
    assert keeper.claim().ids == [first]


def test_a_paused_topic_does_not_count_as_passed_over_for_want_of_room(wheel: Wheel, keeper: Keeper) -> None:
    """Or a scheduler would look for it again and again."""
    wheel.enqueue(b"", topic="slow")
    assert not keeper.claim(at_most={"slow": 0})
    assert keeper.has_passed_over("slow")
    wheel.pause(topic="slow")
    assert not keeper.claim(at_most={"slow": 0})
    assert not keeper.has_passed_over("slow")


def test_a_backlog_of_a_paused_topic_fills_no_memory_and_hides_nothing_of_another(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    mails = wheel.enqueue_many([b"x"] * 2000, topic="mail", at=clock.wall_us / 1e6 - 60)
    wheel.pause(topic="mail")
    free = [wheel.enqueue(b"y", topic="free", delay=n - 70) for n in range(20)]
    deal(keeper)
    first = keeper.claim()
    assert first.ids + keeper.claim().ids == free
    assert len(keeper._head.ready) == 0
    assert len(keeper._head.ready.held) == 1
    wheel.resume(topic="mail")
    taken: list[bytes] = []
    while batch := keeper.claim(70):
        taken += batch.ids
        keeper.ack(batch)
    assert taken == list(mails)


@pytest.mark.parametrize("far", [False, True])
def test_a_file_stays_while_a_paused_message_is_in_it_and_those_without_one_go(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, far: bool
) -> None:
    """In seconds of their own, and in a lap of one file."""
    start_s = 4000 if far else 10
    for n in range(0, 60, 3):
        wheel.enqueue(b"mail", topic="mail" if n % 2 else "other", delay=start_s + n)
    deal(keeper)
    files = {str(p.relative_to(wheel.path)) for p in (Path(wheel.path) / "laps").rglob("*.*")}
    wheel.pause(topic="mail")
    clock.advance(start_s + (2000 if far else 70))
    while batch := keeper.claim(4):
        keeper.ack(batch)
    keeper._store.own.flush()
    deal(keeper)
    left = {str(p.relative_to(wheel.path)) for p in (Path(wheel.path) / "laps").rglob("*.*")}
    assert left == files if far else len(left) == 10
    wheel.resume(topic="mail")
    assert payloads(keeper.claim()) == [b"mail"] * 10


def test_a_message_that_is_cancelled_or_moved_while_it_is_paused_does_not_fire_after_the_resume(
    wheel: Wheel, keeper: Keeper
) -> None:
    ids = [wheel.enqueue(b"", topic="t") for _ in range(4)]
    wheel.pause(topic="t")
    assert not keeper.claim()
    assert wheel.cancel(ids[0])
    moved = wheel.reschedule(ids[1], delay=5)
    assert not keeper.claim()
    wheel.resume(topic="t")
    assert keeper.claim().ids == ids[2:]
    assert [m.id for m in wheel.list()] == [*ids[2:], moved]


def test_a_pause_of_a_wheel_and_of_a_topic_end_by_themselves(wheel: Wheel, keeper: Keeper) -> None:
    wheel.enqueue(b"a", topic="mail")
    wheel.enqueue(b"b", topic="other")
    wheel.pause(topic="mail")
    wheel.pause(topic="m*")
    wheel.pause(schedule="nightly")
    wheel.pause()
    assert str(wheel.paused()) == "topic mail, topic m*, schedule nightly, the wheel"
    assert [str(p) for p in wheel.paused().holding("mail")] == ["topic mail", "topic m*", "the wheel"]
    assert not keeper.claim()
    assert wheel.resume(topic="mail")
    assert wheel.resume()
    assert payloads(keeper.claim()) == [b"b"]
    assert wheel.resume(topic="nobody paused this") == ()
    assert len(wheel.resume(everything=True)) == 2
    assert payloads(keeper.claim()) == [b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_paused_resumed_cancelled_passed_over_and_given_back_is_claimed_once_when_nothing_holds_it(
    wheel: Wheel, clock: FakeClock, seed: int
) -> None:
    rng = random.Random(seed)
    alive: dict[bytes, str] = {}
    hands: dict[bytes, str] = {}
    ways: list[dict[str, str]] = [{}, {"topic": "a"}, {"topic": "[ab]"}, {"topic": "*"}, {"schedule": "nightly"}]
    budget = Budget(records=rng.choice([4, 16, 64]), bytes=rng.choice([400, 4000, 1 << 20]))
    with open_keeper(wheel, clock, budget) as keeper:
        for _ in range(250):
            match rng.randrange(10):
                case 0 | 1:
                    topic = rng.choice("abc")
                    delays = [rng.uniform(-20, 5) for _ in range(rng.randrange(1, 30))]
                    headers = NIGHTLY if rng.random() < 0.3 else None
                    for id_ in wheel.enqueue_many([b"p"] * len(delays), delay=delays, topic=topic, headers=headers):
                        alive[id_] = f"{topic} nightly" if headers else topic
                case 2:
                    for id_ in rng.sample(sorted(alive), min(len(alive), 5)):
                        if id_ not in hands:
                            wheel.cancel(MessageId(id_))
                            del alive[id_]
                case 3:
                    clock.advance(rng.uniform(0, 3))
                    deal(keeper)
                case 4:
                    wheel.pause(**rng.choice(ways))  # type: ignore[arg-type]
                case 5:
                    wheel.resume(**rng.choice(ways))  # type: ignore[arg-type]
                case 6:
                    some = rng.sample(sorted(hands), len(hands) // 2)
                    stopped = keeper.begin(some)
                    assert stopped == {i for i in some if is_held(wheel, hands[i])}
                    for id_ in stopped:
                        del hands[id_]
                case _:
                    rooms = {topic: rng.randrange(12) for topic in "ab" if rng.random() < 0.8}
                    batch = keeper.claim(rng.randrange(1, 40), at_most=rooms, begun=rng.random() < 0.5)
                    assert batch.ids == sorted(batch.ids)
                    for message in batch:
                        assert alive[message.id][0] == message.topic
                        assert message.id not in hands
                        assert not is_held(wheel, alive[message.id])
                        hands[message.id] = alive[message.id]
                    done = [i for i in hands if rng.random() < 0.4]
                    keeper.ack(done)
                    for id_ in done:
                        del hands[id_], alive[id_]
        wheel.resume(everything=True)
        clock.advance(10)
        deal(keeper)
        while batch := keeper.claim(50):
            hands |= {m.id: alive[m.id] for m in batch}
        assert hands == alive
        keeper.ack(list(hands))
        deal(keeper)
        assert wheel.stats().pending == 0


def is_held(wheel: Wheel, kind: str) -> bool:
    topic, _, schedule = kind.partition(" ")
    return bool(wheel.paused().holding(topic, schedule or None))


# -- a keeper that waits ----------------------------------------------------------------------------------------


def test_a_keeper_of_a_paused_wheel_sleeps_although_messages_are_due(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"")
        wheel.pause()
        assert not keeper.claim()
        naps: list[float] = []
        keeper._hints.wait = lambda timeout_s: bool(naps.append(timeout_s))  # type: ignore[method-assign,func-returns-value]
        keeper.wait()
        assert naps == [0.5]
        wheel.pause(topic="*")
        wheel.resume()
        assert not keeper.claim()
        keeper.wait()
        assert naps[1:] == [pytest.approx(0.5, abs=0.5)]


def test_a_resume_wakes_a_claim_that_waits(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        id_ = wheel.enqueue(b"", topic="t")
        wheel.pause(topic="t")
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(keeper.claim(wait=True)))
        waiting.start()
        wheel.resume(topic="t")
        waiting.join(60)
        assert [m.id for m in got[0]] == [id_]


def test_an_iteration_in_an_event_loop_hands_out_nothing_that_is_paused(wheel_dir: Path) -> None:
    async def main() -> list[bytes]:
        async with AsyncWheel(wheel_dir) as wheel:
            for n in range(6):
                await wheel.enqueue(b"%d" % n, topic="even" if n % 2 == 0 else "odd")
            seen: list[bytes] = []
            async for message in wheel.due(wait=False):
                seen.append(message.payload)
                if len(seen) == 1:
                    await wheel.pause(topic="odd", why="test")
                    assert [p.why for p in await wheel.paused()] == ["test"]
            await wheel.resume(topic="odd")
            async for message in wheel.due(wait=False):
                seen.append(message.payload)
            return seen

    assert asyncio.run(main()) == [b"0", b"2", b"4", b"1", b"3", b"5"]


# -- drains ---------------------------------------------------------------------------------------------------------


def test_a_drain_ends_the_batches_of_a_keeper_and_not_those_of_one_that_starts_after_it(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.enqueue(b"")
    (batch,) = keeper.claim()
    assert wheel.is_drained()  # it never was
    wheel.pause(drain=True)
    assert not keeper.claim()
    assert keeper.is_drained
    assert not wheel.is_drained()
    assert list(keeper.batches()) == []
    with pytest.raises(Closed, match="was drained"):
        keeper.claim(wait=True)
    keeper.ack(batch)
    keeper.close()
    assert wheel.is_drained()
    with open_keeper(wheel, clock) as again:
        assert not again.claim()
        assert not again.is_drained
        assert wheel.is_drained()
        wheel.pause(drain=True)  # and again
        again.claim()
        assert again.is_drained
        wheel.resume()
        again.claim()
        assert not again.is_drained


def test_a_standby_that_waited_for_a_keeper_that_is_drained_ends_too(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        keeper = Keeper(wheel_dir)
        ended: list[bool] = []

        def stand_by() -> None:
            with Keeper(wheel_dir) as standby:
                standby.claim()
                ended.append(standby.is_drained)

        waiting = threading.Thread(target=stand_by)
        take = keeper._keeper_lock
        waiting.start()
        assert eventually(lambda: _has_read_pauses(waiting))
        wheel.pause(drain=True)
        keeper.close()
        waiting.join(60)
        assert ended == [True]
        assert not take.held


def _has_read_pauses(thread: threading.Thread) -> bool:
    """Return whether a thread waits in the lock."""
    import sys
    import traceback

    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and any(f.name == "take" for f in traceback.extract_stack(frame))


def test_an_iteration_in_an_event_loop_ends_when_the_wheel_is_drained(wheel_dir: Path) -> None:
    async def main() -> list[bytes]:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue(b"last")
            seen = []
            async with wheel.due() as due:
                async for message in due:
                    seen.append(message.payload)
                    await wheel.pause(drain=True)
            assert await wheel.is_drained()
            async with AsyncKeeper(wheel_dir) as keeper:
                assert not await keeper.claim()
                await wheel.pause(drain=True)
                with pytest.raises(Closed, match="was drained"):
                    await keeper.claim(wait=True)
            return seen

    assert asyncio.run(main()) == [b"last"]


def test_a_keeper_of_a_version_that_knows_no_pauses_is_named_when_something_is_paused(
    wheel: Wheel, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    wheel.pause(topic="t")
    assert not caplog.records
    lock = Path(wheel.path) / "keeper.lock"
    note = json.loads(lock.read_bytes())
    assert note.pop("drains") == 0
    with lock.open("r+b") as file:
        file.write(json.dumps(note).encode().ljust(512))
    wheel.pause(topic="u")
    assert "does not heed pauses: restart it" in caplog.text
    assert not wheel.is_drained()
    held = holder(keeper.directory)
    assert held is not None
    assert held.drains is None


# -- what is due ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "count", "first_s", "paused"),
    [
        (None, 5, -50, 0),
        ({}, 0, None, 5),
        ({"topic": "a"}, 2, -40, 3),
        ({"topic": "*"}, 0, None, 5),
        ({"schedule": "nightly"}, 4, -50, 1),
    ],
)
def test_paused_messages_are_counted_apart_from_those_that_a_keeper_should_have_fired(
    wheel: Wheel, clock: FakeClock, way: dict[str, str] | None, count: int, first_s: int | None, paused: int
) -> None:
    for n, topic in enumerate("ababa"):
        wheel.enqueue(b"", topic=topic, delay=10 * n - 50, headers=NIGHTLY if n == 4 else None)
    wheel.enqueue(b"", topic="a", delay=1)
    if way is not None:
        wheel.pause(**way)  # type: ignore[arg-type]
    due = wheel.overdue()
    assert (due.count, due.paused) == (count, paused)
    assert due.first_us == (None if first_s is None else clock.wall_us + first_s * US_PER_S)
    assert due.lag_us == -(first_s or 0) * US_PER_S
    assert wheel.overdue(to_datetime(clock.wall_us - 45 * US_PER_S)).count == (1 if first_s == -50 else 0)


def test_the_pauses_that_hold_a_message_are_named_by_its_topic_and_its_schedule() -> None:
    message = Message(MessageId(bytes(16)), b"", "report", NIGHTLY)
    with_wheel = (Pause("topic", "re*"), Pause("schedule", "nightly"), Pause("schedule", "report"), Pause())
    from filewheel import Pauses

    assert Pauses(with_wheel).of(message) == (with_wheel[0], with_wheel[1], with_wheel[3])
    assert Pauses().of(message) == ()
