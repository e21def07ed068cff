"""Pools and priorities: no backlog holds up another pool or a higher priority, and a lower one is never starved."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, BadArgument, Job, Scheduler, Wheel
from filewheel.scheduling.lanes import FAIR
from tests.scheduling import process_targets
from tests.scheduling.stage import Stage, make, stage, waiting
from tests.support import FakeClock, eventually


def args_of(on_stage: Stage, topic: str) -> list[int]:
    """The arguments of the calls of a handler, in the order in which they began."""
    import msgpack

    return [msgpack.unpackb(m.payload)[0][0] for _, m in on_stage.runner.begun if m.topic == topic]


def fill(scheduler: Scheduler, name: str, count: int, delay_s: float = 0) -> None:
    """Enqueue calls of a handler by number."""
    from filewheel.scheduling.call import pack_call
    from filewheel.values import MSGPACK

    payloads = [pack_call([n], {})[0] for n in range(count)]
    scheduler.wheel.enqueue_many(payloads, topic=name, delay=delay_s, headers={"filewheel.args": MSGPACK}, sync="never")


# -- pools -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", ["slow", "quick"])
def test_a_backlog_of_one_pool_fills_its_own_slots_and_leaves_the_other_pool_alone(
    wheel_dir: Path, clock: FakeClock, full: str
) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 4, "slow": 2}, in_flight=30)
    scheduler.on("slow", pool="slow")(lambda n: None)
    scheduler.on("quick")(lambda n: None)
    other = "quick" if full == "slow" else "slow"
    fill(scheduler, full, 200, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert Counter(on_stage.running) == {full: 2 if full == "slow" else 4}
        assert on_stage.dispatcher.claimed <= 10
        for n in range(20):  # while nothing of the backlog ends
            scheduler.enqueue(other, [n])
            on_stage.step()
            own = [call for call in on_stage.runner.calls if call.handler.name == other]
            assert len(own) == 1
            on_stage.runner.calls.remove(own[0])
            on_stage.runner.calls.insert(0, own[0])
            on_stage.finish(1)
        assert args_of(on_stage, other) == list(range(20))
        on_stage.run(60)
        assert args_of(on_stage, full) == list(range(200))
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_calls_of_one_pool_start_in_due_order_whichever_handlers_they_are_of(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 1, "slow": 1})
    for name in ("a", "b"):
        scheduler.on(name, pool="slow")(lambda n: None)
    for n in range(30):
        scheduler.enqueue("ab"[n % 3 == 0], [n])
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        while on_stage.runner.calls:
            assert len(on_stage.runner.calls) == 1
            on_stage.finish()
        import msgpack

        assert [msgpack.unpackb(m.payload)[0][0] for _, m in on_stage.runner.begun] == list(range(30))
    scheduler.stop()


def test_limits_of_a_handler_and_batches_hold_within_a_pool(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 8, "other": 8})
    scheduler.on("two", concurrency=2)(lambda n: None)
    scheduler.on("rated", rate_per_s=2)(lambda n: None)
    scheduler.on("many", batch=10, concurrency=1, pool="other")(lambda jobs: None)
    for name in ("two", "rated", "many"):
        fill(scheduler, name, 25)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert Counter(on_stage.running) == {"two": 2, "rated": 2, "many": 1}
        assert [len(c.messages) for c in on_stage.runner.calls if c.handler.name == "many"] == [10]
        on_stage.run(1, 0.5)
        assert len(args_of(on_stage, "rated")) == 4
        on_stage.run(20)
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_backlog_of_names_for_any_handler_or_for_none_leaves_room_for_the_others(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 2, "slow": 2}, in_flight=40)
    scheduler.on("*", pool="slow")(lambda n: None)
    scheduler.on("quick")(lambda n: None)
    for n in range(100):
        scheduler.enqueue(f"any{n}", [n], delay=-60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert len(on_stage.running) == 2
        scheduler.enqueue("quick", [0])
        on_stage.step()
        assert "quick" in on_stage.running
        on_stage.run(60)
        assert len(on_stage.runner.begun) == 101
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_handler_whose_name_looks_like_a_glob_has_its_own_calls_only(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 2, "slow": 2})
    scheduler.on("a*", pool="slow", concurrency=1)(lambda n: None)
    scheduler.on("*")(lambda n: None)
    fill(scheduler, "a*", 30)
    fill(scheduler, "ab", 30)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert Counter(on_stage.running) == {"a*": 1, "*": 2}
        assert len(on_stage.dispatcher._lanes["a*"].waiting) <= 1  # its own bound
        on_stage.run(60)
        assert args_of(on_stage, "a*") == args_of(on_stage, "ab") == list(range(30))
    scheduler.stop()


def test_a_slow_pool_of_real_threads_holds_up_nobody_and_each_pool_has_its_own_threads(wheel_dir: Path) -> None:
    let_go, names, lock = threading.Event(), [], threading.Lock()
    scheduler = Scheduler(wheel_dir, threads={"slow": 2}, in_flight=40)

    def note() -> None:
        with lock:
            names.append(threading.current_thread().name)

    @scheduler.on(pool="slow")
    def slow(n: int) -> None:
        note()
        let_go.wait(120)

    @scheduler.on()
    def quick(n: int) -> None:
        note()

    fill(scheduler, "slow", 300, -60)
    with scheduler:
        eventually(lambda: len(names) == 2)
        for n in range(100):
            quick.enqueue(n)
        eventually(lambda: len(names) == 102)
        let_go.set()
        eventually(lambda: len(names) == 400)
    slow_names = Counter(name for name in names if name.startswith("filewheel-slow-"))
    assert sum(slow_names.values()) == 300
    assert len(slow_names) == 2
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 0


def test_a_pool_of_processes_holds_up_no_other_one(wheel_dir: Path, tmp_path: Path) -> None:
    scheduler = Scheduler(wheel_dir, processes={"default": 1, "heavy": 1})
    scheduler.on("hold", where="process", pool="heavy")(process_targets.hold)
    scheduler.on("write", where="process")(process_targets.write.function)
    for n in range(5):
        scheduler.enqueue("hold", [str(tmp_path), n], delay=-60)
    with scheduler:
        eventually((tmp_path / "began-0").exists)
        scheduler.enqueue("write", [str(tmp_path / "out"), "x"])
        eventually((tmp_path / "out").exists)
        assert not (tmp_path / "began-1").exists()
        (tmp_path / "go-on").touch()
        eventually((tmp_path / "began-4").exists)
        eventually(lambda: not waiting(scheduler.wheel))


def test_an_async_scheduler_has_pools_of_threads_beside_its_coroutines(wheel_dir: Path) -> None:
    async def main() -> None:
        let_go, done = threading.Event(), asyncio.Event()
        scheduler = AsyncScheduler(wheel_dir, threads={"slow": 1}, in_flight=40)

        @scheduler.on(pool="slow")
        def slow(n: int) -> None:
            let_go.wait(120)

        @scheduler.on()
        async def quick() -> None:
            done.set()

        fill(scheduler.blocking, "slow", 100, -60)
        async with scheduler:
            await quick.enqueue()
            async with asyncio.timeout(60):
                await done.wait()
            let_go.set()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "declared", "says"),
    [
        ({}, {"pool": "slow"}, "no pool of threads is named 'slow': there is 'default'"),
        ({"threads": {"slow": 2}}, {"pool": "slwo"}, "'default', 'slow'"),
        ({"processes": {"slow": 2}}, {"pool": "slow"}, "no pool of threads is named 'slow'"),
        ({}, {"pool": 3}, "pool is the name"),
        ({}, {"pool": ""}, "pool is the name"),
        ({}, {"priority": 1.5}, "priority is an integer"),
        ({}, {"priority": True}, "priority is an integer"),
        ({}, {"priority": None}, "priority is an integer"),
        ({}, {"catch_up_per_s": 0}, "catch_up_per_s is a number above 0"),
    ],
    ids=repr,
)
def test_a_handler_that_names_no_pool_is_refused_when_it_is_declared(
    wheel_dir: Path, options: Any, declared: Any, says: str
) -> None:
    scheduler = Scheduler(wheel_dir, **options)
    with pytest.raises(BadArgument, match=says):
        scheduler.on("x", **declared)(lambda: None)
    assert scheduler.handlers == []


def test_coroutines_have_no_pool(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads={"slow": 2})
    with pytest.raises(BadArgument, match="share an event loop"):

        @scheduler.on(pool="slow")
        async def x() -> None:
            pass


@pytest.mark.parametrize(
    "wrong", [{"threads": {}}, {"threads": {"a": 0}}, {"threads": {"": 1}}, {"threads": {3: 1}}, {"threads": 0},
              {"processes": {"a": 1.5}}, {"threads": "4"}, {"threads": {"a\n": 1}}], ids=repr,
)  # fmt: skip
def test_pools_that_make_no_sense_are_refused(wheel_dir: Path, wrong: Any) -> None:
    with pytest.raises(BadArgument):
        Scheduler(wheel_dir, **wrong)


def test_a_pool_that_no_handler_uses_is_an_error_at_the_start_and_none_for_a_program_that_enqueues(
    wheel_dir: Path,
) -> None:
    scheduler = Scheduler(wheel_dir, threads={"slow": 2}, processes={"slow": 1})
    scheduler.on("x", pool="slow")(lambda: None)
    scheduler.enqueue("x")
    for begin in (scheduler.start, scheduler.drain):
        with pytest.raises(BadArgument, match="no handler uses the pool 'slow' of processes"):
            begin()
    scheduler.stop()


def test_more_pools_and_priorities_than_may_be_claimed_are_an_error_at_the_start(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, in_flight=3)
    for n in range(3):
        scheduler.on(str(n), priority=n)(lambda: None)
    with pytest.raises(BadArgument, match="in_flight=3 is too little"):
        scheduler.start()


# -- priorities ------------------------------------------------------------------------------------------------


def test_a_higher_priority_starts_at_the_next_end_whatever_backlog_was_due_earlier(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock, threads=2, in_flight=20)
    scheduler.on("low", priority=-1)(lambda n: None)
    scheduler.on("high", priority=5)(lambda n: None)
    scheduler.on("middle")(lambda n: None)
    fill(scheduler, "low", 500, -60)
    fill(scheduler, "middle", 500, -50)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert on_stage.running == ["middle", "middle"]
        for n in range(5):
            scheduler.enqueue("high", [n])
        on_stage.step()  # claimed, and both threads are busy
        assert on_stage.running == ["middle", "middle"]
        on_stage.finish(1)
        assert on_stage.running == ["middle", "high"]
        for _ in range(6):
            on_stage.finish(1)
        assert args_of(on_stage, "high") == list(range(5))
    scheduler.stop()


def test_a_lower_priority_gets_one_start_of_ten_and_all_of_it_runs_in_due_order(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock, threads=1)
    scheduler.on("low", priority=0)(lambda n: None)
    scheduler.on("high", priority=1)(lambda n: None)
    fill(scheduler, "low", 20, -60)
    fill(scheduler, "high", 1000)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        for _ in range(FAIR * 10 - 1):
            on_stage.finish()
        topics = Counter(m.topic for _, m in on_stage.runner.begun)
        assert topics == {"high": 90, "low": 10}
        assert args_of(on_stage, "low") == list(range(10))
    scheduler.stop()


def test_a_priority_counts_among_coroutines_with_a_full_share_too(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, in_flight=30)

    @scheduler.on(priority=0)
    async def low(n: int) -> None:
        pass

    @scheduler.on(priority=1)
    async def high(n: int) -> None:
        pass

    fill(scheduler, "low", 200, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert Counter(on_stage.running) == {"low": 10}
        fill(scheduler, "high", 200)
        on_stage.step()
        assert Counter(on_stage.running) == {"low": 10, "high": 10}
        on_stage.runner.calls.clear()
    scheduler.stop()


def test_priorities_among_real_threads_leave_a_late_urgent_call_no_backlog_to_wait_for(wheel_dir: Path) -> None:
    began: list[str] = []
    gate = threading.Semaphore(0)
    scheduler = Scheduler(wheel_dir, threads=1, in_flight=60)

    @scheduler.on()
    def low(n: int) -> None:
        began.append("low")
        gate.acquire(timeout=120)

    @scheduler.on(priority=1)
    def high(n: int) -> None:
        began.append("high")

    fill(scheduler, "low", 500, -60)
    with scheduler:
        eventually(lambda: began)
        assert scheduler._engine is not None
        for n in range(3):
            high.enqueue(n)
        dispatcher = scheduler._engine.dispatcher
        assert dispatcher is not None
        eventually(lambda: (lane := dispatcher._lanes.get("high")) is not None and len(lane.waiting) == 3)
        gate.release()
        eventually(lambda: began.count("high") == 3)
        assert began.count("low") <= 2
        gate.release(1000)
        eventually(lambda: began.count("low") == 500)


def test_a_handler_with_a_priority_that_is_declared_while_it_fires_counts_from_then_on(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock, threads=2, in_flight=20)
    scheduler.on("low")(lambda n: None)
    fill(scheduler, "low", 100, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert len(on_stage.running) == 20  # without pools the runner has its own queue
        scheduler.on("high", priority=1)(lambda n: None)
        scheduler.enqueue("high", [0])
        for _ in range(30):
            on_stage.finish(1)
        assert args_of(on_stage, "high") == [0]
        on_stage.run(30)
        assert args_of(on_stage, "low") == list(range(100))
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


# -- the rate of a backlog -------------------------------------------------------------------------------------


def test_a_handlers_own_catch_up_rate_bounds_its_backlog_and_no_other(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, in_flight=100, catch_up_per_s=5)
    scheduler.on("own", catch_up_per_s=2)(lambda n: None)
    scheduler.on("common")(lambda n: None)
    fill(scheduler, "own", 30, -60)
    fill(scheduler, "common", 30, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        on_stage.run(1)
        assert len(args_of(on_stage, "own")) == 4
        assert len(args_of(on_stage, "common")) == 10
        scheduler.enqueue("own", [99])  # it is on time
        on_stage.step()
        assert args_of(on_stage, "own")[-1] == 99
        on_stage.run(60)
        assert sorted(args_of(on_stage, "own")) == [*range(30), 99]
    assert waiting(scheduler.wheel) == []
    scheduler.stop()


def test_a_handler_that_may_run_more_at_once_than_its_share_claims_no_more_than_that(
    wheel_dir: Path, clock: FakeClock
) -> None:
    scheduler = make(wheel_dir, clock, in_flight=30)

    scheduler.on("wide", concurrency=100)(lambda n: None)
    scheduler.on("high", priority=1)(lambda n: None)
    fill(scheduler, "wide", 100, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert on_stage.dispatcher.claimed == 10
        on_stage.run(60)
        assert args_of(on_stage, "wide") == list(range(100))
    scheduler.stop()


def test_a_batch_counts_by_its_messages_in_its_share(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = make(wheel_dir, clock, threads={"default": 4, "slow": 2}, in_flight=30)
    batches: list[int] = []

    @scheduler.on(batch=5)
    def many(jobs: list[Job]) -> None:
        batches.append(len(jobs))

    scheduler.on("slow", pool="slow")(lambda n: None)
    fill(scheduler, "many", 100, -60)
    fill(scheduler, "slow", 10, -60)
    with stage(wheel_dir, clock, scheduler) as on_stage:
        on_stage.step()
        assert sum(len(c.messages) for c in on_stage.runner.calls if c.handler.name == "many") <= 10
        assert Counter(on_stage.running)["slow"] == 2
        on_stage.run(60)
    assert sum(batches) == 100
    scheduler.stop()
