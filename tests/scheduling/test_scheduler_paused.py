"""A scheduler whose wheel, topic or schedule is paused: nothing of it begins, wherever it waits; and drains."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncScheduler, BadArgument, Keeper, Scheduler, Wheel
from filewheel.scheduling.dispatcher import Dispatcher
from tests.scheduling.stage import Stage
from tests.support import FakeClock, eventually

COUNT = 12


class Gate:
    """A handler of which each call waits until it is let go."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.began = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, n: int) -> None:
        self.called.append(n)
        self.began.release()
        assert self.open.wait(120)

    async def wait(self, n: int) -> None:
        self.called.append(n)
        self.began.release()
        while not self.open.is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", [{}, {"topic": "job"}])
@pytest.mark.parametrize("where", ["threads", "concurrency", "loop"])
def test_what_waits_for_a_thread_or_a_lane_does_not_begin_once_it_was_paused_and_runs_after_the_resume(
    wheel_dir: Path, where: str, way: dict[str, str]
) -> None:
    scheduler = Scheduler(wheel_dir, threads=2)
    gate = Gate()
    terms: dict[str, Any] = {} if where == "threads" else {"concurrency": 2}
    scheduler.on("job", **terms)(gate.wait if where == "loop" else gate)
    for n in range(COUNT):
        scheduler.enqueue("job", [n])
    with scheduler, Wheel(wheel_dir) as wheel:
        for _ in range(2):
            assert gate.began.acquire(timeout=120)
        wheel.pause(**way)  # type: ignore[arg-type]
        gate.open.set()
        engine = scheduler._engine
        assert engine is not None
        assert eventually(lambda: engine.dispatcher is not None and engine.dispatcher.claimed == 0)
        assert sorted(gate.called) == [0, 1]
        assert wheel.stats().pending == COUNT - 2
        wheel.resume(**way)  # type: ignore[arg-type]
        assert eventually(lambda: len(gate.called) == COUNT)
    assert sorted(gate.called) == list(range(COUNT))


@pytest.fixture
def stage(wheel_dir: Path, clock: FakeClock) -> Iterator[Stage]:
    """A scheduler with a report each minute, which a test drives."""
    scheduler = Scheduler(wheel_dir, clock=clock)
    scheduler.every(60, name="minutely")(_report)
    scheduler.on("mail", concurrency=1)(lambda: None)
    with Keeper(wheel_dir, background=False, clock=clock) as keeper:
        scheduler._plant_all("replace")
        yield Stage(scheduler, clock, keeper)
    scheduler.stop()


def _report() -> None: ...


def names(stage: Stage) -> list[str]:
    return [message.topic for _, message in stage.runner.begun]


def test_of_a_paused_schedule_no_occurrence_runs_and_the_one_that_waited_runs_once_after_the_resume(
    stage: Stage,
) -> None:
    stage.run(61, 1)
    assert names(stage) == ["_report"]
    assert stage.scheduler.pause("minutely", why="too loud").why == "too loud"
    stage.scheduler.enqueue("_report")
    stage.run(300, 5)
    assert names(stage) == ["_report"] * 2  # the call that is no occurrence
    assert len(stage.scheduler.resume("minutely")) == 1
    stage.run(5, 5)
    assert names(stage) == ["_report"] * 3
    stage.run(60, 1)
    assert names(stage) == ["_report"] * 4
    assert stage.scheduler.resume("minutely") == ()
    with pytest.raises(BadArgument, match="name of a schedule"):
        stage.scheduler.pause("")


def test_a_paused_message_follows_its_lateness_after_the_resume(stage: Stage) -> None:
    stage.scheduler.enqueue("mail", skip_late_s=10)
    stage.scheduler.enqueue("mail", skip_late_s=1000)
    stage.scheduler.wheel.pause(topic="mail")
    stage.run(100, 10)
    assert "mail" not in names(stage)
    stage.scheduler.wheel.resume(topic="mail")
    stage.run(2, 1)
    assert names(stage).count("mail") == 1
    (dead,) = stage.scheduler.wheel.list(dead=True)
    assert "late" in (dead.reason or "")


def test_a_paused_topic_of_a_limited_handler_is_not_looked_for_again_and_again(stage: Stage) -> None:
    for _ in range(5):
        stage.scheduler.enqueue("mail")
    stage.step()
    stage.scheduler.wheel.pause(topic="mail")
    stage.finish()
    assert not stage.dispatcher._wants_more(10)
    assert names(stage).count("mail") == 1 + 1  # the manual runner begins what it is given, without asking


