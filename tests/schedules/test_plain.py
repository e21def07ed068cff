"""Schedules of plain messages: a wheel plants, edits and ends them; a consumer with a Keeper continues them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import filewheel.changes
from filewheel import (
    AsyncWheel,
    BadArgument,
    Cancelled,
    Every,
    Keeper,
    KeyHeld,
    Message,
    NotFound,
    PlainOccurrences,
    PlainSchedule,
    Scheduler,
    Settlement,
    StoredSchedule,
    Wheel,
    schedule_of,
)  # fmt: skip
from filewheel.message import ARGS, KEY, RETRY, SCHEDULE, TIMEOUT, US_PER_S, to_datetime
from filewheel.schedules.occurrences import only_a_scheduler_fires
from filewheel.schedules.planting import own_headers
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock

START_S = START_US // US_PER_S
"""2027-01-15 08:00:00 UTC, a Friday; a full hour."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_US + US_PER_S // 2)


@pytest.fixture
def wheel(tmp_path: Path, clock: FakeClock) -> Iterator[Wheel]:
    with Wheel.create(tmp_path / "w", sync="never", clock=clock) as made:
        yield made
    assert_whole(tmp_path / "w")


@pytest.fixture
def keeper(wheel: Wheel, clock: FakeClock) -> Iterator[Keeper]:
    with Keeper(wheel.path, clock=clock, background=False) as made:
        yield made


def the_one(wheel: Wheel) -> StoredSchedule:
    (found,) = wheel.schedules()
    return found


def claimed(keeper: Keeper) -> Message:
    (message,) = keeper.claim()
    return message


# -- planting ---------------------------------------------------------------------------------------------------------


def test_the_occurrence_of_a_schedule_is_a_plain_message_that_is_no_call(wheel: Wheel) -> None:
    id_ = wheel.schedule("nightly", "0 3 * * *", b"backup.sh", topic="sh", headers={"a": "b"}, tz="Europe/Berlin")
    message = wheel.get(id_)
    assert message is not None
    assert (message.payload, message.topic, message.key) == (b"backup.sh", "sh", "filewheel.every:nightly")
    assert ARGS not in message.headers
    assert not only_a_scheduler_fires(message)
    found = the_one(wheel)
    assert (found.name, found.next, found.topic) == ("nightly", datetime(2027, 1, 16, 2, tzinfo=UTC), "sh")
    assert wheel.schedules("night*") == wheel.schedules("nightly") == [found]
    assert wheel.schedules("x") == wheel.schedules("x*") == []


def test_starting_the_same_again_changes_nothing(wheel: Wheel, clock: FakeClock) -> None:
    first = wheel.schedule("n", 60, b"x", topic="t", headers={"a": "b"})
    clock.advance(30)
    again = wheel.schedule("n", 60, b"x", topic="t", headers={"a": "b"})
    assert (again, again.kept, first.kept) == (first, True, False)


@pytest.mark.parametrize("changed", [{"payload": b"y"}, {"topic": "u"}, {"headers": {}}, {"missed": "all"}])
def test_another_body_keeps_the_time_of_an_occurrence_that_is_overdue(
    wheel: Wheel, clock: FakeClock, changed: dict[str, Any]
) -> None:
    given = {"payload": b"x", "topic": "t", "headers": {"a": "b"}}
    wheel.schedule("n", 600, **given)
    clock.advance(3000)
    new = wheel.schedule("n", 600, **(given | changed))
    assert new.due_us == START_US + 600 * US_PER_S
    assert the_one(wheel).occurrence.id == new


def test_other_times_begin_at_the_next_one(wheel: Wheel, clock: FakeClock) -> None:
    wheel.schedule("n", 600, b"x")
    clock.advance(30)
    assert wheel.schedule("n", 700, b"x").due_us == Every(700).after(clock.now_us())


def test_other_times_begin_after_an_occurrence_that_is_due_already(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 600, b"x")
    clock.advance(3000)
    for change in ({"when": 700}, {"missed": "all"}, {"when": to_datetime(START_US + 9000 * US_PER_S)}, {"when": 700}):
        assert wheel.edit_schedule("n", **change).due_us == START_US + 600 * US_PER_S  # type: ignore[arg-type]
    assert wheel.edit_schedule("n", missed="once").due_us == START_US + 600 * US_PER_S
    keeper.settle([PlainOccurrences(keeper).succeeded(claimed(keeper), clock.now_us())])
    assert the_one(wheel).occurrence.due_us == Every(700).after(clock.now_us())


