"""Handlers that fail, each in its own way: tried again, given up, kept as dead letters, revived; never lost."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from filewheel import GiveUp, Message, Retry, RetryLater, Scheduler, current_job
from filewheel.message import DEADLINE, DUE_END_US, HISTORY, REASON, SKIP_LATE, to_datetime
from filewheel.scheduling.outcome import history_of
from tests.scheduling.stage import counted, dead_letters, make, waiting
from tests.support import START_US, FakeClock

NOW = to_datetime(START_US)
ONCE = Retry(limit=0)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unprintable(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


def deep() -> NoReturn:
    deep()


def throw(exc: BaseException) -> NoReturn:
    raise exc


def test_a_call_that_fails_is_tried_again_with_growing_delays_until_it_succeeds(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    began = []

    @scheduler.on(retry=Retry(limit=5, delay_s=10, factor=3, jitter=0))
    def flaky() -> None:
        began.append((clock.now_us() - START_US) // 1_000_000)
        if len(began) < 4:
            raise OSError("not yet")

    flaky.enqueue()
    for _ in range(300):
        scheduler.drain()
        clock.advance(1)
    assert began == [0, 10, 40, 130]
    assert waiting(scheduler.wheel) == dead_letters(scheduler) == []
    assert counted(scheduler) == {"enqueued": 1, "fired": 4, "retried": 3, "acknowledged": 1}


def test_a_retry_waits_from_the_end_of_a_call_that_took_long(scheduler: Scheduler, clock: FakeClock) -> None:
    begun: list[int] = []

    @scheduler.on(retry=Retry(delay_s=10, jitter=0))
    def slow() -> None:
        begun.append(clock.wall_us)
        clock.advance(100)
        raise ValueError

    slow.after(0)
    scheduler.drain()
    (waits,) = waiting(scheduler.wheel)
    assert waits.due_us == begun[0] + 110_000_000


def test_after_its_limit_a_call_is_a_dead_letter_with_reason_and_history(
    scheduler: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    @scheduler.on(retry=Retry(limit=2, delay_s=1, jitter=0))
    def broken(n: int) -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    broken.options(headers={"tenant": "a"}).enqueue(7)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            scheduler.drain()
            clock.advance(5)
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON] == "ValueError: attempt 2 (after 3 attempts)"
    assert dead.headers["tenant"] == "a"
    history = history_of(dead.headers)
    assert [(a.attempt, a.error) for a in history] == [(n, f"ValueError: attempt {n}") for n in range(3)]
    assert [(a.at_us - START_US) // 1_000_000 for a in history] == [0, 5, 10]
    assert waiting(scheduler.wheel) == []
    says = [r for r in caplog.records if r.name == "filewheel.scheduling"]
    assert [(r.levelname, r.__dict__["event"]) for r in says] == [("WARNING", "retried")] * 2 + [("ERROR", "dead")]
    assert 'raise ValueError(f"attempt' in says[-1].getMessage()


def test_jitter_never_brings_a_retry_forward(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.on(retry=Retry(limit=1, delay_s=100, jitter=0.5))
    def broken() -> None:
        raise ValueError

    for _ in range(50):
        broken.enqueue()
    scheduler.drain()
    delays = [(m.due_us - START_US) / 1e6 for m in waiting(scheduler.wheel)]
    assert min(delays) >= 100
    assert max(delays) <= 150
    assert len(set(delays)) > 40


def test_an_error_in_never_is_not_tried_again(scheduler: Scheduler) -> None:
    @scheduler.on(retry=Retry(limit=5, never=(LookupError,)))
    def broken(kind: str) -> None:
        raise {"key": KeyError("k"), "value": ValueError("v")}[kind]

    broken.enqueue("key")
    broken.enqueue("value")
    scheduler.drain()
    assert [m.headers[REASON] for m in dead_letters(scheduler)] == ["KeyError: 'k'"]
    assert len(waiting(scheduler.wheel)) == 1


def test_retry_later_waits_as_long_as_it_says_beyond_every_limit_and_give_up_ends_at_once(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    tries = []

    @scheduler.on(retry=ONCE)
    def choosy(what: str) -> None:
        tries.append((what, current_job().attempt))
        if what == "later" and len(tries) < 5:
            raise RetryLater(timedelta(minutes=1), "closed on Sundays")
        if what == "never":
            raise GiveUp("no such account")

    choosy.enqueue("never")
    choosy.enqueue("later")
    scheduler.drain()
    (due,) = waiting(scheduler.wheel)
    assert due.due_us == START_US + 60_000_000
    assert history_of(due.headers)[0].error == "closed on Sundays"
    for _ in range(5):
        clock.advance(60)
        scheduler.drain()
    assert tries == [("never", 0), ("later", 0), ("later", 1), ("later", 2), ("later", 3)]
    assert [m.headers[REASON] for m in dead_letters(scheduler)] == ["no such account"]


def test_a_delay_beyond_the_end_of_time_ends_there(scheduler: Scheduler) -> None:
    @scheduler.on(retry=Retry(delay_s=1e15, delay_max_s=1e18, jitter=0))
    def broken() -> None:
        raise ValueError

    broken.enqueue()
    scheduler.drain()
    assert [m.due_us for m in waiting(scheduler.wheel)] == [DUE_END_US - 1]


ODD: dict[str, tuple[Callable[[], object], str]] = {
    "sys.exit": (lambda: sys.exit(3), "SystemExit: 3"),
    "memory": (lambda: throw(MemoryError()), "MemoryError"),
    "mute": (lambda: throw(Mute()), "Mute: (its text cannot be had)"),
    "leaving": (lambda: throw(Leaving()), "Leaving: (its text cannot be had)"),
    "unprintable": (lambda: throw(Unprintable("x")), "Unprintable: x"),
    "recursion": (deep, "RecursionError: maximum recursion depth exceeded"),
    "generator exit": (lambda: throw(GeneratorExit()), "GeneratorExit"),
    "stop": (lambda: next(iter(())), "StopIteration"),
    "cancelled": (lambda: throw(asyncio.CancelledError()), "CancelledError"),
    "base": (lambda: throw(BaseException("base")), "BaseException: base"),
    "half a character": (lambda: throw(OSError("no file \udcff")), r"OSError: no file \udcff"),
    "nul": (lambda: throw(ValueError("a\0b")), "ValueError: a\0b"),
    "long": (lambda: throw(ValueError("ü" * 100_000)), "ValueError: üü"),
    "group": (lambda: throw(ExceptionGroup("two", [ValueError(1), OSError(2)])), "ExceptionGroup: two"),
}


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("odd", ODD)
def test_whatever_a_handler_raises_is_its_failure_and_the_next_call_goes_on(
    scheduler: Scheduler, odd: str, kind: str
) -> None:
    act, text = ODD[odd]
    called = []

    def plain() -> None:
        called.append(1)
        act()

    async def coroutine() -> None:
        plain()

    scheduler.on("odd", retry=ONCE)(plain if kind == "plain" else coroutine)
    scheduler.on("fine")(lambda: called.append(2))
    scheduler.enqueue("odd")
    scheduler.enqueue("fine")
    assert scheduler.drain() == 2
    assert sorted(called) == [1, 2]
    (dead,) = dead_letters(scheduler)
    if (odd, kind) == ("stop", "coroutine"):
        text = "RuntimeError: coroutine raised StopIteration"  # so the language has it
    assert dead.headers[REASON].startswith(text)
    assert len(dead.headers[REASON].encode()) <= 1000


def test_a_handler_that_is_given_what_it_does_not_take_fails_as_any_other(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    def one(n: int) -> None: ...

    scheduler.wheel.enqueue(b"[[1, 2], {}]", topic="one", headers={"filewheel.args": "json"})
    scheduler.drain()
    assert "TypeError" in dead_letters(scheduler)[0].headers[REASON]


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_a_revived_dead_letter_is_called_again_from_attempt_0_with_its_fire_id(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    seen: list[Any] = []

    @scheduler.on(retry=Retry(limit=1, delay_s=0, jitter=0))
    def broken() -> None:
        job = current_job()
        seen.append((job.attempt, job.fire_id, REASON in job.headers))
        if len(seen) < 4:
            raise ValueError

    id_ = broken.enqueue()
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    scheduler.wheel.reschedule(dead.id, delay=0)
    assert dead_letters(scheduler) == []
    scheduler.drain()
    assert seen == [(0, id_, False), (1, id_, False)] * 2
    assert waiting(scheduler.wheel) == dead_letters(scheduler) == []


def test_a_message_that_died_of_its_deadline_can_be_revived_and_is_called(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    called = []
    scheduler.on("x")(lambda: called.append(1))
    scheduler.enqueue("x", deadline=NOW + timedelta(seconds=5))
    clock.advance(10)
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON] == "skipped: 5 s after its deadline"
    new = scheduler.wheel.reschedule(dead.id, delay=1)
    revived = scheduler.wheel.get(new)
    assert revived is not None
    assert DEADLINE not in revived.headers
    clock.advance(1)
    scheduler.drain()
    assert called == [1]


def test_a_message_that_waits_keeps_its_deadline_when_it_is_rescheduled(scheduler: Scheduler, clock: FakeClock) -> None:
    scheduler.on("x")(lambda: None)
    id_ = scheduler.enqueue("x", deadline=NOW + timedelta(seconds=5))
    scheduler.wheel.reschedule(id_, delay=60)
    clock.advance(60)
    scheduler.drain()
    assert len(dead_letters(scheduler)) == 1


def test_a_message_that_died_of_being_late_is_on_time_again_when_revived(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    called = []
    scheduler.on("x")(lambda: called.append(1))
    scheduler.enqueue("x", skip_late_s=1, key="k")
    clock.advance(10)
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    assert dead.headers[REASON] == "skipped: 10 s late, where 1 s are allowed"
    new = scheduler.wheel.reschedule(dead.id, delay=5)
    revived = scheduler.wheel.get(key="k")
    assert revived is not None
    assert revived.id == new
    assert revived.headers[SKIP_LATE] == "1.0"
    clock.advance(5)
    scheduler.drain()
    assert called == [1]


# -- names that nobody handles ----------------------------------------------------------------------------------------


def test_a_message_of_an_unknown_handler_waits_and_is_called_once_the_handler_is_there(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    id_ = scheduler.enqueue("later", ["a"], headers={"mine": "1"}, key="k")
    for _ in range(3):
        assert scheduler.drain() == 1
        (waits,) = waiting(scheduler.wheel)
        assert (waits.attempt, waits.root, waits.headers["mine"]) == (0, id_, "1")
        assert waits.due_us == clock.now_us() + 300_000_000
        clock.advance(300)
    got: list[Any] = []
    scheduler.on("later")(lambda name: got.append((name, current_job().fire_id)))
    scheduler.drain()
    assert got == [("a", id_)]
    assert counted(scheduler) == {"enqueued": 1, "unknown": 3, "fired": 1, "acknowledged": 1}


def test_with_unknown_bury_it_is_a_dead_letter_that_names_the_handler(scheduler: Scheduler, clock: FakeClock) -> None:
    strict = make(scheduler.path, clock, unknown="bury")  # type: ignore[arg-type]
    strict.enqueue("typo", ["a"])
    strict.enqueue("typo", ["b"], coalesce="c")
    strict.enqueue("typo", ["c"], coalesce="c")
    strict.drain()
    assert [m.headers[REASON] for m in dead_letters(strict)] == ["no handler is named 'typo': there is none"] * 3
    assert counted(strict) == {"enqueued": 3, "unknown": 3}
    strict.stop()


def test_the_error_of_a_call_that_no_handler_has_names_five_of_the_handlers_there_are(
    scheduler: Scheduler, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "gfedcba":
        scheduler.on(name)(print)
    scheduler.enqueue("typo")
    with caplog.at_level(logging.WARNING):
        scheduler.drain()
    assert "no handler is named 'typo': there is 'a', 'b', 'c', 'd', 'e' and 2 more" in caplog.text


def test_a_plain_message_without_a_topic_is_called_one_and_how_to_end_it_is_said(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.wheel.enqueue(b"x")
    with caplog.at_level(logging.WARNING):
        scheduler.drain()
    assert "a plain message without a topic: cancel it" in caplog.text
    assert "''" not in caplog.text


def test_the_dead_letter_of_an_odd_text_can_be_dumped_and_loaded(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    def broken() -> None:
        raise OSError("ü\udcff" * 3000)

    broken.options(headers={"big": "x" * 14_000}).enqueue()
    scheduler.drain()
    (dead,) = dead_letters(scheduler)
    again = Message(dead.id, dead.payload, dead.topic, dead.headers, dead.attempt, dead.enqueued_us, dead.root)
    assert scheduler.wheel.add([again]) == 1
    assert HISTORY not in dead.headers or len(dead.headers[HISTORY]) < 3000
