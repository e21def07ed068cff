"""Hooks around calls: their order, what their exceptions mean, and that each kind of handler gets its own kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, BadArgument, GiveUp, Job, Retry, RetryLater, Scheduler, current_job
from filewheel.message import REASON
from tests.scheduling import hook_targets, process_targets
from tests.scheduling.stage import counted, dead_letters, waiting
from tests.support import FakeClock, eventually

ONCE = Retry(limit=0)
field: ContextVar[str] = ContextVar("field", default="unset")


def reasons(scheduler: Scheduler) -> list[str]:
    return [m.headers[REASON] for m in dead_letters(scheduler)]


def test_hooks_surround_the_call_in_the_order_of_their_declaration_and_see_its_job(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    def outer(jobs: list[Job]) -> Iterator[None]:
        seen.append(f"outer {current_job().args}")
        yield
        seen.append("outer ends")

    @scheduler.around
    @contextlib.contextmanager
    def inner(jobs: list[Job]) -> Iterator[None]:
        assert jobs == [current_job()]
        seen.append("inner")
        yield
        seen.append("inner ends")

    @scheduler.on("x")
    def x(n: int) -> None:
        seen.append(f"call {n}")

    x.enqueue(7)
    scheduler.drain()
    assert seen == ["outer [7]", "inner", "call 7", "inner ends", "outer ends"]


def test_what_a_hook_sets_in_a_context_variable_is_seen_by_the_call_and_ends_with_it(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    def set_field(jobs: list[Job]) -> Iterator[None]:
        field.set(str(jobs[0].args[0]))  # without a reset
        yield

    scheduler.on("x")(lambda n: seen.append(field.get()))
    scheduler.enqueue("x", [1])
    scheduler.enqueue("x", [2])
    scheduler.drain()
    assert seen == ["1", "2"]
    assert field.get() == "unset"


def test_a_hook_that_raises_before_the_call_fails_the_attempt_and_ends_the_hooks_outside_of_it(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    seen: list[str] = []
    broken = [ConnectionError("no database")]

    @scheduler.around
    def outer(jobs: list[Job]) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            seen.append("outer saw it")
            raise

    @scheduler.around
    def session(jobs: list[Job]) -> Iterator[None]:
        if broken:
            raise broken.pop()
        yield

    scheduler.on("x", retry=Retry(limit=1, delay_s=1, jitter=0))(lambda: seen.append("called"))
    scheduler.enqueue("x")
    scheduler.drain()
    assert seen == ["outer saw it"]
    clock.advance(1)
    scheduler.drain()
    assert seen == ["outer saw it", "called"]


def test_a_hook_that_raises_after_the_call_fails_the_attempt_and_nothing_of_its_transaction_is_written(
    scheduler: Scheduler,
) -> None:
    @scheduler.around
    def commit(jobs: list[Job]) -> Iterator[None]:
        yield
        raise ConnectionError("the commit failed")

    @scheduler.on("x", retry=ONCE)
    def x() -> None:
        with current_job().transaction():
            scheduler.enqueue("next")

    x.enqueue()
    scheduler.drain()
    assert reasons(scheduler) == ["ConnectionError: the commit failed"]
    assert waiting(scheduler.wheel) == []


def test_a_transaction_that_a_hook_opens_holds_what_the_call_enqueues(scheduler: Scheduler) -> None:
    @scheduler.around
    def all_or_nothing(jobs: list[Job]) -> Iterator[None]:
        with jobs[0].transaction():
            yield

    @scheduler.on("x", retry=ONCE)
    def x(fails: bool) -> None:
        scheduler.enqueue("next", delay=60)
        if fails:
            raise ValueError

    x.enqueue(True)
    x.enqueue(False)
    scheduler.drain()
    assert [m.topic for m in waiting(scheduler.wheel)] == ["next"]


def test_a_hook_that_swallows_the_exception_of_a_call_does_not_make_it_a_success(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    def commits(jobs: list[Job]) -> Iterator[None]:
        yield
        seen.append("the outer hook saw a success")

    @scheduler.around
    def logs(jobs: list[Job]) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    @scheduler.on("x", retry=ONCE)
    def x() -> None:
        raise ValueError("no")

    x.enqueue()
    scheduler.drain()
    assert reasons(scheduler) == ["ValueError: no"]
    assert seen == []


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(GiveUp("it is banned"), "dead"), (RetryLater(60), "retried"), (OSError(), "retried")],
    ids=repr,
)
def test_a_hook_turns_the_failure_of_a_call_into_another_one(
    scheduler: Scheduler, raised: Exception, kind: str
) -> None:
    @scheduler.around
    def translate(jobs: list[Job]) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise raised from None

    @scheduler.on("x", retry=Retry(never=(ValueError,)))
    def x() -> None:
        raise ValueError

    x.enqueue()
    scheduler.drain()
    assert counted(scheduler)[kind] == 1


@pytest.mark.parametrize("times", [0, 2])
def test_a_hook_that_does_not_yield_once_fails_the_attempt(scheduler: Scheduler, times: int) -> None:
    @scheduler.around
    def odd(jobs: list[Job]) -> Iterator[None]:
        for _ in range(times):
            yield

    scheduler.on("x", retry=ONCE)(lambda: None)
    scheduler.enqueue("x")
    scheduler.drain()
    assert len(dead_letters(scheduler)) == 1


def test_a_hook_surrounds_a_batch_once_with_all_its_jobs_and_not_those_that_came_too_late(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    seen: list[list[int]] = []

    @scheduler.around
    def hook(jobs: list[Job]) -> Iterator[None]:
        seen.append([job.args[0] for job in jobs])
        yield
        jobs[0].fail("the hook says so")

    @scheduler.on("many", batch=10, retry=ONCE)
    def many(jobs: list[Job]) -> None:
        pass

    for n in range(3):
        many.enqueue(n)
    many.options(deadline=clock.now_us() / 1e6 - 1).enqueue(9)
    scheduler.drain()
    assert seen == [[0, 1, 2]]
    assert "the hook says so" in reasons(scheduler)


def test_a_plain_hook_leaves_coroutines_alone_and_an_async_one_plain_functions(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.around
    def plain(jobs: list[Job]) -> Iterator[None]:
        seen.append(f"plain around {jobs[0].handler}")
        yield

    @scheduler.around
    async def with_await(jobs: list[Job]) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        field.set("set")
        seen.append(f"async around {jobs[0].handler}")
        yield
        seen.append("async ends")

    @scheduler.on("coroutine")
    async def coroutine() -> None:
        seen.append(f"field {field.get()}")

    scheduler.on("function")(lambda: None)
    coroutine.enqueue()
    scheduler.drain()
    scheduler.enqueue("function")
    scheduler.drain()
    assert seen == ["async around coroutine", "field set", "async ends", "plain around function"]


def test_an_async_hook_cannot_make_a_failed_coroutine_a_success(scheduler: Scheduler) -> None:
    @scheduler.around
    async def swallow(jobs: list[Job]) -> AsyncIterator[None]:
        with contextlib.suppress(ValueError):
            yield

    @scheduler.on("x", retry=ONCE)
    async def x() -> None:
        raise ValueError("no")

    x.enqueue()
    scheduler.drain()
    assert reasons(scheduler) == ["ValueError: no"]


def test_the_time_out_of_a_coroutine_bounds_its_hooks_too_and_they_clean_up(wheel_dir: Path) -> None:
    seen: list[str] = []
    scheduler = Scheduler(wheel_dir)

    @scheduler.around
    async def slow(jobs: list[Job]) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(600)
            yield
        finally:
            seen.append("cleaned up")

    @scheduler.on("x", retry=ONCE, timeout_s=0.05)
    async def x() -> None:
        seen.append("called")

    x.enqueue()
    scheduler.drain()
    assert reasons(scheduler) == ["TimeoutError: took longer than 0.05 s"]
    assert seen == ["cleaned up"]
    scheduler.stop()


def test_async_hooks_run_in_the_loop_of_an_async_scheduler_and_plain_ones_in_its_threads(wheel_dir: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir)
        home, seen, both = asyncio.get_running_loop(), set(), asyncio.Event()

        def note(what: str) -> None:
            seen.add(what)
            if len(seen) == 2:
                home.call_soon_threadsafe(both.set)

        @scheduler.around
        async def in_loop(jobs: list[Job]) -> AsyncIterator[None]:
            assert asyncio.get_running_loop() is home
            yield
            note("loop")

        @scheduler.around
        def in_thread(jobs: list[Job]) -> Iterator[None]:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            yield
            note("thread")

        @scheduler.on()
        async def coroutine() -> None:
            pass

        @scheduler.on()
        def function() -> None:
            pass

        async with scheduler:
            await coroutine.enqueue()
            await function.enqueue()
            async with asyncio.timeout(60):
                await both.wait()

    asyncio.run(main())


def test_a_hook_is_imported_by_the_process_of_a_handler_though_the_handlers_module_does_not_know_it(
    wheel_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Scheduler(wheel_dir, processes=1) as scheduler:
        scheduler.around(hook_targets.set_tenant)
        scheduler.on("write_tenant", where="process")(process_targets.write_tenant)
        scheduler.enqueue("write_tenant", [str(out)])
        eventually(out.exists, 60)
        eventually(out.read_text)
        assert out.read_text() == f"tenant of {out}"


def test_a_hook_that_raises_in_a_process_fails_the_attempt(wheel_dir: Path, tmp_path: Path) -> None:
    with Scheduler(wheel_dir, processes=1) as scheduler:
        scheduler.around(hook_targets.give_up)
        scheduler.on("write_tenant", where="process", retry=ONCE)(process_targets.write_tenant)
        scheduler.enqueue("write_tenant", [str(tmp_path / "out")])
        eventually(lambda: dead_letters(scheduler))
        assert reasons(scheduler) == ["PermissionError: no call today"]
    assert not (tmp_path / "out").exists()


def test_a_hook_that_no_process_can_import_is_refused_in_either_order_and_changes_nothing(scheduler: Scheduler) -> None:
    def local(jobs: list[Job]) -> Iterator[None]:
        yield

    scheduler.on("a", where="process")(process_targets.hold)
    with pytest.raises(BadArgument, match="the hook .*local"):
        scheduler.around(local)
    assert scheduler._handlers.hooks.plain == ()

    other = Scheduler("never-made.wheel")
    other.around(local)
    with pytest.raises(BadArgument, match="the hook .*local"):
        other.on("a", where="process")(process_targets.hold)
    assert other.handlers == []


async def never_yields(jobs: list[Job]) -> None:
    pass


@pytest.mark.parametrize("wrong", [3, None, "hook", lambda: None, never_yields], ids=range(5))
def test_what_cannot_be_a_hook_is_refused(scheduler: Scheduler, wrong: Any) -> None:
    with pytest.raises(BadArgument):
        scheduler.around(wrong)
