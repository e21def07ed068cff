"""ScheduledExecutor: calls after delays and periodically, each with its future."""

from __future__ import annotations

import gc
import signal
import threading
import time
from concurrent.futures import CancelledError, as_completed, wait
from typing import Any

import pytest

from filewheel import BadArgument, Closed
from filewheel.testing import FakeClock
from filewheel.timers import ScheduledExecutor
from tests.timers.support import PATIENCE_S, InThread, soon


def test_calls_come_in_the_order_of_their_times_and_none_before_its_own() -> None:
    clock = FakeClock()
    with ScheduledExecutor(1, clock=clock) as executor:
        calls: list[str] = []
        futures = [executor.schedule(delay, calls.append, name) for name, delay in [("b", 2), ("a", 1), ("c", 3)]]
        first = executor.submit(lambda one, *, two: one + two, 1, two=2)
        assert first.result(PATIENCE_S) == 3
        assert calls == []
        clock.advance(1)
        futures[1].result(PATIENCE_S)
        assert calls == ["a"]
        clock.advance(2)
        wait(futures, PATIENCE_S)
        assert calls == ["a", "b", "c"]
        assert list(executor.map(str, [1, 2])) == ["1", "2"]


def test_a_call_that_raises_has_its_error_in_its_future_and_harms_no_other() -> None:
    with ScheduledExecutor(1) as executor:
        failed = executor.schedule(0, int, "x")
        ended = executor.schedule(0, exit)
        assert executor.submit(str, 1).result(PATIENCE_S) == "1"
        with pytest.raises(ValueError, match="invalid literal"):
            failed.result()
        assert isinstance(ended.exception(), SystemExit)


def test_a_cancelled_call_leaves_the_heap_and_its_function_and_waiters_are_released() -> None:
    executor = ScheduledExecutor(1)
    futures = [executor.schedule(3_600 + n, print, n) for n in range(1_000)]
    assert len(executor) == 1_000
    for future in futures:
        assert future.cancel()
        assert future.cancel()
        assert future._call is None
    assert len(executor) == 0
    assert len(executor._queue._heap.heap) <= 64
    assert not wait(futures, PATIENCE_S).not_done
    assert len(list(as_completed(futures, PATIENCE_S))) == 1_000
    with pytest.raises(CancelledError):
        futures[0].result(PATIENCE_S)
    executor.shutdown()


def test_a_call_that_runs_cannot_be_cancelled_and_ends_as_it_would() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def call() -> str:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return "done"

    with ScheduledExecutor(1) as executor:
        future = executor.submit(call)
        assert begun.wait(PATIENCE_S)
        assert future.running()
        assert not future.cancel()
        go_on.set()
        assert future.result(PATIENCE_S) == "done"
        assert not future.cancel()


