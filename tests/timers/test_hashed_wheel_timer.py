"""HashedWheelTimer: as Netty's."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from filewheel import BadArgument, Closed, TooManyTimers
from filewheel.testing import FakeClock
from filewheel.timers import HashedWheelTimer, TimerState, TimerTask, hashed_wheel_timer
from tests.timers.support import PATIENCE_S, InThread, round_clock, soon


class ByHand:
    """A timer whose worker is this test: `tick()` lets a tick pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        monkeypatch.setattr(hashed_wheel_timer._Worker, "start", lambda worker: None)
        self.clock = round_clock()
        self.timer = HashedWheelTimer(1, 8, clock=self.clock, **options)
        self.worker = self.timer._worker

    def tick(self, seconds: float = 1) -> None:
        self.clock.advance(seconds)
        self.worker._tick()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    return ByHand(monkeypatch)


def test_slots_are_rounded_up_to_a_power_of_two_and_the_worker_starts_with_the_first_timer() -> None:
    timer = HashedWheelTimer(0.001, 500)
    wheel = timer._worker.wheel
    assert (len(wheel.slots), wheel.mask) == (512, 511)
    assert len(timer._worker._workers) == 0
    called = threading.Event()
    timer.new_timeout(0, called.set)
    assert called.wait(PATIENCE_S)
    assert len(timer._worker._workers) == 1
    assert timer.stop() == []


def test_a_timer_is_called_at_the_first_tick_after_its_due_and_never_before(by_hand: ByHand) -> None:
    calls: list[str] = []
    for name, delay in {"a": 0.5, "b": 1, "c": 1.000001, "lap": 9, "far": 20.5, "over": -3}.items():
        by_hand.timer.new_timeout(delay, calls.append, name)
    by_hand.tick(0.9)
    assert calls == ["over"]
    by_hand.tick(0.1)
    assert calls == ["over", "a", "b"]
    by_hand.tick()
    assert calls[3:] == ["c"]
    by_hand.tick(6)
    assert calls[4:] == []
    by_hand.tick()
    assert calls[4:] == ["lap"]
    by_hand.tick(11)
    assert calls[5:] == []
    by_hand.tick()
    assert calls[5:] == ["far"]
    assert len(by_hand.timer) == 0


def test_in_a_tick_at_most_so_many_new_timers_reach_the_wheel(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hashed_wheel_timer.NEW_PER_TICK == 100_000
    monkeypatch.setattr(hashed_wheel_timer, "NEW_PER_TICK", 3)
    calls: list[int] = []
    for n in range(7):
        by_hand.timer.new_timeout(0, calls.append, n)
    for expected in (3, 6, 7):
        by_hand.tick()
        assert calls == list(range(expected))


def test_a_cancel_before_during_and_after_its_tick_wins_once(by_hand: ByHand) -> None:
    calls: list[str] = []
    timer = by_hand.timer
    at_once = timer.new_timeout(5, calls.append, "at once")
    assert at_once.cancel()
    in_wheel = timer.new_timeout(5, calls.append, "in the wheel")
    first = timer.new_timeout(5, lambda: calls.append(f"first cancels: {second.cancel()}"))
    second = timer.new_timeout(5, calls.append, "second")
    by_hand.tick()
    assert len(by_hand.worker.wheel) == 3
    assert in_wheel.cancel()
    assert not in_wheel.cancel()
    assert timer.pending_timeouts == 2
    by_hand.tick()
    assert len(by_hand.worker.wheel) == 2
    by_hand.tick(5)
    assert calls == ["first cancels: True"]
    assert not first.cancel()
    assert [t.state for t in (at_once, in_wheel, first, second)] == [
        TimerState.STOPPED, TimerState.STOPPED, TimerState.EXPIRED, TimerState.STOPPED,
    ]  # fmt: skip
    assert timer.pending_timeouts == 0
    by_hand.tick()
    assert not by_hand.worker._cancelled
    assert not by_hand.worker._new


def test_over_the_limit_of_pending_timers_a_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ByHand(monkeypatch, max_pending=2)
    task = by_hand.timer.new_timeout(5, print)
    by_hand.timer.new_timeout(5, int)
    with pytest.raises(TooManyTimers, match="2 timers are pending, which is the limit. Try: cancel some"):
        by_hand.timer.new_timeout(5, int)
    task.cancel()
    by_hand.timer.new_timeout(5, int)
    by_hand.tick(6)
    by_hand.timer.new_timeout(5, int)
    assert len(by_hand.timer) == 1


def test_a_stop_returns_every_timer_that_was_not_called_and_none_is_called_after_it() -> None:
    timer = HashedWheelTimer(0.001)
    calls: list[int] = []
    tasks = [timer.new_timeout(0 if n < 10 else 3_600, calls.append, n) for n in range(20)]
    soon(lambda: len(calls) == 10)
    tasks[15].cancel()
    assert timer.stop() == tasks[10:15] + tasks[16:]
    assert all(task.state is TimerState.STOPPED for task in tasks[10:])
    assert not tasks[10].cancel()
    assert timer.stop() == []
    assert len(timer) == 0
    with pytest.raises(Closed, match="this HashedWheelTimer was closed"):
        timer.new_timeout(0, print)
    with pytest.raises(Closed):
        timer.start()


def test_a_stop_of_a_timer_that_never_started_returns_nothing() -> None:
    timer = HashedWheelTimer()
    assert timer.stop() == []
    with pytest.raises(Closed):
        timer.new_timeout(1, print)


def test_a_function_may_start_and_cancel_timers_and_stop_its_own() -> None:
    timer = HashedWheelTimer(0.001)
    other = timer.new_timeout(3_600, print)
    found: list[Any] = []
    timer.new_timeout(0, lambda: found.extend([timer.new_timeout(7_200, print), other.cancel(), timer.stop()]))
    soon(lambda: len(found) == 3)
    assert found[1]
    assert found[2] == [found[0]]
    assert timer.stop() == []


def test_a_function_that_raises_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    timer = HashedWheelTimer(0.001)
    timer.new_timeout(0, int, "x")
    timer.new_timeout(0, exit)
    called = threading.Event()
    soon(lambda: len(timer) == 0)
    timer.new_timeout(0, called.set)
    assert called.wait(PATIENCE_S)
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ValueError, SystemExit]
    timer.stop()


