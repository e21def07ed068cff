"""The jobs that wait: listed, found, moved and cancelled through a scheduler, by handler, id and key."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Cancelled,
    KeyHeld,
    MessageId,
    NotFound,
    Retry,
    Scheduler,
    Wheel,
)
from filewheel.message import Message
from tests.conftest import assert_whole
from tests.scheduling.stage import make, stage
from tests.support import FakeClock


def told(messages: list[Message]) -> list[tuple[str, object]]:
    return [(m.topic, (m.args or [None])[0]) for m in messages]


def test_jobs_are_listed_in_due_order_of_a_handler_a_glob_or_all(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.on("mail.welcome")
    def welcome(to: str) -> None: ...

    welcome.after(30, "late")
    welcome.after(10, "early")
    scheduler.enqueue("mail.news", ["news"], delay=20)
    scheduler.enqueue("report", ["report"], delay=5)
    assert told([*scheduler.list()]) == [
        ("report", "report"), ("mail.welcome", "early"), ("mail.news", "news"), ("mail.welcome", "late"),
    ]  # fmt: skip
    assert told([*scheduler.list(welcome)]) == [("mail.welcome", "early"), ("mail.welcome", "late")]
    assert [*scheduler.list("mail.welcome")] == [*scheduler.list(welcome)]
    assert told([*scheduler.list("mail.*", limit=2)]) == [("mail.welcome", "early"), ("mail.news", "news")]
    before = clock.now_us() / 1e6 + 15
    assert told([*scheduler.list("mail.*", before=before)]) == [("mail.welcome", "early")]
    assert [*scheduler.list("nobody")] == []


def test_a_job_shows_its_call_its_key_and_its_attempts_and_a_dead_one_its_reason(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    @scheduler.on(retry=Retry(limit=1, delay_s=10, jitter=0))
    def broken(n: int, *, at: str) -> None:
        raise ValueError("no")

    broken.options(key="k").enqueue(7, at="x")
    scheduler.drain()
    (job,) = scheduler.list(broken)
    assert (job.args, job.kwargs, job.key, job.reason) == ([7], {"at": "x"}, "k", None)
    assert [a.error for a in job.attempts] == ["ValueError: no"]
    clock.advance(10)
    scheduler.drain()
    assert [*scheduler.list(broken)] == []
    (dead,) = scheduler.list(broken, dead=True)
    assert dead.reason == "ValueError: no (after 2 attempts)"
    assert scheduler.get(dead.id) == dead


def test_a_list_reads_only_as_far_as_it_is_asked(scheduler: Scheduler) -> None:
    scheduler.wheel.enqueue_many([b"x"] * 2000, topic="many")
    found = scheduler.list("many")
    assert len([*itertools.islice(found, 3)]) == 3
    scheduler.wheel.clear()
    assert [*scheduler.list("many")] == []


def test_a_job_is_found_and_moved_by_its_id_and_by_its_key(scheduler: Scheduler, clock: FakeClock) -> None:
    calls: list[str] = []

    @scheduler.on()
    def note(text: str) -> None:
        calls.append(text)

    plain, keyed = note.after(60, "plain"), note.options(key="k").after(60, "keyed")
    moved = scheduler.reschedule(plain, delay=5)
    assert scheduler.get(plain) is None
    found = scheduler.get(moved)
    assert found is not None
    assert found.root == plain
    new = scheduler.reschedule(key="k", at=clock.now_us() / 1e6 + 5)
    held = scheduler.get(key="k")
    assert held is not None
    assert held.id == new
    assert new != keyed
    clock.advance(5)
    assert scheduler.drain() == 2
    assert sorted(calls) == ["keyed", "plain"]
    for missing in ({"id_": moved}, {"key": "k"}):
        assert scheduler.get(**missing) is None
        with pytest.raises(NotFound):
            scheduler.reschedule(**missing, delay=1)  # type: ignore[arg-type]


def test_a_dead_letter_is_moved_back_to_life_unless_its_key_is_held(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.on(retry=Retry(limit=0))
    def broken() -> None:
        raise ValueError

    broken.options(key="k").enqueue()
    scheduler.drain()
    (dead,) = scheduler.list(dead=True)
    other = broken.options(key="k").after(60)
    with pytest.raises(KeyHeld):
        scheduler.reschedule(dead.id, delay=5)
    scheduler.cancel(other)
    alive = scheduler.get(scheduler.reschedule(dead.id, delay=5))
    assert alive is not None
    assert (alive.key, alive.attempt, alive.is_dead) == ("k", 0, False)


def test_cancel_all_cancels_what_waits_for_a_handler_and_leaves_schedules_dead_letters_and_others(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    seen: list[tuple[str, str]] = []
    scheduler.on_event(lambda event: seen.append((event.kind, event.outcome)), ["cancelled"])

    @scheduler.on("mail", retry=Retry(limit=0))
    def mail(to: str) -> None:
        raise ValueError

    mail.enqueue("dead")
    scheduler.drain()
    scheduler.schedule("nightly", 3600, mail, ["nightly"])
    scheduler.enqueue("mailbox", ["other"], delay=5)
    for n in range(3):
        mail.options(key=f"k{n}").after(n, "ann")
    assert scheduler.cancel_all(mail) == 3
    assert told([*scheduler.list()]) == [("mailbox", "other"), ("mail", "nightly")]
    assert len([*scheduler.list(mail, dead=True)]) == 1
    assert seen == [("cancelled", "stopped")] * 3
    assert scheduler.metrics.snapshot()["counters"]["cancelled"][""] == 3
    mail.options(key="k0").enqueue("the key is free")
    assert scheduler.cancel_all("mai*") == 2
    assert scheduler.cancel_all("*") == 0
    assert [s.name for s in scheduler.schedules()] == ["nightly"]
    assert scheduler.unschedule("nightly")


def test_cancel_all_of_more_than_one_commit_cancels_each_once(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.changes.CLEAR_AT_ONCE", 10)
    scheduler.wheel.enqueue_many([b"x"] * 25, topic="many", delay=60)
    assert scheduler.cancel_all("many") == 25
    assert [*scheduler.list()] == []


def test_a_job_that_has_begun_is_counted_goes_on_and_is_not_retried(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)
    outcomes: list[str] = []
    scheduler.on_event(lambda event: outcomes.append(event.outcome), ["cancelled"])

    @scheduler.on(retry=Retry(limit=5))
    def work() -> None:
        raise ValueError

    work.enqueue()
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert on_stage.dispatcher.begin(on_stage.runner.calls[0])
        assert scheduler.cancel_all(work) == 1
        on_stage.finish()
    assert outcomes == ["begun"]
    assert [*scheduler.list()] == [] == [*scheduler.list(dead=True)]
    scheduler.stop()


@pytest.mark.parametrize("wrong", [None, "", 5, b"mail", ["mail"]])
def test_cancel_all_without_a_name_is_refused_and_cancels_nothing(scheduler: Scheduler, wrong: object) -> None:
    scheduler.enqueue("mail", delay=5)
    scheduler.wheel.enqueue(b"without a topic")
    with pytest.raises(BadArgument, match=r'cancel_all\("\*"\)'):
        scheduler.cancel_all(wrong)  # type: ignore[arg-type]
    assert len([*scheduler.list()]) == 2


def test_the_handler_of_any_name_names_no_jobs(scheduler: Scheduler) -> None:
    @scheduler.on("*")
    def anything(*args: object) -> None: ...

    scheduler.enqueue("mail", delay=5)
    with pytest.raises(BadArgument, match="no jobs of its own"):
        scheduler.list(anything)
    with pytest.raises(BadArgument, match="no jobs of its own"):
        scheduler.cancel_all(anything)
    assert scheduler.cancel_all("*") == 1


def test_a_list_of_wrong_arguments_is_refused_before_it_is_read(scheduler: Scheduler) -> None:
    with pytest.raises(BadArgument):
        scheduler.list(limit=-1)
    with pytest.raises(BadArgument, match="only one of them"):
        scheduler.get(MessageId(16), key="k")
    with pytest.raises(BadArgument, match="only one of them"):
        scheduler.reschedule(delay=5)


def test_the_calls_of_an_async_scheduler_do_the_same(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "w"

    async def main() -> None:
        scheduler = AsyncScheduler(path, clock=clock)

        @scheduler.on()
        async def mail(to: str) -> None: ...

        ids = [await mail.options(key=to).after(60, to) for to in ("ann", "bob", "cid")]
        await scheduler.enqueue("other", delay=90)
        await scheduler.schedule("nightly", 3600, mail, ["nightly"])
        assert [m.args async for m in scheduler.list(mail, limit=3)] == [["ann"], ["bob"], ["cid"]]
        found = await scheduler.get(ids[1])
        assert found is not None
        assert found.key == "bob"
        assert await scheduler.get(key="nobody") is None
        moved = await scheduler.reschedule(key="bob", delay=1)
        assert await scheduler.get(ids[1]) is None
        with pytest.raises(NotFound):
            await scheduler.reschedule(ids[1], delay=1)
        assert await scheduler.cancel(moved) is Cancelled.STOPPED
        with pytest.raises(BadArgument):
            await scheduler.cancel_all("")
        assert await scheduler.cancel_all(mail) == 2
        assert [m.topic async for m in scheduler.list()] == ["other", "mail"]
        assert scheduler.metrics.snapshot()["counters"]["cancelled"][""] == 3
        await scheduler.stop()

    asyncio.run(main())
    assert_whole(path)


def test_a_process_without_handlers_lists_and_cancels_by_name(scheduler: Scheduler, wheel_dir: Path) -> None:
    scheduler.on("mail")(lambda to: None).enqueue("ann")
    other = Scheduler(wheel_dir)
    assert told([*other.list("mail")]) == [("mail", "ann")]
    assert other.cancel_all("mail") == 1
    other.stop()
    with Wheel(wheel_dir) as wheel:
        assert wheel.next_due() is None