def test_a_fixed_rate_keeps_to_its_multiples_and_calls_that_one_overran_are_left_out() -> None:
    clock = FakeClock()
    began = clock.steady_us()
    calls: list[int] = []

    def call() -> None:
        calls.append((clock.steady_us() - began) // 1_000_000)
        if len(calls) == 2:
            clock.advance(35)  # as long does this call take

    with ScheduledExecutor(2, clock=clock) as executor:
        future = executor.schedule_at_fixed_rate(5, 10, call)
        for until in (5, 15):
            clock.advance(until - (clock.steady_us() - began) // 1_000_000)
            soon(lambda: calls and calls[-1] >= until and len(executor) == 1)  # noqa: B023
        assert calls == [5, 15]
        assert future.due_ns // 1_000_000_000 == 55
        clock.advance(5)
        soon(lambda: calls == [5, 15, 55] and len(executor) == 1)
        assert future.is_periodic
        assert not future.done()
        assert future.cancel()
        assert len(executor) == 0


def test_a_fixed_delay_is_from_the_end_of_each_call() -> None:
    clock = FakeClock()
    began = clock.steady_us()
    calls: list[int] = []

    def call() -> None:
        calls.append((clock.steady_us() - began) // 1_000_000)
        clock.advance(7)

    with ScheduledExecutor(1, clock=clock) as executor:
        executor.schedule_with_fixed_delay(5, 10, call)
        clock.advance(5)
        soon(lambda: calls == [5] and len(executor) == 1)
        clock.advance(9.999)
        assert calls == [5]
        clock.advance(0.001)
        soon(lambda: calls == [5, 22])


def test_a_periodic_call_that_raises_is_the_last_one_and_its_error_is_in_its_future() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("third")

    with ScheduledExecutor(2) as executor:
        future = executor.schedule_at_fixed_rate(0, 0.001, call)
        with pytest.raises(ValueError, match="third"):
            future.result(PATIENCE_S)
        assert len(calls) == 3
        assert len(executor) == 0


def test_a_periodic_call_that_is_cancelled_in_its_own_call_or_between_is_not_called_again() -> None:
    with ScheduledExecutor(1) as executor:
        futures: list[Any] = []
        calls: list[int] = []

        made = threading.Event()

        def once() -> None:
            assert made.wait(PATIENCE_S)
            calls.append(1)
            futures[0].cancel()

        futures.append(executor.schedule_at_fixed_rate(0.001, 0.001, once))
        made.set()
        assert not wait(futures, PATIENCE_S).not_done
        assert calls == [1]
        assert futures[0].cancelled()
        assert len(executor) == 0


def test_cancels_that_race_with_periodic_calls_notify_the_waiters_once_each() -> None:
    with ScheduledExecutor(2) as executor:
        futures = [executor.schedule_at_fixed_rate(0, 0.0001, int) for _ in range(50)]
        threads = [InThread(lambda: [f.cancel() for f in futures]) for _ in range(2)]
        assert all(all(thread.result()) for thread in threads)
        assert not wait(futures, PATIENCE_S).not_done
        soon(lambda: len(executor) == 0)


def test_a_shutdown_ends_periodic_calls_and_waits_for_the_delayed_ones() -> None:
    executor = ScheduledExecutor(2)
    periodic = executor.schedule_at_fixed_rate(1_000, 1_000, print)
    delayed = executor.schedule(0.02, str, 7)
    executor.shutdown()
    assert periodic.cancelled()
    assert delayed.result(0) == "7"
    with pytest.raises(Closed, match="this ScheduledExecutor was closed"):
        executor.submit(print)
    executor.shutdown()


def test_a_shutdown_with_cancel_futures_leaves_none_pending() -> None:
    executor = ScheduledExecutor(2)
    futures = [executor.schedule(1_000, print) for _ in range(3)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    assert not wait(futures, PATIENCE_S).not_done


def test_a_call_may_shut_its_own_executor_down() -> None:
    executor = ScheduledExecutor(1)
    assert executor.submit(lambda: executor.shutdown()).result(PATIENCE_S) is None
    with pytest.raises(Closed):
        executor.submit(print)


def test_two_calls_that_shut_their_executor_down_do_not_wait_for_each_other() -> None:
    executor = ScheduledExecutor(2)
    both = threading.Barrier(2)

    def end() -> None:
        both.wait(PATIENCE_S)
        executor.shutdown()

    futures = [executor.submit(end) for _ in range(2)]
    assert [future.result(PATIENCE_S / 2) for future in futures] == [None, None]


def test_a_call_may_schedule_and_cancel_others() -> None:
    with ScheduledExecutor(1) as executor:
        other = executor.schedule(1_000, print)
        assert executor.submit(lambda: (other.cancel(), executor.schedule(0, str, 1))).result(PATIENCE_S)[0]
        assert other.cancelled()


def test_no_more_than_max_workers_calls_run_at_once_and_that_many_do() -> None:
    gate = threading.Barrier(3)
    with ScheduledExecutor(3) as executor:
        futures = [executor.submit(gate.wait, PATIENCE_S) for _ in range(6)]
        assert sorted(future.result(PATIENCE_S) for future in futures) == [0, 0, 1, 1, 2, 2]
        assert len(executor._workers) == 3


def test_a_call_in_real_time_is_not_early() -> None:
    with ScheduledExecutor(1) as executor:
        began = time.monotonic()
        assert executor.schedule(0.02, time.monotonic).result(PATIENCE_S) - began >= 0.02


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None, True])
def test_a_time_that_is_no_finite_number_is_refused_and_nothing_is_scheduled(wrong: Any) -> None:
    with ScheduledExecutor(1) as executor:
        for call in (
            lambda: executor.schedule(wrong, print),
            lambda: executor.schedule_at_fixed_rate(wrong, 1, print),
            lambda: executor.schedule_at_fixed_rate(1, wrong, print),
            lambda: executor.schedule_with_fixed_delay(1, wrong, print),
        ):
            with pytest.raises(BadArgument):
                call()
        assert len(executor) == 0


def test_a_period_that_is_none_a_function_that_is_none_and_no_thread_are_refused() -> None:
    with ScheduledExecutor(1) as executor:
        for period in (0, -1, 1e-12 * 0):
            with pytest.raises(BadArgument, match="period is a time above 0"):
                executor.schedule_at_fixed_rate(0, period, print)
        for fn in (None, "print", 5):
            with pytest.raises(BadArgument, match="a timer calls a function, not"):
                executor.schedule(0, fn)  # type: ignore[arg-type]
            with pytest.raises(BadArgument, match="a timer calls a function, not"):
                executor.submit(fn)  # type: ignore[arg-type]
    for count in (0, -1, 1.5, "2"):
        with pytest.raises(BadArgument, match="max_workers"):
            ScheduledExecutor(count)  # type: ignore[arg-type]


def test_ctrl_c_in_a_call_of_a_future_leaves_threads_that_go_on_and_an_executor_that_ends() -> None:
    executor = ScheduledExecutor(2)
    interrupted, is_armed = 0, False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    def until_interrupted() -> None:
        while is_armed:
            executor.schedule(3_600, int).cancel()
            future = executor.submit(int)
            future.cancel()
            wait([future], 0)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        gc.disable()  # it swallows an interrupt
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        while interrupted < 300:
            try:
                is_armed = True
                until_interrupted()
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert executor.submit(str, 1).result(PATIENCE_S) == "1"
    InThread(lambda: executor.shutdown(cancel_futures=True)).result()
