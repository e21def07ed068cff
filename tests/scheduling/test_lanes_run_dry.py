"""What fills a limited handler's lane: it is claimed as it is called, and what is over stays due where it is."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from filewheel import Keeper, Scheduler
from filewheel.firing.ready import READY_BUDGET
from filewheel.laps.window import Budget
from filewheel.schedules.occurrences import Occurrences
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.events import Events, Telemetry
from filewheel.scheduling.handler import Handler, Handlers, Terms
from filewheel.scheduling.options import CallOptions
from filewheel.scheduling.runners.runner import Call
from tests.support_wheel import NOW_S, StillClock

MS = 1000
IN_FLIGHT = 400


class Hands:
    """A runner that does nothing by itself."""

    starts_anywhere = False

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.begun: list[Call] = []
        self.called: list[str] = []

    def start(self, call: Call) -> None:
        self.calls.append(call)
        self.called.append(call.handler.name)
        self.begun.append(call)


class Rig:
    """A dispatcher whose steps a test makes: a handler of which four run at once, and one without a limit."""

    def __init__(self, path: Path, budget: Budget = READY_BUDGET) -> None:
        self.clock = StillClock()
        self.scheduler = Scheduler(path, clock=self.clock)
        self.metrics = self.scheduler.metrics
        self.hands = Hands()
        handlers = Handlers()
        for name, concurrency in (("few", 4), ("free", None)):
            handlers.add(Handler(name, print, Terms(concurrency=concurrency), self.scheduler, CallOptions()))
        self.keeper = Keeper(path, clock=self.clock, background=False, budget=budget)
        self.dispatcher = Dispatcher(
            self.keeper, handlers, {"thread": self.hands}, slots={"thread": None}, in_flight=IN_FLIGHT,
            catch_up_per_s=None, unknown="wait", clock=self.clock,
            telemetry=Telemetry(self.metrics, Events(self.clock)),
            occurrences=Occurrences((), self.clock),
        )  # fmt: skip

    def enqueue(self, name: str, count: int, ago_s: float) -> None:
        """Enqueue calls that have been due for a while."""
        self.scheduler.wheel.enqueue_many([b"%05d" % n for n in range(count)], at=NOW_S - ago_s, topic=name)

    def pass_time(self, steps: int) -> None:
        """Let the dispatcher look each hundredth of a second, while no call ends."""
        for _ in range(steps):
            while self.dispatcher.step():
                pass
            self.dispatcher.wait(0.001)
            self.clock.wall_us += 10 * MS
            self.clock.run_us += 10 * MS

    def end_calls(self) -> None:
        """End every call."""
        calls, self.hands.calls = self.hands.calls, []
        for call in calls:
            self.dispatcher.finish(call)

    def close(self) -> None:
        """Let go."""
        self.keeper.close()
        self.scheduler.stop()


@pytest.fixture
def rig(wheel_dir: Path) -> Iterator[Rig]:
    """A rig."""
    made = Rig(wheel_dir)
    yield made
    made.close()


def test_a_backlog_of_a_quick_limited_handler_is_called_without_being_put_off(rig: Rig) -> None:
    rig.enqueue("few", 2000, 60)
    for _ in range(2000):
        rig.dispatcher.step()
        rig.end_calls()
        rig.clock.wall_us += MS
        rig.clock.run_us += MS
        if rig.dispatcher.settled == 2000:
            break
    assert rig.metrics.counts("acknowledged")["few"] == 2000
    assert not rig.metrics.counts("deferred")


def test_what_a_slow_limited_handler_cannot_take_stays_where_it_is_and_others_are_called(rig: Rig) -> None:
    rig.enqueue("few", 1000, 60)
    rig.enqueue("free", 1, 30)
    rig.pass_time(40)  # no call ends
    assert sorted(rig.hands.called) == ["few"] * 4 + ["free"]
    assert not rig.metrics.counts("deferred")
    assert rig.dispatcher.claimed <= 4 + 4 + 1
    assert all(m.due_us == (NOW_S - 60) * 1_000_000 for m in rig.scheduler.wheel.list(topic="few"))


def test_a_lane_whose_first_calls_were_slow_takes_what_is_due_of_its_own_at_once_when_they_end(rig: Rig) -> None:
    rig.enqueue("few", 3000, 60)
    rig.pass_time(400)  # for 4 s no call ends
    assert rig.hands.called == ["few"] * 4
    at_us = rig.clock.wall_us
    for _ in range(3000 // 4):
        rig.end_calls()
        rig.dispatcher.step()
    assert rig.metrics.counts("acknowledged")["few"] == 3000
    assert rig.clock.wall_us == at_us  # nothing waited for a time to come
    assert not rig.metrics.counts("deferred")
    assert list(rig.scheduler.wheel.list()) == []


def test_a_backlog_of_a_slow_handler_that_fills_the_memory_for_what_is_due_hides_no_other_call(wheel_dir: Path) -> None:
    rig = Rig(wheel_dir, Budget(records=64, bytes=1 << 20))
    rig.enqueue("few", 3000, 60)
    rig.enqueue("free", 5, 30)
    rig.pass_time(200)
    assert rig.hands.called == ["few"] * 4 + ["free"] * 5
    rig.hands.calls, slow = rig.hands.calls[4:], rig.hands.calls[:4]
    rig.end_calls()
    assert rig.dispatcher.step()
    rig.hands.calls = slow
    for _ in range(3000):
        rig.end_calls()
        rig.dispatcher.step()
    assert rig.dispatcher.settled == 3005
    due = [m.payload for call in rig.hands.begun for m in call.messages if m.topic == "few"]
    assert due == sorted(due)
    rig.close()


def test_the_thread_that_ends_a_call_starts_the_next_of_its_lane_and_never_too_many(rig: Rig) -> None:
    rig.hands.starts_anywhere = True
    rig.enqueue("few", 200, 60)
    rig.pass_time(1)
    for _ in range(60):
        for _ in range(10):  # the dispatcher does nothing meanwhile
            before, waiting = len(rig.hands.begun), len(rig.dispatcher._lanes["few"].waiting)
            rig.end_calls()
            assert len(rig.hands.begun) - before == len(rig.hands.calls) == min(4, waiting)
        rig.pass_time(1)
    called = [m.payload for call in rig.hands.begun for m in call.messages]
    assert called == sorted(called)
    assert rig.metrics.counts("acknowledged")["few"] == rig.metrics.counts("fired")["few"] == 200


def test_once_a_scheduler_ends_no_call_is_started_in_the_place_of_one_that_has_ended(rig: Rig) -> None:
    rig.hands.starts_anywhere = True
    rig.enqueue("few", 20, 60)
    rig.pass_time(1)
    rig.dispatcher.step(fire=False)
    rig.end_calls()
    assert rig.hands.called == ["few"] * 4


def test_little_room_is_made_use_of_though_nothing_new_comes(rig: Rig) -> None:
    rig.enqueue("free", 1000, 60)
    rig.pass_time(1)
    assert len(rig.hands.called) == IN_FLIGHT
    rig.hands.calls, running = rig.hands.calls[:10], rig.hands.calls[10:]
    rig.end_calls()
    rig.hands.calls = running
    rig.pass_time(4)
    assert len(rig.hands.called) == IN_FLIGHT + 10


def test_a_call_that_waits_behind_slow_ones_is_cancelled_like_any_message(rig: Rig) -> None:
    rig.enqueue("few", 1000, 60)
    rig.pass_time(3)
    wheel = rig.scheduler.wheel
    waiting = [m.id for m in wheel.list(topic="few")]
    assert all(wheel.cancel(id_) for id_ in waiting[20:])
    for _ in range(20):
        rig.end_calls()
        rig.pass_time(1)
    assert rig.hands.called == ["few"] * 20


def test_a_drain_waits_for_no_limited_handler(wheel_dir: Path) -> None:
    clock = StillClock()
    scheduler = Scheduler(wheel_dir, clock=clock)
    called: list[str] = []
    scheduler.on("rare", rate_per_s=1)(lambda: called.append("rare"))
    free = scheduler.on("free")(lambda: called.append("free"))
    scheduler.wheel.enqueue_many([b""] * 2000, at=NOW_S - 60, topic="rare", headers={"filewheel.args": "json"})
    free.at(NOW_S - 30)
    scheduler.drain()
    assert "free" in called
    scheduler.stop()


def test_a_limit_of_one_message_in_flight_still_goes_on(wheel_dir: Path) -> None:
    called: list[int] = []
    scheduler = Scheduler(wheel_dir, in_flight=1, clock=StillClock())
    one = scheduler.on("one", concurrency=1)(called.append)
    for n in range(3):
        one.enqueue(n)
    assert scheduler.drain() == 3
    assert called == [0, 1, 2]
    scheduler.stop()


def test_in_threads_that_start_each_other_no_more_calls_run_at_once_than_may_and_each_once(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, threads=6)
    running, most, called = [0], [0], list[tuple[str, int]]()
    lock, ended = threading.Lock(), threading.Event()

    def call(name: str, number: int) -> None:
        with lock:
            running[0] += name == "two"
            most[0] = max(most[0], running[0])
            called.append((name, number))
        os.sched_yield()
        with lock:
            running[0] -= name == "two"
        if len(called) == 900:
            ended.set()

    two = scheduler.on("two", concurrency=2)(partial(call, "two"))
    free = scheduler.on("free")(partial(call, "free"))
    for number in range(300):
        two.enqueue(number)
        free.enqueue(number)
    with scheduler:
        for number in range(300, 600):
            two.enqueue(number)
        assert ended.wait(60)
    assert most[0] <= 2
    assert sorted(called) == [("free", n) for n in range(300)] + [("two", n) for n in range(600)]
    assert list(scheduler.wheel.list()) == []
    scheduler.wheel.close()
