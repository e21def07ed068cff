"""SystemTimer: as Kafka's."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from filewheel import BadArgument, Closed
from filewheel.timers import SystemTimer, TimerState, TimerTask
from tests.timers.support import PATIENCE_S, InThread, round_clock, soon


def test_kafkas_published_example_holds_when_the_delay_queue_drives_the_wheel() -> None:
    clock = round_clock()
    timer = SystemTimer(0.001, 20, clock=clock)
    calls: list[tuple[float, float]] = []
    began = clock.steady_us()

    def call(delay_ms: int) -> None:
        calls.append((delay_ms, (clock.steady_us() - began) / 1_000))

    tasks = {ms: timer.add(ms / 1_000, call, ms) for ms in (350, 446, 450, 455, 473)}
    slots = {ms: task.entry.slot for ms, task in tasks.items() if task.entry is not None}
    found: Any = slots[350]
    assert (found.level, found.index) == (2, 17)
    found = slots[450]
    assert (found.level, found.index, found.expiry) == (3, 1, 8_400)
    assert slots[446] is slots[450] is slots[455] is slots[473]
    assert len(timer._reaper.slots) == 2  # slots wait in the delay queue, not timers
    for ms, task in tasks.items():
        clock.advance(timedelta(microseconds=ms * 1_000 - (clock.steady_us() - began) - 1))
        assert task.state is TimerState.PENDING
        clock.advance(timedelta(microseconds=1))
        soon(lambda: calls and calls[-1][0] == ms)  # noqa: B023
    assert calls == [(ms, ms) for ms in tasks]
    assert len(timer) == 0
    timer.close()


def test_a_timer_is_never_early_and_one_that_is_due_is_called_at_once() -> None:
    clock = round_clock()
    timer = SystemTimer(1, 4, clock=clock)
    calls: list[str] = []
    timer.add(-5, calls.append, "over")
    timer.add(0, calls.append, "now")
    soon(lambda: calls == ["over", "now"])
    task = timer.add(2.5, calls.append, "between two ticks")
    clock.advance(2.999999)
    assert task.state is TimerState.PENDING
    clock.advance(0.000001)
    soon(lambda: len(calls) == 3)
    timer.add(10_000_000, calls.append, "months")
    assert len(timer._reaper.wheel.levels) > 10
    clock.advance(10_000_000)
    soon(lambda: len(calls) == 4)
    timer.close()


def test_cancels_from_threads_race_with_expiries_and_each_timer_has_one_of_them() -> None:
    timer = SystemTimer()
    called: list[int] = []
    tasks = [timer.add(n % 20 / 1_000, called.append, n) for n in range(2_000)]
    cancellers = [InThread(lambda: [n for n, task in enumerate(tasks) if task.cancel()]) for _ in range(3)]
    stopped = [n for canceller in cancellers for n in canceller.result()]
    soon(lambda: len(called) + len(stopped) == 2_000)
    assert sorted(called + stopped) == list(range(2_000))
    assert len(timer) == 0
    timer.close()


def test_a_slow_function_delays_no_slot_where_the_executor_has_another_thread() -> None:
    begun, go_on, called = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    with ThreadPoolExecutor(2) as executor:
        timer = SystemTimer(executor=executor)
        timer.add(0, slow)
        assert begun.wait(PATIENCE_S)
        timer.add(0.001, called.set)
        assert called.wait(PATIENCE_S)
        go_on.set()
        timer.close()
        assert executor.submit(str, 1).result(PATIENCE_S) == "1"  # an executor that was passed goes on


def test_a_function_that_raises_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    timer = SystemTimer()
    called = threading.Event()
    timer.add(0, int, "x")
    timer.add(0.001, exit)
    timer.add(0.002, called.set)
    assert called.wait(PATIENCE_S)
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ValueError, SystemExit]
    timer.close()


def test_a_timer_that_its_executor_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    timer = SystemTimer(executor=executor)
    timer.add(0.001, print)
    soon(lambda: "an executor refused the function of a timer" in caplog.text)
    assert timer.close() == []


def test_a_close_returns_what_was_pending_and_none_is_called_after_it() -> None:
    timer = SystemTimer()
    tasks = [timer.add(3_600 + n, print) for n in range(5)]
    tasks[2].cancel()
    assert sorted(map(id, timer.close())) == sorted(id(task) for task in tasks if task is not tasks[2])
    assert {task.state for task in tasks} == {TimerState.STOPPED}
    assert not tasks[0].cancel()
    assert timer.close() == []
    with pytest.raises(Closed, match="this SystemTimer was closed"):
        timer.add(1, print)


def test_a_function_may_start_and_cancel_timers_and_close_its_own() -> None:
    timer = SystemTimer()
    other = timer.add(3_600, print)
    found: list[Any] = []
    timer.add(0.001, lambda: found.extend([timer.add(7_200, print), other.cancel(), timer.close()]))
    soon(lambda: len(found) == 3)
    assert found[1]
    assert found[2] == [found[0]]


def test_a_hundred_thousand_timers_that_are_started_and_cancelled_leave_nothing() -> None:
    timer = SystemTimer()
    for n in range(50_000):
        timer.add(30 + n % 60, print, n).cancel()
    assert len(timer) == 0
    assert len(timer._reaper.slots) <= 20 * len(timer._reaper.wheel.levels)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, TimerTask) and one._timer is timer._reaper]
    timer.close()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None, True])
def test_a_delay_that_is_no_finite_number_and_a_tick_that_is_none_are_refused(wrong: Any) -> None:
    timer = SystemTimer()
    with pytest.raises(BadArgument):
        timer.add(wrong, print)
    with pytest.raises(BadArgument):
        SystemTimer(wrong)
    with pytest.raises(BadArgument):
        SystemTimer(0)
    with pytest.raises(BadArgument):
        SystemTimer(1, 1)
    with pytest.raises(BadArgument, match="method submit"):
        SystemTimer(executor=3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a timer calls a function"):
        timer.add(1, 5)  # type: ignore[arg-type]
    assert len(timer) == 0
