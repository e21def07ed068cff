"""What fills a limited handler's lane: claimed as it is called where that goes quickly, put off where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Scheduler
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.events import Events
from filewheel.scheduling.handler import Handler, Handlers, Options, Terms
from filewheel.scheduling.lane import Lane
from filewheel.scheduling.task import Call, Outcome
from filewheel.scheduling.watch import Watch
from tests.support_wheel import NOW_S, StillClock

MS = 1000
IN_FLIGHT = 400


class Hands:
    """A runner that does nothing by itself."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.called: list[str] = []

    def start(self, call: Call) -> None:
        self.calls.append(call)
        self.called.append(call.handler.name)


class Rig:
    """A dispatcher whose steps a test makes: a handler of which four run at once, and one without a limit."""

    def __init__(self, path: Path) -> None:
        self.clock = StillClock()
        self.scheduler = Scheduler(path, clock=self.clock)
        self.metrics = self.scheduler.metrics
        self.hands = Hands()
        handlers = Handlers()
        for name, concurrency in (("few", 4), ("free", None)):
            handlers.add(Handler(name, print, Terms(concurrency=concurrency), self.scheduler, Options()))
        self.keeper = Keeper(path, clock=self.clock, background=False)
        self.dispatcher = Dispatcher(
            self.keeper, handlers, {"thread": self.hands}, slots={"thread": None}, in_flight=IN_FLIGHT,
            catch_up_per_s=None, unknown="wait", clock=self.clock,
            watch=Watch(self.metrics, Events(self.clock)), successor=lambda m, us: None, fate=lambda m, us: None,
        )  # fmt: skip

    def enqueue(self, name: str, count: int, ago_s: float) -> None:
        """Enqueue calls that have been due for a while."""
        self.scheduler.wheel.enqueue_many([b""] * count, at=NOW_S - ago_s, topic=name)

    def end_calls(self) -> None:
        """End every call."""
        calls, self.hands.calls = self.hands.calls, []
        for call in calls:
            self.dispatcher.finish(Outcome(call))

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


def lane(*, where: str = "thread", batch: int | None = None) -> Lane:
    """Return the lane of a limited handler, in which a hundred may wait; made at 0."""
    terms = Terms(where=where, concurrency=2, batch=batch)  # type: ignore[arg-type]
    handler = Handler("few", print, terms, Scheduler("unused"), Options())
    return Lane(handler, 2, 100, 0)


def fill(lane: Lane) -> None:
    """Fill a lane to the brim."""
    while not lane.full(0):
        lane.waiting.append(None)  # type: ignore[arg-type]


def end(lane: Lane, count: int, now_us: int) -> None:
    """Begin and end calls."""
    for _ in range(count):
        assert lane.take(now_us)
        lane.ended(MS)


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


def test_what_a_slow_limited_handler_cannot_take_is_put_off_and_others_are_called(rig: Rig) -> None:
    rig.enqueue("few", 1000, 60)
    rig.enqueue("free", 1, 30)
    for _ in range(40):  # no call ends
        rig.dispatcher.step()
        rig.clock.wall_us += 10 * MS
        rig.clock.run_us += 10 * MS
    assert rig.hands.called == ["few"] * 4 + ["free"]
    assert rig.metrics.counts("deferred")["few"] == 1000 - 4 - IN_FLIGHT // 4
    assert rig.dispatcher.claimed == 4 + IN_FLIGHT // 4 + 1


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


def test_a_lane_takes_in_what_it_has_room_for_as_long_as_it_is_brisk() -> None:
    few = lane()
    assert few.spare(0) == 100
    fill(few)
    assert few.spare(50 * MS) == 0
    end(few, 25, 60 * MS)
    assert few.spare(110 * MS) == 25  # a quarter in a tenth of a second
    fill(few)
    end(few, 24, 150 * MS)
    assert few.spare(220 * MS) is None


def test_a_slow_lane_is_brisk_again_when_it_goes_faster_or_nothing_waits() -> None:
    few = lane()
    fill(few)
    assert few.spare(100 * MS) is None
    end(few, 30, 150 * MS)
    assert few.spare(150 * MS) is None
    assert few.spare(200 * MS) == 30
    assert few.spare(300 * MS) is None
    few.waiting.clear()
    assert few.spare(301 * MS) == 100


def test_a_lane_of_processes_may_take_its_time_to_start() -> None:
    few = lane(where="process")
    few.waiting.append(None)  # type: ignore[arg-type]
    assert few.take(500 * MS)
    fill(few)
    assert few.spare(1400 * MS) == 0
    assert few.spare(1600 * MS) is None
    quick = lane(where="process")
    fill(quick)
    assert quick.take(0)
    assert quick.take(0)
    assert quick.spare(900 * MS) == 2
    quick.ended(900 * MS)
    quick.ended(900 * MS)
    end(quick, 40, 950 * MS)
    assert quick.spare(960 * MS) == 42  # judged by what it does from its start on


def test_calls_of_batches_count_with_all_their_messages() -> None:
    few = lane(batch=10)
    fill(few)
    end(few, 3, 50 * MS)
    assert few.spare(100 * MS) == 30


def test_the_mean_of_a_lane_is_no_guess_once_its_first_calls_have_ended() -> None:
    few = lane()
    fill(few)
    for took_us in (400 * MS, 400 * MS, MS):  # two waited for their processes
        few.take(0)
        few.ended(took_us)
    assert few._step_us() == 500
    for _ in range(40):
        few.take(0)
        few.ended(MS)
    fill(few)
    assert few.defer_us(0) == 1_000_000 + 500


def test_a_limit_of_one_message_in_flight_still_goes_on(wheel_dir: Path) -> None:
    called: list[int] = []
    scheduler = Scheduler(wheel_dir, in_flight=1, clock=StillClock())
    one = scheduler.on("one", concurrency=1)(called.append)
    for n in range(3):
        one.enqueue(n)
    assert scheduler.drain() == 3
    assert called == [0, 1, 2]
    scheduler.stop()