def test_a_drain_of_the_queue_leaves_what_is_paused(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    called: list[int] = []
    scheduler.on("a")(lambda: called.append(1))
    scheduler.on("b")(lambda: called.append(2))
    scheduler.enqueue("a")
    scheduler.enqueue("b")
    scheduler.wheel.pause(topic="a")
    assert scheduler.drain() == 1
    assert called == [2]
    scheduler.wheel.pause()
    scheduler.wheel.resume(topic="a")
    assert scheduler.drain() == 0
    scheduler.wheel.resume()
    assert scheduler.drain() == 1
    scheduler.stop()


@pytest.mark.parametrize("is_async", [False, True])
def test_run_returns_when_the_wheel_is_drained_and_the_running_call_has_ended(
    wheel_dir: Path, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as the call takes: no grace time cuts it short."""
    looks: list[bool] = []
    step = Dispatcher.step

    def counted(self: Dispatcher, *, fire: bool = True, claim: bool = False) -> bool:
        looks.append(fire)
        return step(self, fire=fire, claim=claim)

    monkeypatch.setattr(Dispatcher, "step", counted)
    gate = Gate()
    scheduler: Scheduler | AsyncScheduler = AsyncScheduler(wheel_dir, stop_s=0) if is_async else Scheduler(wheel_dir)
    scheduler.on("job")(gate)
    blocking = scheduler.blocking if isinstance(scheduler, AsyncScheduler) else scheduler
    for n in range(COUNT):
        blocking.enqueue("job", [n])

    def fire() -> None:
        if isinstance(scheduler, AsyncScheduler):
            asyncio.run(scheduler.run())
        else:
            scheduler.run(stop_s=0)

    firing = threading.Thread(target=fire)
    firing.start()
    for _ in range(4):
        assert gate.began.acquire(timeout=120)
    with Wheel(wheel_dir) as wheel:
        wheel.pause(drain=True)
        assert eventually(lambda: looks.count(False) > 5)  # it waits for the calls, and settles those that end
        assert firing.is_alive()
        assert not wheel.is_drained()
        gate.open.set()
        firing.join(120)
        assert not firing.is_alive()
        assert wheel.is_drained()
        assert wheel.stats().pending == COUNT - 4
        assert sorted(gate.called) == [0, 1, 2, 3]


def test_a_scheduler_in_the_background_gives_the_lock_back_after_a_drain_and_fires_again_after_the_resume(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    called: list[int] = []
    scheduler = Scheduler(wheel_dir)
    scheduler.on("job")(called.append)
    with scheduler, Wheel(wheel_dir) as wheel:
        assert scheduler.wait_until_keeper(120)
        wheel.pause(drain=True, why="upgrade")
        assert eventually(wheel.is_drained)
        assert eventually(lambda: not wheel.has_keeper())
        scheduler.enqueue("job", [1])
        assert "paused: the wheel (upgrade)" in caplog.text
        assert eventually(lambda: "fires again when it is resumed" in caplog.text)
        wheel.resume()
        assert eventually(lambda: called == [1])
        wheel.pause(topic="job")
        assert eventually(lambda: "paused: topic job" in caplog.text)
        wheel.resume(topic="job")
        assert eventually(lambda: "resumed: topic job" in caplog.text)


def test_a_scheduler_that_stands_by_ends_its_run_when_the_wheel_is_drained(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir):
        scheduler = Scheduler(wheel_dir)
        standing_by = threading.Thread(target=scheduler.run)
        standing_by.start()
        assert eventually(lambda: scheduler._engine is not None and scheduler._engine.is_alive)
        wheel.pause(drain=True)
        standing_by.join(120)
        assert not standing_by.is_alive()


def test_an_async_scheduler_pauses_and_resumes_a_schedule_by_its_name(wheel_dir: Path) -> None:
    async def main() -> None:
        scheduler = AsyncScheduler(wheel_dir)
        await scheduler.pause("nightly", why="holidays")
        with Wheel(wheel_dir) as wheel:
            assert [(p.what, p.name, p.why) for p in wheel.paused()] == [("schedule", "nightly", "holidays")]
        assert len(await scheduler.resume("nightly")) == 1
        await scheduler.stop()

    asyncio.run(main())


def test_the_gauges_count_the_pauses_and_leave_paused_messages_out_of_the_lag(wheel_dir: Path) -> None:
    clock = FakeClock()
    scheduler = Scheduler(wheel_dir, clock=clock)
    scheduler.enqueue("mail")
    clock.advance(100)
    scheduler.enqueue("other")
    clock.advance(10)
    scheduler.wheel.pause(topic="mail")
    text = scheduler.prometheus()
    for line in ("paused 0", "pauses 1", "overdue 1", "overdue_paused 1"):
        assert f"filewheel_{line}\n" in text
    assert "filewheel_lag_seconds 10.0\n" in text
    scheduler.stop()
