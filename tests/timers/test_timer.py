"""Timer: a thread over each scheme. With the hashed wheel it is Netty's, with the growing one Kafka's."""

from __future__ import annotations

import gc
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from filewheel import BadArgument, Closed, TooLarge, TooManyTimers
from filewheel.testing import FakeClock
from filewheel.timers import (
    BinaryHeap,
    Growing,
    HashedOrdered,
    HashedUnordered,
    Hierarchical,
    OrderedList,
    OrderedTree,
    SimpleWheel,
    Timer,
    TimerState,
    TimerTask,
    UnorderedList,
    timer,
)
from tests.timers.support import PATIENCE_S, InThread, round_clock, soon

SCHEMES: list[tuple[Any, dict[str, Any]]] = [
    (BinaryHeap, {}),
    (Growing, {"slots": 20}),
    (HashedOrdered, {"slots": 16}),
    (HashedUnordered, {"slots": 16}),
    (Hierarchical, {}),
    (OrderedList, {}),
    (OrderedTree, {}),
    (SimpleWheel, {"slots": 4_000_000, "tick": 1}),
    (UnorderedList, {}),
]


@pytest.fixture(params=[0, 1, 2, 3, 4, 5, 6, 8], ids=lambda at: SCHEMES[at][0].__name__)
def scheme(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    return SCHEMES[request.param]


class ByHand:
    """A timer whose thread is this test: `turn()` lets time pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scheme: Any = HashedUnordered, **options: Any) -> None:
        monkeypatch.setattr(timer.Workers, "start", lambda workers, target: None)
        self.clock = round_clock()
        self.timer = Timer(scheme, clock=self.clock, **options)
        self.driver = self.timer._driver

    def turn(self, seconds: float = 1) -> None:
        self.clock.advance(seconds)
        assert self.driver.turn()


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    return ByHand(monkeypatch, tick=1, slots=8)


def test_functions_are_called_at_their_times_in_order_and_none_that_was_cancelled(scheme: Any) -> None:
    clock = FakeClock()
    with Timer(scheme[0], clock=clock, **scheme[1]) as timer:
        calls: list[str] = []
        tasks = [timer.call_later(delay, calls.append, name) for name, delay in [("b", 2), ("a", 1), ("no", 1)]]
        over = timer.call_later(-3, calls.append, "over")
        assert tasks[2].cancel()
        assert not tasks[2].cancel()
        soon(lambda: over.state is TimerState.EXPIRED)
        clock.advance(1.01)
        soon(lambda: calls == ["over", "a"])
        clock.advance(0.98)
        assert tasks[0].state is TimerState.PENDING
        clock.advance(0.02)
        soon(lambda: calls == ["over", "a", "b"])
        assert [task.state for task in tasks] == [TimerState.EXPIRED, TimerState.EXPIRED, TimerState.STOPPED]
        assert not tasks[0].cancel()
    assert repr(timer) == f"<Timer({scheme[0].__name__}): 0 pending>"


def test_every_scheme_has_a_timer() -> None:
    for scheme, shape in SCHEMES:
        with Timer(scheme, **shape) as timer:
            called = threading.Event()
            timer.call_later(0, called.set)
            assert called.wait(PATIENCE_S)


def test_cancels_from_threads_race_with_expiries_and_each_task_has_one_of_them(scheme: Any) -> None:
    timer = Timer(scheme[0], **scheme[1])
    called: list[int] = []
    tasks = [timer.call_later(n % 20 / 1_000, called.append, n) for n in range(2_000)]
    cancellers = [InThread(lambda: [n for n, task in enumerate(tasks) if task.cancel()]) for _ in range(3)]
    stopped = [n for canceller in cancellers for n in canceller.result()]
    soon(lambda: len(called) + len(stopped) == 2_000)
    assert sorted(called + stopped) == list(range(2_000))
    assert len(timer) == 0
    assert timer.close() == []


def test_starts_from_threads_race_with_the_first_one_and_none_is_lost(scheme: Any) -> None:
    for _ in range(5):
        timer = Timer(scheme[0], **scheme[1])
        called: list[int] = []
        starters = [
            InThread(lambda: [timer.call_later(n % 3 / 1_000, called.append, n) for n in range(200)])  # noqa: B023
            for _ in range(4)
        ]
        for starter in starters:
            starter.result()
        soon(lambda: len(called) == 800)  # noqa: B023
        assert timer.close() == []


def test_kafkas_published_example_holds() -> None:
    clock = round_clock()
    timer = Timer(Growing, tick=0.001, slots=20, clock=clock)
    calls: list[tuple[float, float]] = []
    began = clock.steady_us()

    def call(delay_ms: int) -> None:
        calls.append((delay_ms, (clock.steady_us() - began) / 1_000))

    tasks = {ms: timer.call_later(ms / 1_000, call, ms) for ms in (350, 446, 450, 455, 473)}
    soon(lambda: all(task.entry for task in tasks.values()))
    slots = {ms: task.entry.slot for ms, task in tasks.items() if task.entry is not None}
    found: Any = slots[350]
    assert (found.level, found.index) == (2, 17)
    found = slots[450]
    assert (found.level, found.index, found.expiry) == (3, 1, 8_400)
    assert slots[446] is slots[450] is slots[455] is slots[473]
    for ms, task in tasks.items():
        clock.advance(timedelta(microseconds=ms * 1_000 - (clock.steady_us() - began) - 1))
        assert task.state is TimerState.PENDING
        clock.advance(timedelta(microseconds=1))
        soon(lambda: calls and calls[-1][0] == ms)  # noqa: B023
    assert calls == [(ms, ms) for ms in tasks]
    assert len(timer) == 0
    timer.close()


def test_a_timer_is_called_at_the_first_tick_after_its_due_and_never_before(by_hand: ByHand) -> None:
    calls: list[str] = []
    for name, delay in {"a": 0.5, "b": 1, "c": 1.000001, "lap": 9, "far": 20.5, "over": -3}.items():
        by_hand.timer.call_later(delay, calls.append, name)
    by_hand.turn(0)
    by_hand.turn(0.9)
    assert calls == ["over"]
    by_hand.turn(0.1)
    assert calls == ["over", "a", "b"]
    by_hand.turn()
    assert calls[3:] == ["c"]
    by_hand.turn(6)
    assert calls[4:] == []
    by_hand.turn()
    assert calls[4:] == ["lap"]
    by_hand.turn(11)
    assert calls[5:] == []
    by_hand.turn()
    assert calls[5:] == ["far"]
    assert len(by_hand.timer) == 0


def test_in_a_turn_at_most_so_many_new_timers_reach_the_scheme(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timer.NEW_PER_TURN == 100_000
    monkeypatch.setattr(timer, "NEW_PER_TURN", 3)
    calls: list[int] = []
    for n in range(7):
        by_hand.timer.call_later(0, calls.append, n)
    for expected in (3, 6, 7):
        by_hand.turn()
        assert calls == list(range(expected))


def test_a_cancel_before_during_and_after_its_tick_wins_once(by_hand: ByHand) -> None:
    calls: list[str] = []
    timer = by_hand.timer
    at_once = timer.call_later(5, calls.append, "at once")
    assert at_once.cancel()
    in_wheel = timer.call_later(5, calls.append, "in the wheel")
    first = timer.call_later(5, lambda: calls.append(f"first cancels: {second.cancel()}"))
    second = timer.call_later(5, calls.append, "second")
    by_hand.turn()
    assert len(by_hand.driver.scheme) == 3
    assert in_wheel.cancel()
    assert not in_wheel.cancel()
    assert len(timer) == 2
    by_hand.turn()
    assert len(by_hand.driver.scheme) == 2
    by_hand.turn(5)
    assert calls == ["first cancels: True"]
    assert not first.cancel()
    assert [t.state for t in (at_once, in_wheel, first, second)] == [
        TimerState.STOPPED, TimerState.STOPPED, TimerState.EXPIRED, TimerState.STOPPED,
    ]  # fmt: skip
    assert len(timer) == 0
    by_hand.turn()
    assert not by_hand.driver._cancelled
    assert not by_hand.driver._new


def test_over_the_limit_of_pending_timers_a_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ByHand(monkeypatch, max_pending=2, tick=1)
    task = by_hand.timer.call_later(5, print)
    by_hand.timer.call_later(5, int)
    with pytest.raises(TooManyTimers, match="2 timers are pending, which is the limit. Try: cancel some"):
        by_hand.timer.call_later(5, int)
    task.cancel()
    by_hand.timer.call_later(5, int)
    by_hand.turn(6)
    by_hand.timer.call_later(5, int)
    assert len(by_hand.timer) == 1


def test_a_close_returns_every_task_that_was_not_called_and_none_is_called_after_it(scheme: Any) -> None:
    timer = Timer(scheme[0], **scheme[1])
    calls: list[int] = []
    tasks = [timer.call_later(0 if n < 10 else 3_600, calls.append, n) for n in range(20)]
    soon(lambda: len(calls) == 10)
    tasks[15].cancel()
    assert timer.close() == tasks[10:15] + tasks[16:]
    assert all(task.state is TimerState.STOPPED for task in tasks[10:])
    assert not tasks[10].cancel()
    assert timer.close() == []
    assert len(timer) == 0
    with pytest.raises(Closed, match="this Timer was closed"):
        timer.call_later(0, print)


def test_a_delay_over_a_simple_wheels_is_refused_and_the_longest_is_taken_after_any_sleep() -> None:
    clock = round_clock()
    timer = Timer(SimpleWheel, tick=1, slots=10, clock=clock)
    calls: list[int] = []
    with pytest.raises(TooLarge, match="a delay of 10000001000 is over the 10000000000 of this wheel"):
        timer.call_later(10.000001, calls.append, 0)
    timer.call_later(1, calls.append, 1)
    clock.advance(1)
    soon(lambda: calls == [1])
    clock.advance(1_000.5)  # its thread sleeps: nothing is pending
    timer.call_later(10, calls.append, 2)
    clock.advance(9.9)
    timer.call_later(10, calls.append, 3)
    clock.advance(0.6)
    soon(lambda: calls == [1, 2])
    clock.advance(10)
    soon(lambda: calls == [1, 2, 3])
    assert timer.close() == []


def test_a_close_of_a_timer_that_never_started_returns_nothing() -> None:
    timer = Timer()
    assert timer.close() == []
    with pytest.raises(Closed):
        timer.call_later(1, print)


def test_a_function_may_start_and_cancel_timers_and_close_its_own(scheme: Any) -> None:
    timer = Timer(scheme[0], **scheme[1])
    other = timer.call_later(3_600, print)
    found: list[Any] = []
    timer.call_later(0, lambda: found.extend([timer.call_later(7_200, print), other.cancel(), timer.close()]))
    soon(lambda: len(found) == 3)
    assert found[1]
    assert found[2] == [found[0]]
    assert timer.close() == []


def test_a_function_that_raises_is_logged_and_harms_no_other(scheme: Any, caplog: pytest.LogCaptureFixture) -> None:
    """java.util.Timer ends there, and all that is pending is lost."""
    with Timer(scheme[0], **scheme[1]) as timer:
        timer.call_later(0, int, "x")
        timer.call_later(0, exit)
        soon(lambda: len(timer) == 0)
        called = threading.Event()
        timer.call_later(0, called.set)
        assert called.wait(PATIENCE_S)
    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [ValueError, SystemExit]


def test_a_slow_function_delays_every_later_one_and_none_where_an_executor_has_a_thread(scheme: Any) -> None:
    """The first is java.util.Timer's fault too: there is one thread."""
    for executor in (None, ThreadPoolExecutor(2)):
        begun, go_on, later = threading.Event(), threading.Event(), threading.Event()

        def slow() -> None:
            begun.set()  # noqa: B023
            go_on.wait(PATIENCE_S)  # noqa: B023

        timer = Timer(scheme[0], executor=executor, **scheme[1])
        timer.call_later(0, slow)
        assert begun.wait(PATIENCE_S)
        task = timer.call_later(0, later.set)
        if executor is None:
            assert len(timer) == 1  # due, and not called
            assert task.state is TimerState.PENDING
            go_on.set()
        assert later.wait(PATIENCE_S)
        go_on.set()
        timer.close()
        if executor is not None:
            assert executor.submit(str, 1).result(PATIENCE_S) == "1"  # it goes on
            executor.shutdown()


def test_a_function_that_its_executor_refuses_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(1, "elsewhere") as executor:
        timer = Timer(executor=executor)
        names: list[str] = []
        timer.call_later(0, lambda: names.append(threading.current_thread().name))
        soon(lambda: names)
        assert names[0].startswith("elsewhere")
    timer.call_later(0, print)
    soon(lambda: "an executor refused the function of a timer" in caplog.text)
    assert timer.close() == []


@pytest.mark.parametrize("with_executor", [False, True])
def test_a_periodic_function_is_called_at_each_period_that_no_call_overran(scheme: Any, with_executor: bool) -> None:
    clock = round_clock()
    executor = ThreadPoolExecutor(1) if with_executor else None
    timer = Timer(scheme[0], executor=executor, clock=clock, **scheme[1])
    began = clock.steady_us()
    calls: list[int] = []
    task = timer.call_every(10, lambda: calls.append((clock.steady_us() - began) // 1_000_000))

    def is_back() -> bool:
        return len(timer._driver.scheme) == 1

    soon(is_back)
    clock.advance(35)
    soon(lambda: calls == [35])
    soon(is_back)
    clock.advance(5)
    soon(lambda: calls == [35, 40])
    soon(is_back)
    assert task.state is TimerState.PENDING
    assert task.cancel()
    assert not task.cancel()
    assert task.state is TimerState.STOPPED
    clock.advance(100)
    assert timer.close() == []
    assert calls == [35, 40]
    if executor is not None:
        executor.shutdown()


def test_a_periodic_function_that_raises_is_logged_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def fail() -> None:
        called.append(1)
        raise ValueError

    with Timer() as timer:
        timer.call_every(0.001, fail)
        soon(lambda: len(called) > 2)
        (task,) = timer.close()
        assert task.state is TimerState.STOPPED
    assert "the function of a timer raised" in caplog.text


def test_a_periodic_function_may_cancel_itself() -> None:
    called: list[bool] = []
    with Timer() as timer:
        task = timer.call_every(0.001, lambda: called.append(task.cancel()))
        soon(lambda: len(timer) == 0)
        assert called == [True]


def test_a_signal_handler_may_start_and_cancel_in_the_middle_of_a_start() -> None:
    timer = Timer()
    handled: list[Any] = []
    called: list[int] = []

    def handle(number: int, frame: Any) -> None:
        timer.call_later(3_600, print).cancel()
        handled.append(timer.call_later(0.001, called.append, 1))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while len(handled) < 200:
            timer.call_later(3_600, print).cancel()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    soon(lambda: len(called) == len(handled))
    assert timer.close() == []


def test_ctrl_c_in_any_call_leaves_a_timer_that_goes_on_and_ends() -> None:
    timer = Timer()
    tasks: list[TimerTask] = []
    interrupted, is_armed = 0, False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    def until_interrupted() -> None:
        while is_armed:
            tasks.append(timer.call_later(3_600, print))
            tasks.pop().cancel()
            len(timer)

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
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    called = threading.Event()
    timer.call_later(0.01, called.set)
    assert called.wait(PATIENCE_S)
    assert len(timer.close()) <= interrupted  # a start whose handle the interrupt took


def test_a_hundred_thousand_timers_that_are_started_and_cancelled_leave_nothing(scheme: Any) -> None:
    timer = Timer(scheme[0], **scheme[1])
    for n in range(20_000):
        timer.call_later(30 + n % 60, print, n).cancel()
    assert len(timer) == 0
    driver = timer._driver
    soon(lambda: len(driver._new) <= 4097 and len(driver._cancelled) <= 4097 and len(driver.scheme) <= 4097)
    timer.call_later(0, int)
    soon(lambda: not driver._new and not driver._cancelled and not len(timer))
    gc.collect()
    left = [one for one in gc.get_objects() if isinstance(one, TimerTask) and one._driver is driver]
    assert len(left) <= 128  # shells of the heap
    timer.close()


def test_a_clock_that_stands_still_calls_nothing(scheme: Any) -> None:
    clock = FakeClock()
    timer = Timer(scheme[0], clock=clock, **scheme[1])
    calls: list[int] = []
    timer.call_later(0.001, calls.append, 1)
    clock.advance(0)
    clock.advance(0.000_9)
    assert calls == []
    clock.advance(0.002)
    soon(lambda: calls == [1])
    timer.close()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "1", None, True])
def test_what_is_no_time_no_scheme_and_no_function_is_refused(wrong: Any) -> None:
    timer = Timer()
    for call in (
        lambda: timer.call_later(wrong, print),
        lambda: timer.call_every(wrong, print),
        lambda: timer.call_every(0, print),
        lambda: Timer(Growing, tick=-1),
        lambda: Timer(Growing, tick=wrong if wrong is not None else 0),
        lambda: Timer(HashedUnordered, slots=0),
        lambda: Timer(max_pending=0),
        lambda: Timer(wrong),
    ):
        with pytest.raises(BadArgument):
            call()
    with pytest.raises(BadArgument, match="BinaryHeap has no tick"):
        Timer(BinaryHeap, tick=1)
    with pytest.raises(BadArgument, match="BinaryHeap is not made with .*slots"):
        Timer(BinaryHeap, slots=1)
    with pytest.raises(BadArgument, match="scheme is a class of filewheel.timers"):
        Timer(Growing())  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="method submit"):
        Timer(executor=3)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a timer calls a function"):
        timer.call_later(1, 5)  # type: ignore[arg-type]
    assert len(timer) == 0
    assert timer.close() == []
