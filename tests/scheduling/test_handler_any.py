"""The handler for any name, and the call that a message stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncScheduler,
    BadArgument,
    Damaged,
    Message,
    MessageId,
    Retry,
    Scheduler,
    StoredCall,
    Wheel,
    call_of,
    current_job,
)
from filewheel.message import ARGS, REASON
from tests.support import FakeClock, eventually

Called = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


@pytest.fixture
def called() -> Called:
    return []


def take_any(scheduler: Scheduler, called: Called, **terms: Any) -> None:
    @scheduler.on("*", **terms)
    def fallback(*args: Any, **kwargs: Any) -> None:
        called.append((current_job().handler, args, kwargs))


def test_a_name_that_no_handler_has_is_called_and_the_job_says_the_name(scheduler: Scheduler, called: Called) -> None:
    take_any(scheduler, called)
    scheduler.enqueue("mail", ["ann"], {"times": 2})
    scheduler.enqueue("news")
    assert scheduler.drain() == 2
    assert called == [("mail", ("ann",), {"times": 2}), ("news", (), {})]


def test_a_name_that_has_a_handler_goes_to_that_one_wherever_the_other_is_declared(
    scheduler: Scheduler, called: Called
) -> None:
    mails: list[str] = []
    take_any(scheduler, called)
    scheduler.on("mail")(mails.append)
    scheduler.enqueue("mail", ["ann"])
    scheduler.enqueue("other", ["bob"])
    scheduler.drain()
    assert (mails, called) == (["ann"], [("other", ("bob",), {})])


@pytest.mark.parametrize("topic", ["", "*", "plain"])
def test_a_message_without_arguments_goes_to_it_with_its_payload(
    scheduler: Scheduler, called: Called, topic: str
) -> None:
    take_any(scheduler, called)
    scheduler.wheel.enqueue(b"\0raw", topic=topic)
    scheduler.drain()
    assert called == [(topic, (b"\0raw",), {})]


@pytest.mark.parametrize("unknown", ["wait", "bury"])
def test_with_it_nothing_is_unknown_and_what_waited_for_a_handler_is_called_when_it_is_looked_at_again(
    wheel_dir: Path, clock: FakeClock, called: Called, unknown: str
) -> None:
    without = Scheduler(wheel_dir, clock=clock)
    without.enqueue("early")
    assert without.drain() == 1  # put off
    without.stop()
    scheduler = Scheduler(wheel_dir, clock=clock, unknown=unknown)
    take_any(scheduler, called)
    scheduler.enqueue("now")
    clock.advance(300)
    scheduler.drain()
    assert sorted(name for name, _, _ in called) == ["early", "now"]
    assert scheduler.metrics.counts("unknown").get("now", 0) == 0
    assert list(scheduler.wheel.list(dead=True)) == []
    scheduler.stop()


def test_its_calls_are_counted_and_told_under_the_names_that_they_have(scheduler: Scheduler, called: Called) -> None:
    take_any(scheduler, called)
    told: list[tuple[str, str]] = []
    scheduler.on_event(lambda event: told.append((event.kind, event.handler)), ["fired", "acknowledged"])
    scheduler.enqueue("mail")
    scheduler.drain()
    assert told == [("fired", "mail"), ("acknowledged", "mail")]
    assert scheduler.metrics.counts("fired") == {"mail": 1}
    assert set(scheduler.metrics.times("handler")) == {"mail"}


def test_what_fails_in_it_is_tried_again_and_dies_under_its_name(
    scheduler: Scheduler, clock: FakeClock, called: Called
) -> None:
    @scheduler.on("*", retry=Retry(limit=1, delay_s=5, jitter=0))
    def fallback() -> None:
        called.append((current_job().handler, (current_job().attempt,), {}))
        raise ValueError("no")

    scheduler.enqueue("mail", key="k")
    scheduler.drain()
    clock.advance(5)
    scheduler.drain()
    assert called == [("mail", (0,), {}), ("mail", (1,), {})]
    (dead,) = scheduler.wheel.list(dead=True)
    assert (dead.topic, dead.headers[REASON]) == ("mail", "ValueError: no (after 2 attempts)")


def test_arguments_for_a_name_are_not_checked_by_the_function_for_any(scheduler: Scheduler) -> None:
    @scheduler.on("*", skip_late_s=5)
    def fallback() -> None: ...

    id_ = scheduler.enqueue("defined elsewhere", [1, 2, 3])
    message = scheduler.wheel.get(id_)
    assert message is not None
    assert set(message.headers) == {ARGS}


def test_it_cannot_be_called_by_its_own_name_nor_recur(scheduler: Scheduler) -> None:
    @scheduler.on("*")
    def fallback() -> None: ...

    assert fallback() is None  # type: ignore[func-returns-value]
    for call in (
        fallback.enqueue,
        lambda: fallback.after(5),
        lambda: fallback.options(key="k").enqueue(),
        lambda: scheduler.enqueue("*"),
        lambda: scheduler.enqueue(fallback),
        lambda: scheduler.schedule("s", 60, "*"),
        lambda: scheduler.every(60)(fallback),
    ):
        with pytest.raises(BadArgument, match="the handler for any other name"):
            call()
    assert list(scheduler.wheel.list()) == []


@pytest.mark.parametrize("terms", [{"concurrency": 1}, {"rate_per_s": 5}, {"batch": 10}, {"where": "process"}])
def test_what_can_be_said_of_one_name_only_is_refused(scheduler: Scheduler, terms: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="any name"):
        scheduler.on("*", **terms)(work)


def work() -> None: ...


def test_a_schedule_that_another_program_started_is_called_and_goes_on(
    scheduler: Scheduler, clock: FakeClock, called: Called
) -> None:
    scheduler.schedule("minutely", 60, "report", ["x"])
    take_any(scheduler, called)
    for _ in range(3):
        clock.advance(60)
        scheduler.drain()
    assert called == [("report", ("x",), {})] * 3


def test_it_is_called_by_the_threads_of_a_scheduler_that_runs(wheel_dir: Path, called: Called) -> None:
    scheduler = Scheduler(wheel_dir, threads=2)
    take_any(scheduler, called)
    with scheduler:
        for n in range(50):
            scheduler.enqueue(f"name {n}", [n])
        eventually(lambda: len(called) == 50)
    assert sorted(args[0] for _, args, _ in called) == list(range(50))


def test_the_scheduler_of_an_event_loop_has_one_too(wheel_dir: Path) -> None:
    scheduler = AsyncScheduler(wheel_dir)
    called: list[tuple[str, str]] = []

    @scheduler.on("*")
    async def fallback(who: str) -> None:
        called.append((current_job().handler, who))

    async def main() -> None:
        with pytest.raises(BadArgument):
            await fallback.enqueue("ann")
        with pytest.raises(BadArgument):
            await scheduler.enqueue("*", ["ann"])
        await scheduler.enqueue("mail", ["ann"])
        await scheduler.drain()
        await scheduler.stop()

    asyncio.run(main())
    assert called == [("mail", "ann")]


# -- the call that a message stores ---------------------------------------------------------------------------


def test_the_call_of_a_message_can_be_read_from_the_wheel(scheduler: Scheduler) -> None:
    id_ = scheduler.enqueue("mail", ["ann", b"\0"], {"times": 2})
    message = scheduler.wheel.get(id_)
    assert message is not None
    assert call_of(message) == StoredCall("mail", ["ann", b"\0"], {"times": 2})
    assert call_of(message).kwargs == {"times": 2}


def test_the_call_of_a_message_without_arguments_is_that_with_its_payload(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"raw", topic="t")
        (message,) = wheel.peek()
        assert call_of(message) == ("t", [b"raw"], {})


def test_arguments_that_cannot_be_read_are_damaged() -> None:
    message = Message(MessageId.make(0, 0, 0), b"{", topic="t", headers={ARGS: "json"})
    with pytest.raises(Damaged):
        call_of(message)
