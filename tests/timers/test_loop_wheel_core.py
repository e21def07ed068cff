"""Where time-outs of a loop wait, in C and in Python, beside a sorted list: none early, lost or twice."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel.native import compiled
from tests.support import seeds
from tests.timers.loops import CORES

TICK_S = 0.01
DELAYS = st.one_of(
    st.sampled_from([0.0, -1.0, 0.001, 0.01, 0.63, 0.64, 0.65, 40.95, 40.96, 41.0, 3600.0, 1e6, 1e12, 1e300]),
    st.floats(0, 100),
)
STEPS = st.one_of(
    st.tuples(st.just("start"), DELAYS),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("pass"), DELAYS.filter(lambda d: 0 <= d < 1e7)),
    st.tuples(st.just("pass to next"), st.just(0)),
)


def made(core: Any, now: float = 100.0) -> Any:
    """Return a wheel of a class that a test can drive: time is `.now`, the loop is itself."""

    class Driven(core):  # type: ignore[misc]
        def __init__(self) -> None:
            self.now = now
            self.per_read = 0.0
            self.woken: float | None = None
            self.errors: list[Any] = []
            self.refused: list[tuple[str, object]] = []
            super().__init__(TICK_S, self.read, False, None)

        def read(self) -> float:
            self.now += self.per_read
            return self.now

        def _wake(self, when: float) -> None:
            self.woken = when

        def _raised(self, callback: Any, timeout: Any, exc: BaseException) -> None:
            self.errors.append((callback, timeout, exc))

        def _refuse(self, name: str, value: object) -> None:
            self.refused.append((name, value))
            raise ValueError(name)

        def drive(self) -> None:
            self._turn(1.0)
            self.woken = self._next()

    return Driven()


@pytest.fixture(params=CORES.values(), ids=CORES.keys())
def core(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("core", CORES.values(), ids=CORES.keys())
@given(steps=st.lists(STEPS, max_size=40))
@settings(
    max_examples=seeds(30, all_of=120).stop, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def test_beside_a_list_no_timeout_is_early_or_lost_or_comes_twice_or_out_of_order(core: Any, steps: list[Any]) -> None:
    wheel = made(core)
    pending: dict[int, Any] = {}
    fired: list[tuple[float, int]] = []

    def call(number: int) -> None:
        one = pending.pop(number)  # KeyError: twice, or after a cancel
        assert wheel.now >= one.when()
        assert not one.cancelled()
        fired.append((one.when(), number))

    def pass_to(now: float) -> None:
        # As a loop does: wake at each time that the wheel asked for.
        while wheel.woken is not None and wheel.woken <= now:
            wheel.now = max(wheel.now, wheel.woken)
            wheel.drive()
        wheel.now = max(wheel.now, now)

    for number, (step, value) in enumerate(steps):
        if step == "start":
            pending[number] = wheel.call_later(value, call, number)
            assert wheel.woken is not None or value > 1e15
        elif step == "cancel" and pending:
            chosen = sorted(pending)[value % len(pending)]
            one = pending.pop(chosen)
            one.cancel(), one.cancel()
            assert one.cancelled()
        elif step == "pass":
            pass_to(wheel.now + value)
        elif step == "pass to next" and wheel.woken is not None and wheel.woken < 1e9:
            pass_to(wheel.woken)
        assert wheel.errors == []  # those of `call`
        assert len(wheel) == len(pending)
        late = [one for one in pending.values() if one.when() + TICK_S * 1.001 < wheel.now and one.when() < 1e9]
        assert not late or step != "pass"
    pass_to(wheel.now + 1e7)
    assert wheel.errors == []
    assert all(one.when() > 1e7 for one in pending.values())
    wheel._clear()
    assert len(wheel) == 0
    assert all(one.cancelled() for one in pending.values())


def test_timeouts_are_called_in_the_order_of_ticks_wherever_they_waited(core: Any) -> None:
    wheel, called = made(core), []
    for delay in (50.0, 0.5, 41.0, 3.0, 700.0, 0.02):
        wheel.call_later(delay, called.append, delay)
    wheel.now += 1000
    wheel.drive()
    assert called == sorted(called)
    assert len(called) == 6


def test_an_idle_wheel_asks_for_one_wake_for_each_level_that_a_timeout_falls_through(core: Any) -> None:
    wheel, called = made(core), []
    wheel.call_later(86_400, called.append, 1)
    wakes = 0
    while wheel.woken is not None:
        wheel.now = max(wheel.now, wheel.woken)
        wheel.drive()
        wakes += 1
    assert called
    assert wakes <= 5


def test_at_the_time_that_the_wheel_asked_for_there_is_something_to_do(core: Any) -> None:
    for now in (0.0, 0.7, 123_456.789):
        wheel = made(core, now)
        for number in range(1, 500):
            wheel.call_later(number * 0.011, int)
            before = wheel.woken
            wheel.now = before
            wheel.drive()
            assert wheel.woken is None or wheel.woken > before


def test_a_cancelled_timeout_leaves_nothing_that_asks_for_a_wake(core: Any) -> None:
    wheel = made(core)
    for one in [wheel.call_later(d, print) for d in (0, 0.3, 5, 500)]:
        one.cancel()
    assert wheel._next() is None


def test_a_turn_ends_after_its_budget_and_the_next_goes_on(core: Any) -> None:
    wheel, called = made(core), []
    for _ in range(100):
        wheel.call_later(5, called.append, 1)
    wheel.now += 10
    wheel.per_read = 0.1  # a look at the clock takes so long: 1 s is ten of them
    wheel._turn(1.0)
    first = len(called)
    assert 0 < first < 20
    while (when := wheel._next()) is not None:
        assert when <= wheel.now
        wheel._turn(1.0)
    assert len(called) == 100


def test_what_a_callback_starts_for_now_waits_for_the_next_turn(core: Any) -> None:
    wheel, called = made(core), []

    def again() -> None:
        called.append(1)
        wheel.call_later(0, again)

    again()
    for turns in range(2, 6):
        wheel.drive()
        assert len(called) == turns
    wheel._clear()


def test_a_slow_callback_that_starts_itself_for_now_keeps_no_other_waiting(core: Any) -> None:
    wheel, called = made(core), []

    def slow() -> None:
        called.append("slow")
        wheel.now += 0.05  # longer than the budget of a turn
        wheel.call_later(0, slow)
        wheel.call_later(0.01, slow)

    wheel.call_later(0, slow)
    wheel.call_later(0.2, called.append, "other")
    for _ in range(60):
        wheel._turn(0.01)
        wheel._next()
    assert "other" in called
    called.clear()
    wheel.call_later(-1, called.append, "late already")
    for _ in range(200):
        wheel._turn(0.01)
        wheel._next()
    assert "late already" in called
    wheel._clear()


def test_a_time_before_all_others_is_due_at_once(core: Any) -> None:
    wheel, called = made(core), []
    wheel.call_at(-1.7e308, called.append, 1)
    wheel.drive()
    assert called == [1]


def test_a_callback_may_cancel_its_neighbours_and_clear_the_wheel(core: Any) -> None:
    wheel, called = made(core), []
    second: list[Any] = []
    wheel.call_later(1, lambda: second[0].cancel())
    second.append(wheel.call_later(1, called.append, "second"))
    wheel.call_later(1, wheel._clear)
    wheel.call_later(1, called.append, "after the clear")
    wheel.now += 2
    wheel.drive()
    assert (called, len(wheel), wheel.woken) == ([], 0, None)


def test_a_callback_that_raises_is_reported_and_the_others_are_called(core: Any) -> None:
    wheel, called = made(core), []
    error = RuntimeError("x")

    def fail() -> None:
        raise error

    failing = wheel.call_later(1, fail)
    wheel.call_later(1, called.append, 1)
    wheel.now += 2
    wheel.drive()
    assert called == [1]
    assert wheel.errors == [(fail, failing, error)]


def test_ctrl_c_in_a_callback_goes_up_and_the_rest_stays_due(core: Any) -> None:
    wheel, called = made(core), []

    def interrupt() -> None:
        raise KeyboardInterrupt

    wheel.call_later(1, interrupt)
    wheel.call_later(1, called.append, 1)
    wheel.now += 2
    with pytest.raises(KeyboardInterrupt):
        wheel._turn(1.0)
    assert len(wheel) == 1
    assert wheel._next() <= wheel.now
    wheel.drive()
    assert called == [1]


def test_a_timeout_that_could_not_be_armed_is_not_started(core: Any) -> None:
    wheel = made(core)

    def broken(when: float) -> None:
        raise RuntimeError("no timers today")

    wheel._wake = broken
    with pytest.raises(RuntimeError, match="today"):
        wheel.call_later(1, print)
    assert len(wheel) == 0
    assert wheel._next() is None


def test_a_clock_that_raises_starts_nothing(core: Any) -> None:
    wheel = made(core)
    wheel.per_read = "x"
    with pytest.raises(TypeError):
        wheel.call_later(1, print)
    with pytest.raises(TypeError):
        wheel._turn(1.0)
    assert len(wheel) == 0


@pytest.mark.parametrize("bad", ["1", b"1", None, float("nan"), memoryview(b"1"), 10**400, [], 1j])
def test_a_delay_that_is_no_number_is_refused(core: Any, bad: Any) -> None:
    wheel = made(core)
    for start in (wheel.call_later, wheel.call_at):
        with pytest.raises(ValueError, match="delay|when"):
            start(bad, print)
    assert [name for name, _ in wheel.refused] == ["delay", "when"]
    assert len(wheel) == 0


def test_a_start_wakes_a_driver_that_did_not_come_and_only_once(core: Any) -> None:
    wheel = made(core)
    called: list[int] = []
    wheel.call_later(1, called.append, 1)
    wheel.woken = None  # as if Ctrl-C had taken the loop's timers
    wheel.now += 2
    wheel.call_later(50, called.append, 50)
    assert wheel.woken is None  # it may still come
    wheel.now += 2
    wheel.call_later(50, called.append, 50)
    assert wheel.woken == wheel.now
    wheel.woken = None
    wheel.call_later(50, called.append, 50)
    assert wheel.woken is None
    wheel.drive()
    assert called == [1]


def test_a_start_wakes_a_driver_that_was_interrupted_at_the_end_of_its_turn(core: Any) -> None:
    wheel = made(core)
    called: list[int] = []
    wheel.call_later(1, called.append, 1)
    wheel.now += 1.1
    wheel._turn(1.0)  # and no `_next`
    wheel.woken = None
    wheel.now += 4
    wheel.call_later(1, called.append, 2)
    assert wheel.woken == wheel.now
    wheel.now += 2
    wheel.drive()
    assert called == [1, 2]


def test_started_cancelled_and_expired_timeouts_leave_no_reference(core: Any) -> None:
    class Argument:
        pass

    wheel, argument, error = made(core), Argument(), Argument()

    def call(*args: object) -> None:
        if args[-1] is error:
            raise ValueError

    wheel._raised = lambda *args: None
    wheel.call_later(0.5, call).cancel()
    gc.collect()
    before = sys.getrefcount(argument), sys.getrefcount(call), sys.getrefcount(error), len(gc.get_objects())
    for number in range(34_000 if core is compiled.TimeoutWheel else 2000):
        wheel.call_later(30 + number % 7, call, argument).cancel()
        wheel.call_later(0.5, call, argument, error)
        wheel.call_later(number % 3 - 1, call, argument)
        if number % 100 == 0:
            wheel.now += 1
            wheel.drive()
    wheel.now += 1
    wheel.drive()
    wheel.call_later(5, call, argument)
    wheel.call_later(5000, call, argument, error)
    wheel._clear()
    gc.collect()
    after = sys.getrefcount(argument), sys.getrefcount(call), sys.getrefcount(error), len(gc.get_objects())
    assert after[:3] == before[:3]
    assert after[3] - before[3] < 50


def test_a_wheel_and_its_callbacks_that_hold_each_other_are_collected(core: Any) -> None:
    wheel = made(core)
    handles = [wheel.call_later(delay, lambda wheel: None, wheel) for delay in (-1, 0.5, 50, 5000)]
    handles[0].cancel()
    gone = weakref.ref(wheel)
    del wheel, handles
    gc.collect()
    assert gone() is None


def test_a_handle_outlives_its_wheel(core: Any) -> None:
    wheel = made(core)
    handle = wheel.call_later(5, print)
    del wheel
    gc.collect()
    handle.cancel()
    assert handle.cancelled()
    assert "cancelled" in repr(handle)
