"""Results of calls: kept in the frame that ends the call, for a time, and never anybody's work."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from filewheel import (
    AsyncScheduler,
    AsyncWheel,
    BadArgument,
    CallFailed,
    GiveUp,
    Handler,
    MessageId,
    NotFound,
    ResultNotKept,
    ResultTimeout,
    Retry,
    Scheduler,
    Wheel,
    current_job,
)
from filewheel.message import RESULT, US_PER_S
from filewheel.scheduling.results import RESULT_BYTES_MAX
from tests.cli.support import Fw
from tests.conftest import assert_whole
from tests.scheduling import result_targets
from tests.scheduling.stage import make, stage
from tests.support import FakeClock

HOUR = 3600


@pytest.fixture
def double(scheduler: Scheduler) -> Handler[..., Any]:
    @scheduler.on(result_for="1h", retry=Retry(limit=1, delay_s=10, jitter=0))
    def double(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is negative")
        return n * 2

    return double


def kept_in(wheel: Wheel) -> list[str]:
    return [m.headers[RESULT] for m in wheel.list() if RESULT in m.headers]


def test_what_a_call_returned_is_there_until_its_time_is_over(
    scheduler: Scheduler, double: Handler[..., Any], clock: FakeClock
) -> None:
    id_ = double.enqueue(4)
    scheduler.drain()
    assert scheduler.result(id_) == scheduler.result(str(id_)) == 8
    clock.advance(HOUR - 1)
    assert scheduler.result(id_) == 8
    clock.advance(1)
    with pytest.raises(NotFound, match="no result of the call"):
        scheduler.result(id_)
    assert kept_in(scheduler.wheel) == ["msgpack"]  # nothing has fired since
    assert scheduler.drain() == 0
    assert kept_in(scheduler.wheel) == []
    assert scheduler.wheel.get(key=f"filewheel.result:{id_}") is None


@pytest.mark.parametrize(
    "value", [None, 0, "text", b"bytes", [1, {"a": [None]}], UUID(int=7), Decimal("1.50"), {"id": UUID(int=1)}]
)
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_values_come_back_as_arguments_do(scheduler: Scheduler, value: object, hooked: bool, is_async: bool) -> None:
    if hooked:

        @scheduler.around
        def plain(jobs: object) -> Any:
            yield

        @scheduler.around
        async def coroutine(jobs: object) -> Any:
            yield

    @scheduler.on("plain", result_for=timedelta(hours=1))
    def job() -> object:
        return value

    @scheduler.on("async", result_for=HOUR, timeout_s=30)
    async def job_async() -> object:
        return value

    id_ = job_async.enqueue() if is_async else job.enqueue()
    scheduler.drain()
    assert scheduler.result(id_) == value


def test_a_program_s_own_encode_stores_results_too(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel_dir, clock=clock, encode=lambda value: {"complex": [value.real, value.imag]})

    @scheduler.on(result_for=HOUR)
    def job() -> complex:
        return 1 + 2j

    id_ = job.enqueue()
    scheduler.drain()
    assert scheduler.result(id_) == {"complex": [1.0, 2.0]}
    scheduler.stop()


def test_the_result_is_in_the_frame_of_the_acknowledgement_with_what_the_transaction_enqueued(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock)

    @scheduler.on("job", result_for=HOUR)
    def job() -> str:
        with current_job().transaction():
            scheduler.enqueue("next", delay=60)
        return "done"

    with stage(wheel_dir, clock, scheduler) as on_stage:
        id_ = job.enqueue()
        on_stage.step()
        on_stage.runner.end()
        before = on_stage.keeper._store.own.appender.number
        with pytest.raises(ResultTimeout):
            scheduler.result(id_)
        on_stage.step()
        assert on_stage.keeper._store.own.appender.number == before + 1
        assert scheduler.result(id_) == "done"
    assert [m.topic for m in scheduler.list()] == ["next"]
    scheduler.stop()


def test_a_call_that_fails_for_good_raises_its_error_and_one_that_is_retried_is_not_done(
    scheduler: Scheduler, double: Handler[..., Any], clock: FakeClock
) -> None:
    id_ = double.enqueue(-1)
    scheduler.drain()
    with pytest.raises(ResultTimeout, match=r"has no result now; timeout_s= waits.*filewheel inspect"):
        scheduler.result(id_)
    clock.advance(10)
    scheduler.drain()
    with pytest.raises(CallFailed, match=r"failed: ValueError: -1 is negative \(after 2 attempts\)") as caught:
        scheduler.result(id_)
    assert caught.value.error == "ValueError: -1 is negative (after 2 attempts)"
    clock.advance(HOUR)  # the result expires; the dead letter stays, and says the same
    scheduler.drain()
    assert kept_in(scheduler.wheel) == []
    with pytest.raises(CallFailed, match=r"-1 is negative \(after 2 attempts\)"):
        scheduler.result(id_)


def test_a_dead_letter_that_is_revived_and_succeeds_replaces_its_result(scheduler: Scheduler) -> None:
    broken = [True]

    @scheduler.on(result_for=HOUR)
    def job() -> str:
        if broken.pop() if broken else False:
            raise GiveUp("down")
        return "up"

    id_ = job.enqueue()
    scheduler.drain()
    with pytest.raises(CallFailed, match="failed: down"):
        scheduler.result(id_)
    (dead,) = scheduler.list(dead=True)
    scheduler.reschedule(dead.id, delay=0)
    with pytest.raises(CallFailed, match="failed: down"):
        scheduler.result(id_)
    scheduler.drain()
    assert scheduler.result(id_) == "up"
    assert kept_in(scheduler.wheel) == ["msgpack"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "cannot be stored"),
        ("x" * RESULT_BYTES_MAX, "65,541 bytes packed, and 65,536 are kept"),
        ({(1, 2): 3}, "cannot be stored"),
        ("\ud800", "cannot be stored"),
    ],
)
def test_what_cannot_be_kept_is_acknowledged_and_says_why(scheduler: Scheduler, value: object, words: str) -> None:
    @scheduler.on(result_for=HOUR)
    def job() -> object:
        return value

    id_ = job.enqueue()
    assert scheduler.drain() == 1
    assert scheduler.metrics.snapshot()["counters"]["acknowledged"] == {"job": 1}
    with pytest.raises(ResultNotKept, match=words):
        scheduler.result(id_)


def test_a_result_of_exactly_the_limit_is_kept_and_the_wheel_s_own_limit_holds(
    tmp_path: Path, scheduler: Scheduler, clock: FakeClock
) -> None:
    Wheel.create(tmp_path / "small", payload_bytes_max=1024).close()
    small = Scheduler(tmp_path / "small", clock=clock)
    for at, size in ((scheduler, RESULT_BYTES_MAX - 3), (small, 1024 - 3), (small, 1024)):
        job = at.on("job", result_for=HOUR)(result_of_size)
        id_ = job.enqueue(size)
        at.drain()
        if size == 1024:
            with pytest.raises(ResultNotKept, match="1,027 bytes packed, and 1,024 are kept"):
                at.result(id_)
        else:
            assert at.result(id_) == "x" * size
    small.stop()


def result_of_size(size: int) -> str:
    return "x" * size


def test_an_unknown_call_one_without_results_and_a_cancelled_one_are_not_found(
    scheduler: Scheduler, double: Handler[..., Any]
) -> None:
    @scheduler.on()
    def forgets() -> int:
        return 1

    done, stopped = forgets.enqueue(), double.after(60, 1)
    scheduler.drain()
    scheduler.cancel(stopped)
    for id_ in (MessageId.make(5, 5, 5), done, stopped):
        with pytest.raises(NotFound, match=r"no result .*result_for.*filewheel history"):
            scheduler.result(id_, timeout_s=5)
    with pytest.raises(BadArgument):
        scheduler.result("nonsense")
    with pytest.raises(BadArgument):
        scheduler.result(done, timeout_s=-1)


def test_a_call_that_was_moved_is_found_by_its_first_id(
    scheduler: Scheduler, double: Handler[..., Any], clock: FakeClock
) -> None:
    id_ = double.after(60, 5)
    moved = scheduler.reschedule(id_, delay=30)
    with pytest.raises(ResultTimeout, match=str(moved)):
        scheduler.result(id_)
    clock.advance(30)
    scheduler.drain()
    assert scheduler.result(id_) == 10


def test_a_wait_ends_with_the_result_or_the_time(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    go = threading.Event()

    @scheduler.on(result_for=HOUR)
    def job() -> str:
        go.wait(20)
        return "done"

    with scheduler:
        id_ = job.enqueue()
        with pytest.raises(ResultTimeout, match=r"has no result after 0\.05 s"):
            scheduler.result(id_, timeout_s=0.05)
        go.set()
        assert scheduler.result(id_, timeout_s=20) == "done"
        other = Scheduler(wheel_dir)  # another process would do the same
        assert other.result(id_) == "done"
        other.stop()
    scheduler.stop()


def test_a_result_that_is_written_between_the_two_looks_is_found(
    scheduler: Scheduler, double: Handler[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = double.enqueue(4)
    found = Wheel.get
    looks: list[object] = []

    def get(self: Wheel, *args: Any, **options: Any) -> Any:
        result = found(self, *args, **options)
        looks.append(result)
        if len(looks) == 1:  # the key was looked up; now the call ends
            scheduler.drain()
        return result

    monkeypatch.setattr(Wheel, "get", get)
    assert scheduler.result(id_) == 8
    assert looks[0] is None


def test_results_are_neither_listed_nor_cancelled_nor_counted_as_work(
    scheduler: Scheduler, double: Handler[..., Any], clock: FakeClock
) -> None:
    events: list[str] = []
    scheduler.on_event(lambda event: events.append(event.kind))

    @scheduler.on("*")
    def anything(*args: object) -> None:
        events.append("the handler of any name was called")

    ids = [double.enqueue(n) for n in range(3)]
    assert scheduler.drain() == 3
    assert [*scheduler.list()] == [*scheduler.list(limit=2)] == [*scheduler.list("*")] == []
    assert scheduler.cancel_all("*") == 0
    assert [scheduler.result(id_) for id_ in ids] == [0, 2, 4]
    later = [double.after(2 * HOUR, 1), double.after(2 * HOUR, 2)]
    assert [m.id for m in scheduler.list(limit=1)] == later[:1]
    events.clear()
    clock.advance(HOUR)
    assert scheduler.drain() == 0
    assert events == []
    assert {ended.topic for ended in scheduler.wheel.history()} == {"double"}
    counters = scheduler.metrics.snapshot()["counters"]
    assert not any(RESULT in names for names in counters.values())
    assert counters["enqueued"]["double"] == 5


def test_occurrences_of_schedules_keep_no_results(scheduler: Scheduler, clock: FakeClock) -> None:
    @scheduler.every(60)
    @scheduler.on(result_for=HOUR)
    def often() -> int:
        return 1

    scheduler.drain()
    clock.advance(60)
    assert scheduler.drain() == 1
    assert kept_in(scheduler.wheel) == []


def test_a_call_that_was_cancelled_while_it_ran_has_its_result(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock)

    @scheduler.on("job", result_for=HOUR)
    def job() -> str:
        return "done"

    with stage(wheel_dir, clock, scheduler) as on_stage:
        id_ = job.enqueue()
        on_stage.step()
        scheduler.cancel(id_)
        on_stage.finish()
        assert scheduler.result(id_) == "done"
    scheduler.stop()


@pytest.mark.parametrize("wrong", [0, -5, "0s", "soon", "1 month", float("nan"), True, [1]])
def test_a_wrong_time_is_refused_at_the_declaration(scheduler: Scheduler, wrong: Any) -> None:
    with pytest.raises(BadArgument):
        scheduler.on(result_for=wrong)


def test_a_batch_handler_has_no_results_to_keep(scheduler: Scheduler) -> None:
    with pytest.raises(BadArgument, match="a batch handler returns one value for several calls"):
        scheduler.on(result_for="1h", batch=10)


def test_results_come_from_processes(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", processes=1)
    made = [
        scheduler.on(function.__name__, where="process", result_for=HOUR)(function)  # type: ignore[call-overload]
        for function in (result_targets.double, result_targets.odd, result_targets.silent)
    ]
    with scheduler:
        ids = [made[0].enqueue(4), made[1].enqueue(), made[2].enqueue()]
        assert scheduler.result(ids[0], timeout_s=60) == {"n": 8, "id": UUID(int=4)}
        with pytest.raises(ResultNotKept, match="'object'"):
            scheduler.result(ids[1], timeout_s=60)
        assert scheduler.result(ids[2], timeout_s=60) is None
    scheduler.stop()
    assert_whole(tmp_path / "w")


def test_an_async_scheduler_awaits_results(tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(tmp_path / "w")
        go = asyncio.Event()

        @scheduler.on(result_for="1h", retry=Retry(limit=0))
        async def job(n: int) -> int:
            await go.wait()
            if n < 0:
                raise ValueError(n)
            return n

        async with scheduler:
            good, bad = await job.map([1, -1])
            with pytest.raises(ResultTimeout, match="has no result after 0.05 s"):
                await scheduler.result(good, timeout_s=0.05)
            go.set()
            assert await scheduler.result(good, timeout_s=20) == 1
            with pytest.raises(CallFailed, match="ValueError: -1"):
                await scheduler.result(bad, timeout_s=20)
            with pytest.raises(NotFound):
                await scheduler.result(MessageId.make(5, 5, 5))
            assert [m async for m in scheduler.list()] == []

    asyncio.run(main())
    assert_whole(tmp_path / "w")


@pytest.fixture
def mixed(wheel_dir: Path) -> Path:
    """A wheel with two results that have expired by the system's clock, and a plain message."""
    scheduler = Scheduler(wheel_dir, clock=FakeClock(1_600_000_000 * US_PER_S))
    double = scheduler.on("double", result_for=HOUR)(lambda n: n * 2)
    double.map([1, 2])
    scheduler.drain()
    scheduler.wheel.enqueue(b"plain", topic="plain")
    assert len(kept_in(scheduler.wheel)) == 2
    scheduler.stop()
    return wheel_dir