def test_an_occurrence_that_waits_for_a_retry_is_not_replaced_by_other_times(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 600, b"x")
    clock.advance(600)
    keeper.settle([PlainOccurrences(keeper).failed(claimed(keeper), clock.now_us(), delay_us=60 * US_PER_S)])
    assert wheel.schedule("n", 700, b"y").due_us == clock.now_us() + 60 * US_PER_S


def test_while_an_occurrence_runs_another_body_has_the_next_time(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 600, b"x", count=3)
    clock.advance(601)
    message = claimed(keeper)
    new = wheel.schedule("n", 600, b"y", count=3)
    assert new.due_us == START_US + 1200 * US_PER_S
    assert the_one(wheel).left == 2  # the one that runs has been a call
    keeper.settle([PlainOccurrences(keeper).succeeded(message, clock.now_us())])
    assert the_one(wheel).occurrence.id == new


def test_a_name_that_is_held_is_kept_or_refused_if_that_is_asked_for(wheel: Wheel) -> None:
    first = wheel.schedule("n", 60, b"x")
    kept = wheel.schedule("n", 90, b"y", on_conflict="keep")
    assert (kept, kept.kept) == (first, True)
    with pytest.raises(KeyHeld, match="there is a schedule 'n' already"):
        wheel.schedule("n", 60, b"x", on_conflict="reject")
    assert the_one(wheel).recurrence == Every(60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": ""}, "the name of a schedule"),
        ({"name": "x" * 201}, "the name of a schedule"),
        ({"when": "61 * * * *"}, "minute '61'"),
        ({"when": "no"}, "neither an interval nor a cron expression"),
        ({"tz": "Mars", "when": "@daily"}, "Mars"),
        ({"missed": "never"}, "missed is"),
        ({"headers": {KEY: "k"}}, "the schedule's own"),
        ({"headers": {SCHEDULE: "{}"}}, "the schedule's own"),
        ({"on_conflict": "ask"}, "on_conflict"),
        ({"payload": "text"}, "payload"),
        ({"when": to_datetime(START_US - 1)}, "has passed"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_and_the_old_one_stays(
    wheel: Wheel, given: dict[str, Any], said: str
) -> None:
    first = wheel.schedule("n", 60, b"x")
    with pytest.raises(BadArgument, match=said):
        wheel.schedule(**({"name": "n", "when": 60, "payload": b"x"} | given))
    assert the_one(wheel).occurrence.id == first


def test_many_schedules_are_planted_together_or_none(wheel: Wheel) -> None:
    wheel.schedule("b", 60, b"old")
    with pytest.raises(KeyHeld):
        wheel.schedule_many([PlainSchedule("a", 60), PlainSchedule("b", 60, on_conflict="reject")])
    with pytest.raises(BadArgument, match="two schedules of this call"):
        wheel.schedule_many([PlainSchedule("c", 60), PlainSchedule("c", 90)])
    assert [s.name for s in wheel.schedules()] == ["b"]
    ids = wheel.schedule_many([PlainSchedule(name, 60, b"new") for name in "abc"])
    assert {s.name: s.occurrence.payload for s in wheel.schedules()} == dict.fromkeys("abc", b"new")
    assert wheel.schedule_many([PlainSchedule(name, 60, b"new") for name in "abc"]) == ids
    assert wheel.schedule_many([]) == []


def test_of_threads_that_replace_one_schedule_at_once_one_occurrence_is_left(wheel: Wheel) -> None:
    def replace(number: int) -> None:
        for n in range(20):
            wheel.schedule("n", 60, b"%d %d" % (number, n))

    threads = [threading.Thread(target=replace, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert the_one(wheel).occurrence.payload.endswith(b" 19")


def test_what_another_administrator_did_in_between_is_not_undone(
    wheel: Wheel, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel.schedule("n", 60, b"x", topic="t")
    decide, done = filewheel.changes.decide, []

    def late(*args: Any, **options: Any) -> Any:
        decided = decide(*args, **options)
        if not done:
            done.append(True)
            with Wheel(wheel.path, clock=clock) as other:
                other.edit_schedule("n", topic="theirs")
        return decided

    monkeypatch.setattr(filewheel.changes, "decide", late)
    wheel.edit_schedule("n", payload=b"mine")
    found = the_one(wheel)
    assert (found.topic, found.occurrence.payload) == ("theirs", b"mine")


# -- editing and ending -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"when": "30 4 * * *"}, {"recurrence": "30 4 * * *"}),
        ({"tz": "Asia/Tokyo"}, {"tz": "Asia/Tokyo"}),
        ({"missed": "skip", "grace_s": 5}, {"missed": "skip", "grace_us": 5 * US_PER_S}),
        ({"jitter_s": 30}, {"jitter_us": 30 * US_PER_S}),
        ({"end": None}, {"end_us": None}),
        ({"count": 9}, {"count": 9, "left": 9}),
        ({"count": None}, {"count": None, "left": None}),
        ({"topic": "u"}, {"topic": "u"}),
        ({}, {}),
    ],
)
def test_an_edit_changes_what_is_given_and_nothing_else(
    wheel: Wheel, given: dict[str, Any], changed: dict[str, Any]
) -> None:
    end = datetime(2028, 1, 1, tzinfo=UTC)
    wheel.schedule("n", "0 3 * * *", b"x", topic="t", headers={"a": "b"}, tz="Europe/Berlin", count=5, end=end)

    def shown() -> dict[str, Any]:
        found = the_one(wheel)
        names = ("missed", "grace_us", "start_us", "end_us", "jitter_us", "count", "left", "topic")
        cron: Any = found.recurrence
        return {
            **{name: getattr(found, name) for name in names},
            "recurrence": cron.text, "tz": cron.tz, "payload": found.occurrence.payload,
            "a": found.occurrence.headers["a"],
        }  # fmt: skip

    before = shown()
    wheel.edit_schedule("n", **given)
    assert shown() == before | changed


def test_other_headers_keep_the_retries_and_the_time_out_of_a_schedule(wheel: Wheel) -> None:
    def headers() -> dict[str, str]:
        return own_headers(the_one(wheel).occurrence)

    wheel.schedule("n", 600, b"x", headers={"a": "b", "c": "d", RETRY: "{}", TIMEOUT: "5.0"})
    wheel.edit_schedule("n", headers={"e": "f"})
    assert headers() == {"e": "f", RETRY: "{}", TIMEOUT: "5.0"}
    wheel.edit_schedule("n", change_headers={"g": "h", RETRY: None, TIMEOUT: "6.0", "none": None})
    assert headers() == {"e": "f", "g": "h", TIMEOUT: "6.0"}
    wheel.edit_schedule("n", headers={TIMEOUT: "7.0"}, change_headers={"i": "j"})
    assert headers() == {TIMEOUT: "7.0", "i": "j"}
    wrong: list[dict[str, Any]] = [
        {"headers": {"k": None}}, {"headers": 5}, {"change_headers": 5}, {"change_headers": {"k": 5}},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(BadArgument, match="headers"):
            wheel.edit_schedule("n", **given)
    assert headers() == {TIMEOUT: "7.0", "i": "j"}


def test_an_interval_that_gets_another_start_counts_from_it(wheel: Wheel) -> None:
    wheel.schedule("n", 600, b"x", start=START_S + 50)
    assert the_one(wheel).occurrence.due_us == START_US + 50 * US_PER_S
    wheel.edit_schedule("n", start=START_S + 70)
    assert the_one(wheel).occurrence.due_us == START_US + 70 * US_PER_S


def test_an_edit_of_what_it_cannot_edit_is_refused(wheel: Wheel, clock: FakeClock) -> None:
    with pytest.raises(NotFound, match="there is no schedule 'n'"):
        wheel.edit_schedule("n", topic="t")
    wheel.schedule("n", 60)
    with pytest.raises(BadArgument, match="only a cron expression has a zone"):
        wheel.edit_schedule("n", tz="Asia/Tokyo")
    scheduler = Scheduler(wheel.path, clock=clock, sync="never")
    scheduler.every(60, name="theirs")(scheduler.on("tick")(print))
    scheduler.drain()
    scheduler.schedule("call", 60, "tick")
    with pytest.raises(KeyHeld, match="a program declares"):
        wheel.edit_schedule("theirs", when=90)
    with pytest.raises(BadArgument, match="its call cannot be edited.*--args JSON"):
        wheel.edit_schedule("call", payload=b"x")
    wheel.edit_schedule("call", when=90)
    assert {s.name: s.recurrence for s in scheduler.schedules("call")} == {"call": Every(90)}
    scheduler.stop()


def test_an_ended_schedule_says_whether_its_occurrence_runs(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    wheel.schedule("n", 60, b"x")
    assert wheel.unschedule("n") is Cancelled.STOPPED
    assert wheel.unschedule("n") is Cancelled.NOT_FOUND
    wheel.schedule("n", 60, b"x")
    clock.advance(60)
    message = claimed(keeper)
    assert wheel.unschedule("n") is Cancelled.BEGUN
    keeper.settle([PlainOccurrences(keeper).succeeded(message, clock.now_us())])
    assert wheel.schedules() == []


def test_an_async_wheel_does_the_same(tmp_path: Path, clock: FakeClock) -> None:
    async def play() -> None:
        async with AsyncWheel.create(tmp_path / "w", sync="never", clock=clock) as wheel:
            await wheel.schedule("a", 60, b"x")
            await wheel.schedule_many([PlainSchedule("b", 60), PlainSchedule("c", 60)])
            await wheel.edit_schedule("b", topic="t")
            assert await wheel.unschedule("c")
            assert {s.name: s.topic for s in await wheel.schedules()} == {"a": "", "b": "t"}

    asyncio.run(play())
    assert_whole(tmp_path / "w")


# -- firing with a keeper of one's own ---------------------------------------------------------------------------------


def test_a_message_that_succeeded_is_followed_by_the_next_occurrence(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 60, b"x", topic="t", headers={"a": "b"})
    plain = PlainOccurrences(keeper)
    for n in range(1, 4):
        clock.advance(60)
        message = claimed(keeper)
        assert plain.passed_over(message) is None
        keeper.settle([plain.succeeded(message, clock.now_us())])
        found = the_one(wheel).occurrence
        assert (found.payload, found.topic, found.headers["a"]) == (b"x", "t", "b")
        assert (found.due_us, found.attempt, found.root) == (START_US + 60 * (n + 1) * US_PER_S, 0, None)


def test_a_plain_message_is_settled_as_ack_nack_and_bury_do(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    plain = PlainOccurrences(keeper)
    message = Message(wheel.enqueue(b"x"), b"x")
    assert plain.passed_over(message) is None
    assert plain.succeeded(message, 5) == Settlement(message.id)
    assert plain.failed(message, 5, delay_us=7) == Settlement(message.id, "retried", clock.now_us() + 7)
    assert plain.failed(message, 5, delay_us=None, reason="no") == Settlement(message.id, "buried", reason="no")


def test_a_failure_is_retried_only_before_the_next_occurrence_is_due(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 60, b"x")
    plain = PlainOccurrences(keeper)
    clock.advance(60)
    keeper.settle([plain.failed(claimed(keeper), clock.now_us(), delay_us=20 * US_PER_S)])
    assert the_one(wheel).occurrence.attempt == 1
    clock.advance(20)
    keeper.settle([plain.failed(claimed(keeper), clock.now_us(), delay_us=50 * US_PER_S, reason="broken")])
    (letter,) = wheel.list(dead=True)
    assert (letter.reason, letter.key, SCHEDULE in letter.headers) == ("broken", None, False)
    found = the_one(wheel).occurrence
    assert (found.due_us, found.attempt) == (START_US + 120 * US_PER_S, 0)


def test_an_occurrence_that_is_too_late_is_passed_over_and_its_schedule_goes_on(
    wheel: Wheel, keeper: Keeper, clock: FakeClock
) -> None:
    wheel.schedule("n", 60, b"x", missed="skip", grace_s=30, count=5)
    clock.advance(600)
    settlement = PlainOccurrences(keeper).passed_over(claimed(keeper))
    assert settlement is not None
    keeper.settle([settlement])
    assert (the_one(wheel).occurrence.due_us, the_one(wheel).left) == (START_US + 660 * US_PER_S, 5)


@pytest.mark.parametrize(
    "stored",
    [
        "{}", "no", '{"name":"n","when":"{\\"moon\\":1}","missed":"once","grace_us":0,"declared":false}',
        '{"name":"n","when":"{\\"at_us\\":5}","missed":"once","grace_us":0,"declared":true}',
        '{"name":"n","when":"{\\"at_us\\":5}","missed":"once","grace_us":0,"declared":false,"left":0}',
    ],
    ids=["empty", "no JSON", "unknown", "declared", "over"],
)  # fmt: skip
def test_an_occurrence_that_cannot_be_continued_is_not_started(
    wheel: Wheel, keeper: Keeper, clock: FakeClock, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = wheel.enqueue(b"x", headers={SCHEDULE: stored}, key="filewheel.every:n")
    message = claimed(keeper)
    if '"declared":true' in stored:
        assert only_a_scheduler_fires(message)
        return
    settlement = PlainOccurrences(keeper).passed_over(message)
    assert settlement is not None
    keeper.settle([settlement])
    found = the_one(wheel)
    assert (found.name, found.occurrence.root, found.occurrence.attempt) == ("n", id_, 0)
    assert found.unreadable
    assert "cannot be read here" in (found.occurrence.waits or "")
    assert found.occurrence.waits_since_us == id_.due_us
    assert "cannot be read here" in caplog.text
    clock.advance(301)
    assert claimed(keeper).id == found.occurrence.id  # it is looked at again


def test_what_another_version_has_stored_is_passed_on(wheel: Wheel, keeper: Keeper, clock: FakeClock) -> None:
    more = '"count":3,"left":3,"colour":"red"}'
    stored = '{"name":"n","when":"{\\"every_us\\":60000000,\\"start_us\\":0}","missed":"once",'
    stored += '"grace_us":0,"declared":false,'
    wheel.enqueue(b"x", headers={SCHEDULE: stored + more}, key="filewheel.every:n")
    keeper.settle([PlainOccurrences(keeper).succeeded(claimed(keeper), clock.now_us())])
    assert '"colour":"red"' in the_one(wheel).occurrence.headers[SCHEDULE]
    assert the_one(wheel).left == 2


def test_a_scheduler_calls_the_handler_of_the_topic_with_the_payload(wheel: Wheel, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel.path, clock=clock, sync="never")
    called: list[bytes] = []
    scheduler.on("t")(called.append)
    wheel.schedule("n", 60, b"x", topic="t", count=2)
    for _ in range(4):
        clock.advance(60)
        scheduler.drain()
    assert called == [b"x", b"x"]
    assert wheel.schedules() == []
    scheduler.stop()


def test_a_schedule_of_a_message_is_read_with_its_occurrence(wheel: Wheel) -> None:
    message = wheel.get(wheel.schedule("n", 60, b"x"))
    assert message is not None
    found = schedule_of(message)
    assert found is not None
    assert found.occurrence is message


def test_due_hands_out_occurrences_and_their_schedules_go_on(tmp_path: Path, clock: FakeClock) -> None:
    async def play() -> None:
        async with AsyncWheel.create(tmp_path / "w", sync="never", clock=clock) as wheel:
            await wheel.schedule("n", 60, b"x", count=3)
            await wheel.schedule("late", 60, b"late", missed="skip", grace_s=0)
            await wheel.schedule("dead", 60, b"dead")
            await wheel.enqueue(b"plain", at=to_datetime(START_US + 60 * US_PER_S))
            seen: list[bytes] = []
            for _ in range(2):
                clock.advance(60)
                async for message in wheel.due(wait=False):
                    seen.append(message.payload)
            async with wheel.due(wait=False) as due:
                clock.advance(60)
                async for message in due:
                    seen.append(message.payload)
                    if message.payload == b"dead":
                        await due.bury(message, reason="no")
                    elif message.payload == b"x":
                        await due.ack(message)
            assert sorted(seen) == [b"dead", b"dead", b"dead", b"plain", b"x", b"x", b"x"]
            assert {s.name for s in await wheel.schedules()} == {"dead", "late"}
            (letter,) = [message async for message in wheel.list(dead=True)]
            assert (letter.payload, letter.reason, letter.key) == (b"dead", "no", None)

    asyncio.run(play())
    assert_whole(tmp_path / "w")
