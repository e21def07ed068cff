"""Timer: java.util.Timer with its two faults."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from filewheel import BadArgument, Closed
from filewheel.testing import FakeClock
from filewheel.timers import Timer, TimerState
from tests.timers.support import PATIENCE_S, InThread, soon


def test_tasks_are_called_one_by_one_at_their_times() -> None:
    clock = FakeClock()
    timer = Timer(clock=clock)
    calls: list[Any] = []
    tasks = [timer.schedule(delay, calls.append, name) for name, delay in [("b", 2), ("a", 1), ("no", 1)]]
    assert tasks[2].cancel()
    assert not tasks[2].cancel()
    clock.advance(1)
    soon(lambda: calls == ["a"])
    clock.advance(1)
    soon(lambda: calls == ["a", "b"])
    assert [task.state for task in tasks] == [TimerState.EXPIRED, TimerState.EXPIRED, TimerState.STOPPED]
    assert not tasks[0].cancel()
    assert timer.cancel() == []


def test_a_slow_task_delays_every_later_one() -> None:
    """The first fault of java.util.Timer."""
    timer = Timer()
    begun, go_on, later = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    timer.schedule(0, slow)
    assert begun.wait(PATIENCE_S)
    task = timer.schedule(0, later.set)
    assert len(timer) == 1  # due, and not called
    assert task.state is TimerState.PENDING
    go_on.set()
    assert later.wait(PATIENCE_S)
    timer.cancel()


def test_a_task_that_raises_ends_the_timer_and_all_that_was_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second fault of java.util.Timer. A ScheduledExecutor has neither."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    timer = Timer()
    pending = timer.schedule(3_600, print)
    timer.schedule(0, int, "x")
    soon(lambda: raised)
    assert raised[0].exc_type is ValueError
    assert pending.state is TimerState.STOPPED
    assert not pending.cancel()
    assert len(timer) == 0
    with pytest.raises(
        Closed, match="this timer ended when a task raised ValueError.*Try: a ScheduledExecutor"
    ) as error:
        timer.schedule(0, print)
    assert isinstance(error.value.__cause__, ValueError)


def test_a_fixed_rate_makes_up_for_the_calls_that_are_late() -> None:
    clock = FakeClock()
    timer = Timer(clock=clock)
    began = clock.steady_us()
    calls: list[int] = []
    task = timer.schedule_at_fixed_rate(10, 10, lambda: calls.append((clock.steady_us() - began) // 1_000_000))
    clock.advance(35)
    soon(lambda: calls == [35, 35, 35])
    clock.advance(5)
    soon(lambda: calls == [35, 35, 35, 40])
    assert task.cancel()
    assert not task.cancel()
    assert timer.cancel() == []


def test_a_fixed_delay_is_from_the_begin_of_each_call() -> None:
    clock = FakeClock()
    timer = Timer(clock=clock)
    began = clock.steady_us()
    calls: list[int] = []
    timer.schedule_with_fixed_delay(10, 10, lambda: calls.append((clock.steady_us() - began) // 1_000_000))
    clock.advance(35)
    soon(lambda: calls == [35] and timer._loop.queue.next_due_ns() == 45_000_001_000)
    clock.advance(10)
    soon(lambda: calls == [35, 45])
    assert len(timer.cancel()) == 1


def test_a_task_may_start_and_cancel_others_and_end_the_timer() -> None:
    timer = Timer()
    other = timer.schedule(1_000, print)
    found: list[Any] = []
    timer.schedule(0, lambda: found.extend([other.cancel(), timer.schedule(500, print), timer.cancel()]))
    soon(lambda: len(found) == 3)
    assert found[0]
    assert found[2] == [found[1]]
    with pytest.raises(Closed, match="cancelled"):
        timer.schedule(0, print)


def test_cancels_from_threads_race_with_the_calls_and_each_task_has_one_of_them() -> None:
    timer = Timer()
    called: list[int] = []
    tasks = [timer.schedule(n % 10 / 1_000, called.append, n) for n in range(1_000)]
    stopped = InThread(lambda: [n for n, task in enumerate(tasks) if task.cancel()]).result()
    soon(lambda: len(called) + len(stopped) == 1_000)
    assert sorted(called + stopped) == list(range(1_000))
    timer.cancel()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None])
def test_a_time_that_is_no_finite_number_is_refused(wrong: Any) -> None:
    timer = Timer()
    with pytest.raises(BadArgument):
        timer.schedule(wrong, print)
    with pytest.raises(BadArgument):
        timer.schedule_at_fixed_rate(1, wrong, print)
    with pytest.raises(BadArgument, match="a timer calls a function"):
        timer.schedule(1, "print")  # type: ignore[arg-type]
    assert len(timer) == 0