@pytest.mark.parametrize("raw", [False, True])
def test_run_drops_results_that_have_expired_and_prints_none(mixed: Path, raw: bool) -> None:
    done = Fw(mixed)("run", "--once", *(["--raw"] if raw else []))
    assert [line["topic"] for line in done.json] == ["plain"]
    with Wheel(mixed) as wheel:
        assert wheel.stats().pending == 0
        assert [ended.topic for ended in wheel.history()] == ["plain", "double", "double"]


def test_run_gives_no_result_to_a_command(mixed: Path, tmp_path: Path) -> None:
    done = Fw(mixed)("run", "--once", "--", "sh", "-c", f"echo $FILEWHEEL_TOPIC >> {tmp_path}/fired")
    assert (tmp_path / "fired").read_text() == "plain\n"
    assert "was not run" not in done.err
    with Wheel(mixed) as wheel:
        assert wheel.stats().pending == 0


def test_a_result_that_is_still_kept_does_not_keep_run_until_empty(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    id_ = scheduler.on("job", result_for=HOUR)(lambda: 5).enqueue()
    scheduler.drain()
    Fw(wheel_dir)("run", "--until-empty")
    assert scheduler.result(id_) == 5
    scheduler.stop()


def test_due_of_an_async_wheel_yields_no_result(mixed: Path) -> None:
    async def main() -> list[str]:
        async with AsyncWheel(mixed) as wheel, wheel.due(wait=False) as due:
            return [message.topic async for message in due]

    assert asyncio.run(main()) == ["plain"]
    with Wheel(mixed) as wheel:
        assert wheel.stats().pending == 0


def test_inspect_list_shows_no_results_unless_it_is_asked_for_their_topic(
    scheduler: Scheduler, double: Handler[..., Any], wheel_dir: Path
) -> None:
    double.enqueue(4)
    scheduler.drain()
    double.after(60, 1)
    fw = Fw(wheel_dir)
    assert [line["topic"] for line in fw("inspect", "list").json] == ["double"]
    assert [line["topic"] for line in fw("inspect", "list", "--topic", "filewheel.*").json] == ["filewheel.result"]