def test_an_executor_calls_the_functions_where_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1, "elsewhere") as executor:
        timer = HashedWheelTimer(0.001, executor=executor)
        names: list[str] = []
        timer.new_timeout(0, lambda: names.append(threading.current_thread().name))
        soon(lambda: names)
        assert names[0].startswith("elsewhere")
    timer.new_timeout(0, print)
    soon(lambda: "refused" in caplog.text)
    timer.stop()


def test_cancels_from_threads_race_with_expiries_and_each_timer_has_one_of_them() -> None:
    timer = HashedWheelTimer(0.001, 16)
    called: list[int] = []
    tasks = [timer.new_timeout(n % 20 / 1_000, called.append, n) for n in range(2_000)]
    cancellers = [InThread(lambda: [n for n, task in enumerate(tasks) if task.cancel()]) for _ in range(3)]
    stopped = [n for canceller in cancellers for n in canceller.result()]
    soon(lambda: len(called) + len(stopped) == 2_000)
    assert sorted(called + stopped) == list(range(2_000))
    assert len(timer) == 0
    assert timer.stop() == []


def test_a_hundred_thousand_timers_that_are_started_and_cancelled_leave_nothing(by_hand: ByHand) -> None:
    for n in range(100_000):
        by_hand.timer.new_timeout(30, print, n).cancel()
        if n % 20_000 == 0:
            by_hand.tick(0.001)
    by_hand.tick()
    assert (len(by_hand.timer), len(by_hand.worker.wheel)) == (0, 0)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, TimerTask) and one._timer is by_hand.worker]


def test_a_clock_that_stands_still_calls_nothing() -> None:
    clock = FakeClock()
    timer = HashedWheelTimer(0.001, clock=clock)
    calls: list[int] = []
    timer.new_timeout(0.001, calls.append, 1)
    clock.advance(0)
    clock.advance(0.000_9)
    assert calls == []
    clock.advance(0.002)
    soon(lambda: calls == [1])
    timer.stop()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None, True])
def test_a_delay_that_is_no_finite_number_and_a_tick_that_is_none_are_refused(wrong: Any) -> None:
    timer = HashedWheelTimer()
    with pytest.raises(BadArgument):
        timer.new_timeout(wrong, print)
    with pytest.raises(BadArgument):
        HashedWheelTimer(wrong)
    with pytest.raises(BadArgument):
        HashedWheelTimer(-1)
    with pytest.raises(BadArgument):
        HashedWheelTimer(1, 0)
    with pytest.raises(BadArgument):
        HashedWheelTimer(max_pending=0)
    with pytest.raises(BadArgument, match="method submit"):
        HashedWheelTimer(executor=3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a timer calls a function"):
        timer.new_timeout(1, 5)  # type: ignore[arg-type]
    assert len(timer) == 0
    assert timer.stop() == []
