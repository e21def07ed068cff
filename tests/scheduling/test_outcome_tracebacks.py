"""Why a call died: the end of its traceback is stored with each attempt, wherever the handler runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, Attempt, BadArgument, Job, Retry, Scheduler
from filewheel.message import DETAILS, DETAILS_BYTES_MAX
from tests.scheduling import process_targets as targets
from tests.scheduling.runners.test_threads import until
from tests.scheduling.stage import dead_letters, waiting
from tests.support import FakeClock

ONCE = Retry(limit=0)
HERE = f'File "{__file__}", line '


def last_of(scheduler: Scheduler) -> Attempt:
    """Return the last attempt of the only dead letter."""
    (letter,) = dead_letters(scheduler)
    return letter.attempts[-1]


def test_each_attempt_has_the_end_of_its_traceback_from_the_handler_on(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.on(retry=Retry(limit=2, delay_s=1, jitter=0))
    def broken(what: str) -> None:
        inner(what)

    def inner(what: str) -> None:
        raise ValueError(what)

    broken.enqueue("no")
    for _ in range(3):
        scheduler.drain()
        clock.advance(5)
    (letter,) = dead_letters(scheduler)
    assert [(a.attempt, a.error) for a in letter.attempts] == [(n, "ValueError: no") for n in range(3)]
    for attempt in letter.attempts:
        lines = attempt.details.splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[1].strip().startswith(HERE)
        assert lines[1].endswith("in broken")
        assert "in inner" in attempt.details
        assert lines[-1] == "ValueError: no"


def test_a_coroutine_has_one_too(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    async def broken() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    broken.enqueue()
    scheduler.drain()
    assert HERE in last_of(scheduler).details


def test_the_place_stays_when_the_text_of_the_exception_is_longer_than_all_that_is_kept(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    def broken() -> None:
        raise ValueError("begin" + "x" * 100_000 + "end")

    broken.enqueue()
    scheduler.drain()
    details = last_of(scheduler).details
    assert HERE in details
    assert "ValueError: begin" in details
    assert details.endswith("end")
    assert len(details.encode()) <= DETAILS_BYTES_MAX


def test_a_deep_traceback_keeps_its_end(scheduler: Scheduler) -> None:
    @scheduler.on(retry=ONCE)
    def broken() -> None:
        descend(60, lambda n: descend(n, lambda n: 1 / 0))

    def descend(n: int, then: Any) -> None:
        (lambda: descend(n - 1, then) if n else then(60))()

    broken.enqueue()
    scheduler.drain()
    details = last_of(scheduler).details
    assert details.startswith("[...]\n")
    assert details.endswith("ZeroDivisionError: division by zero")
    assert len(details.encode()) <= DETAILS_BYTES_MAX


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])
def test_with_hooks_it_also_begins_at_the_handler(
    scheduler: Scheduler, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_async:

        @scheduler.around
        async def outer(jobs: list[Job]) -> AsyncIterator[None]:
            yield

        @scheduler.on(retry=ONCE)
        async def broken() -> None:
            raise ValueError("no")
    else:

        @scheduler.around
        def inner(jobs: list[Job]) -> Iterator[None]:
            yield

        @scheduler.around
        def innermost(jobs: list[Job]) -> Iterator[None]:
            yield

        @scheduler.on("broken", retry=ONCE)
        def plain() -> None:
            raise ValueError("no")

    scheduler.enqueue("broken")
    scheduler.drain()
    lines = last_of(scheduler).details.splitlines()
    assert lines[1].strip().startswith(HERE)
    assert lines[1].endswith("in broken" if is_async else "in plain")
    assert "around.py" not in caplog.text


def test_an_exception_of_a_hook_begins_at_the_hook_and_so_does_the_one_before_it(scheduler: Scheduler) -> None:
    @scheduler.around
    def outer(jobs: list[Job]) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise KeyError("other") from None
        finally:
            pass

    @scheduler.around
    def chained(jobs: list[Job]) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as exc:
            raise ValueError("chained") from exc

    @scheduler.on(retry=ONCE)
    def broken() -> None:
        1 / 0  # noqa: B018

    broken.enqueue()
    scheduler.drain()
    details = last_of(scheduler).details
    assert "in outer" in details
    assert "scheduling/around.py" not in details
    assert "scheduling/runners" not in details


def test_without_tracebacks_only_the_error_is_stored(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel_dir, clock=clock, tracebacks=False)

    @scheduler.on(retry=ONCE)
    def broken(secret: str) -> None:
        raise ValueError("no")

    broken.enqueue("hunter2")
    scheduler.drain()
    (letter,) = dead_letters(scheduler)
    assert [(a.error, a.details) for a in letter.attempts] == [("ValueError: no", "")]
    assert DETAILS not in letter.headers
    scheduler.stop()


def test_tracebacks_is_a_flag_and_an_async_scheduler_has_it(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="tracebacks"):
        Scheduler(tmp_path / "w", tracebacks=1)  # type: ignore[arg-type]
    assert AsyncScheduler(tmp_path / "w", tracebacks=False).blocking._limits.tracebacks is False


def test_what_crosses_from_a_process_has_its_traceback(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FILEWHEEL_TEST_WHEEL", str(wheel_dir))
    scheduler = Scheduler(wheel_dir, processes=1)
    scheduler.on("end", where="process", retry=ONCE)(targets.end.function)
    dead = until(scheduler, "dead")
    scheduler.enqueue("end", ["raise"])
    with scheduler:
        dead()
    attempt = last_of(scheduler)
    assert f'File "{targets.__file__}", line ' in attempt.details
    assert attempt.details.endswith("OSError: no \\udcff file")
    scheduler.stop()


def test_a_thread_that_hangs_is_stored_with_the_line_where_it_hung(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=1)
    let_go = threading.Event()

    @scheduler.on(timeout_s=0.2, retry=ONCE)
    def stuck() -> None:
        let_go.wait(120)

    stuck.enqueue()
    dead = until(scheduler, "dead")
    with scheduler:
        dead()
        let_go.set()
    attempt = last_of(scheduler)
    assert attempt.error == "TimeoutError: took longer than 0.2 s"
    first, second, third, *_ = attempt.details.splitlines()
    assert first == "Stack at the time-out (most recent call last):"
    assert second.strip().startswith(HERE)
    assert second.endswith("in stuck")
    assert third.strip() == "let_go.wait(120)"
    scheduler.stop()


def test_a_coroutine_that_hangs_is_stored_with_the_line_where_it_hung(scheduler: Scheduler) -> None:
    @scheduler.on(timeout_s=0.05, retry=ONCE)
    async def stuck() -> None:
        await asyncio.sleep(120)

    stuck.enqueue()
    scheduler.drain()
    attempt = last_of(scheduler)
    assert attempt.error == "TimeoutError: took longer than 0.05 s"
    assert HERE in attempt.details
    assert "await asyncio.sleep(120)" in attempt.details


def test_the_next_occurrence_has_nothing_of_the_failures_of_the_one_before(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    @scheduler.every(10)
    @scheduler.on(retry=Retry(limit=1, delay_s=1, jitter=0))
    def tick() -> None:
        raise ValueError("no")

    scheduler.drain()
    clock.advance(10)
    scheduler.drain()
    clock.advance(2)
    scheduler.drain()
    (letter,) = dead_letters(scheduler)
    assert len(letter.attempts) == 2
    (occurrence,) = waiting(scheduler.wheel)
    assert occurrence.attempts == ()
    assert DETAILS not in occurrence.headers
