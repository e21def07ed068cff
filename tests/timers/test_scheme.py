"""All schemes at once, driven at random beside a sorted list: none early, none lost, none twice, each in its order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from filewheel import BadArgument
from filewheel.errors import TooLarge
from filewheel.timers import BinaryHeap, Entry, Growing, HashedUnordered, Hierarchical, Scheme, SimpleWheel, TimerState
from tests.support import seeds
from tests.timers.schemes import BY_DUE, BY_TICK, BY_TICK_AND_START, MAKERS, SPAN

YEAR = 365 * 86_400 * 10**9
DELAYS = st.one_of(
    st.integers(-5, 12), st.integers(0, 130), st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 9, 27, 39, 40, 41, YEAR])
)


class Schemes(RuleBasedStateMachine):
    """Each step goes to every scheme. Timer n has the entry `entries[name][n]`; None if its delay was too long."""

    @initialize(tick=st.sampled_from([1, 1, 10]), now=st.sampled_from([0, 3, 999]))
    def begin(self, tick: int, now: int) -> None:
        self.tick, self.now = tick, now
        self.schemes: dict[str, Scheme[int]] = {name: make(tick, now) for name, make in MAKERS.items()}
        self.entries: dict[str, list[Entry[int] | None]] = {name: [] for name in MAKERS}
        self.expired: dict[str, list[int]] = {name: [] for name in MAKERS}
        self.due: list[int] = []
        self.was_overdue: list[bool] = []
        self.stopped: set[int] = set()
        self.in_expiry: dict[int, Any] = {}

    def _start(self, name: str, number: int, due: int) -> None:
        scheme = self.schemes[name]
        if isinstance(scheme, SimpleWheel) and due - scheme.now > SPAN * self.tick:
            with pytest.raises(TooLarge):
                scheme.start(due, number)
            self.entries[name].append(None)
        else:
            self.entries[name].append(scheme.start(due, number))

    @rule(delay=DELAYS)
    def start(self, delay: int) -> None:
        due = self.now + (delay if delay == YEAR else delay * self.tick // 2)
        for name in MAKERS:
            self._start(name, len(self.due), due)
        self.due.append(due)
        self.was_overdue.append(due <= self.now)

    @precondition(lambda self: self.due)
    @rule(pick=st.integers(0), elsewhere=st.booleans())
    def stop(self, pick: int, elsewhere: bool) -> None:
        """Stop one that is pending, was stopped, or expired; here, or in another thread."""
        number = pick % len(self.due)
        for name, scheme in self.schemes.items():
            entry = self.entries[name][number]
            if entry is not None:
                was, got = entry.state, []
                if elsewhere:
                    thread = threading.Thread(target=lambda: got.append(scheme.stop(entry)))  # noqa: B023
                    thread.start()
                    thread.join()
                else:
                    got.append(scheme.stop(entry))
                assert got == [was is TimerState.PENDING]
                assert entry.state is (TimerState.STOPPED if was is TimerState.PENDING else was)
                if was is TimerState.PENDING:
                    self.stopped.add(number)

    @rule(by=st.one_of(st.just(0), st.just(1), st.integers(0, 30), st.sampled_from([100, 1_000, YEAR, 100 * YEAR])))
    def advance(self, by: int) -> None:
        self.now += by
        for name in MAKERS:
            self._advance(name, self.now)

    @precondition(lambda self: self.due)
    @rule(by=st.integers(0, 60), pick=st.integers(0), delay=DELAYS)
    def advance_and_react(self, by: int, pick: int, delay: int) -> None:
        """The first expiry stops a timer, due now or not, and starts one; if none expires, the test does."""
        self.now += by
        number, due = pick % len(self.due), self.now + delay
        for name, scheme in self.schemes.items():
            entry = self.entries[name][number]
            reactions = [1]

            def react(name: str = name, entry: Entry[int] | None = entry, left: list[int] = reactions) -> None:
                if left and left.pop():
                    if entry is not None:
                        was = entry.state
                        assert self.schemes[name].stop(entry) == (was is TimerState.PENDING)
                    self._start(name, len(self.due), due)

            self._advance(name, self.now, react)
            react()
            assert len(scheme) == len(list(scheme))
        self.due.append(due)
        self.was_overdue.append(due <= self.now)

    @rule()
    def go_back(self) -> None:
        """A clock that runs back expires nothing that is not due."""
        for name in MAKERS:
            self._advance(name, self.now - 7)

    @rule()
    def ask_for_the_next(self) -> None:
        """A driver that sleeps until then is late for no timer."""
        for scheme in self.schemes.values():
            pending = [entry.due for entry in scheme]
            found = scheme.next_advance()
            assert (found is None) == (not pending)
            if found is not None:
                assert found <= max(min(pending) + self.tick - 1, scheme.now)

    def _advance(self, name: str, now: int, react: Callable[[], None] = int) -> None:  # type: ignore[assignment]
        scheme, mine = self.schemes[name], self.entries[name]
        before = [n for n, e in enumerate(mine) if e is not None and e.state is TimerState.PENDING]
        found: list[int] = []

        def expire(entry: Entry[int]) -> None:
            assert entry.state is TimerState.EXPIRED
            assert not scheme.stop(entry)
            found.append(entry.item)
            react()

        count = scheme.advance(now, expire)
        assert count == len(found) == len(set(found))
        for number in found:
            assert self.due[number] <= self.now, "early"
        edge = self.now // self.tick * self.tick if hasattr(scheme, "tick") else self.now
        stopped = {n for n in before if self.entries[name][n].state is TimerState.STOPPED}  # type: ignore[union-attr]
        assert not stopped & set(found)
        late = {n for n in before if self.due[n] <= edge or self.was_overdue[n]} - set(found) - stopped
        assert not late, "late, or lost"
        self._in_order(name, found)
        self.expired[name] += found

    def _in_order(self, name: str, found: list[int]) -> None:
        overdue = [n for n in found if self.was_overdue[n]]
        assert found[: len(overdue)] == sorted(overdue), "what was due at its start comes first, as it was started"
        rest = found[len(overdue) :]
        ticks = [-(-self.due[n] // self.tick) for n in rest]
        if name in BY_DUE:
            assert rest == sorted(rest, key=lambda n: (self.due[n], n))
        elif name in BY_TICK_AND_START:
            assert rest == sorted(rest, key=lambda n: (-(-self.due[n] // self.tick), n))
        elif name in BY_TICK:
            assert ticks == sorted(ticks)
        else:
            assert rest == sorted(rest)

    @invariant()
    def none_is_lost_or_twice(self) -> None:
        for name, scheme in getattr(self, "schemes", {}).items():
            states = [entry.state for entry in self.entries[name] if entry is not None]
            assert len(scheme) == states.count(TimerState.PENDING) == len(list(scheme))
            assert len(self.expired[name]) == states.count(TimerState.EXPIRED)
            assert len(set(self.expired[name])) == len(self.expired[name])

    def teardown(self) -> None:
        for name, scheme in getattr(self, "schemes", {}).items():
            self.now += 1000 * YEAR
            self._advance(name, self.now)
            assert len(scheme) == 0
            assert scheme.next_advance() is None
            assert {e.state for e in self.entries[name] if e is not None} <= {TimerState.EXPIRED, TimerState.STOPPED}


SHRINK = [] if "FILEWHEEL_MUTANT" in os.environ else [Phase.shrink]  # of a mutant any failure will do
AT_RANDOM = settings(
    max_examples=seeds(30, all_of=120).stop, stateful_step_count=25, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate, *SHRINK],
)  # fmt: skip


def test_no_scheme_is_early_or_loses_a_timer_or_expires_it_twice_and_each_keeps_its_order() -> None:
    run_state_machine_as_test(Schemes, settings=AT_RANDOM)


@pytest.fixture(params=MAKERS)
def scheme(request: pytest.FixtureRequest) -> Scheme[Any]:
    return MAKERS[request.param]()


def test_a_timer_that_stops_another_in_its_expiry_is_in_time_though_both_are_due(scheme: Scheme[Any]) -> None:
    expired = []

    def expire(entry: Entry[Any]) -> None:
        expired.append(entry.item)
        for other in entries:
            assert scheme.stop(other) is (len(expired) == 1 and other is not entry)

    entries = [scheme.start(5, n) for n in range(3)]
    assert scheme.advance(50, expire) == 1
    assert len(scheme) == 0
    assert len(expired) == 1


def test_what_an_expiry_starts_expires_in_the_next_advance_even_if_it_is_due_at_once(scheme: Scheme[Any]) -> None:
    expired = []

    def again(entry: Entry[Any]) -> None:
        expired.append(entry.item)
        scheme.start(entry.item + 1, entry.item + 1)

    scheme.start(1, 1)
    for n in range(1, 5):
        assert scheme.advance(20, again) == 1
        assert expired == list(range(1, n + 1))


def test_an_expiry_that_raises_leaves_the_others_due_for_the_next_advance(scheme: Scheme[Any]) -> None:
    expired = []

    def expire(entry: Entry[Any]) -> None:
        expired.append(entry.item)
        if len(expired) == 2:
            raise RuntimeError("no")

    for n in range(4):
        scheme.start(n, n)
    with pytest.raises(RuntimeError):
        scheme.advance(9, expire)
    assert len(scheme) == 2
    assert scheme.advance(9, expire) == 2
    assert sorted(expired) == [0, 1, 2, 3]


def test_an_expiry_may_advance_and_clear_the_scheme(scheme: Scheme[Any]) -> None:
    expired: list[int] = []

    def further(entry: Entry[Any]) -> None:
        expired.append(entry.item)
        scheme.advance(20, lambda entry: expired.append(entry.item))
        assert [entry.item for entry in scheme.clear()] == [3]

    for n, due in enumerate([5, 6, 15, 30]):
        scheme.start(due, n)
    assert scheme.advance(10, further) == 1
    assert expired[0] == 0
    assert sorted(expired) == [0, 1, 2]
    assert scheme.next_advance() is None


def test_a_hundred_thousand_timers_that_are_started_and_stopped_leave_nothing(scheme: Scheme[Any]) -> None:
    for n in range(100_000 if isinstance(scheme, (BinaryHeap, Growing)) else 10_000):
        assert scheme.stop(scheme.start(1 + n % 40, n))
    assert len(scheme) == 0
    assert list(scheme) == []
    assert scheme.next_advance() is None
    if isinstance(scheme, BinaryHeap):
        assert len(scheme.heap) <= 64


def test_of_stopped_timers_the_heap_keeps_no_more_than_it_has_pending_ones() -> None:
    heap: BinaryHeap[int] = BinaryHeap()
    entries = [heap.start(n + 1, n) for n in range(1_000)]
    for entry in entries[::2] + entries[1:800:2]:
        heap.stop(entry)
        assert len(heap.heap) - len(heap) <= max(64, len(heap))
    assert heap.advance(2_000, lambda entry: None) == 100


@pytest.mark.parametrize("due", [1.0, float("nan"), float("inf"), "1", None, True, b"1"])
def test_a_due_that_is_no_integer_is_refused_and_nothing_is_started(scheme: Scheme[Any], due: Any) -> None:
    with pytest.raises(BadArgument, match="due is an integer"):
        scheme.start(due, 1)
    with pytest.raises(BadArgument, match="now is an integer"):
        scheme.advance(due, print)
    assert len(scheme) == 0


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "4", None, True])
def test_a_tick_or_a_count_of_slots_that_is_none_is_refused(wrong: Any) -> None:
    for make in (SimpleWheel, HashedUnordered, Growing):
        with pytest.raises(BadArgument):
            make(wrong)
        with pytest.raises(BadArgument):
            make(8, tick=wrong)
    for levels in ((), (4, wrong), wrong):
        with pytest.raises(BadArgument):
            Hierarchical(levels)
    with pytest.raises(BadArgument, match="over the limit"):
        SimpleWheel(1 << 40)


def test_an_entry_of_another_scheme_is_refused_and_both_stay_whole(scheme: Scheme[Any]) -> None:
    other: Scheme[int] = HashedUnordered()
    entry = other.start(7, 1)
    with pytest.raises(BadArgument, match="another scheme"):
        scheme.stop(entry)
    assert other.stop(entry)


def test_a_delay_past_the_simple_wheel_is_an_error_that_says_what_to_take() -> None:
    wheel: SimpleWheel[int] = SimpleWheel(8, tick=10, now=5)
    assert wheel.start(85, 1).tick == 9
    with pytest.raises(TooLarge, match="a delay of 81 is over the 80 of this wheel. Try: more slots"):
        wheel.start(86, 2)
    assert wheel.advance(84, print) == 0
    assert wheel.advance(90, lambda entry: None) == 1


def test_the_rounds_of_a_hashed_timer_are_the_times_that_the_hand_passes_it() -> None:
    wheel: HashedUnordered[int] = HashedUnordered(5)
    assert len(wheel.slots) == 5
    entry = wheel.start(20, 1)
    rounds = []
    for now in range(1, 20):
        assert wheel.advance(now, print) == 0
        rounds.append(wheel.rounds_of(entry))
    assert rounds == [3] * 4 + [2] * 5 + [1] * 5 + [0] * 5
    assert wheel.advance(20, lambda entry: None) == 1


def test_kafkas_published_example_holds() -> None:
    """A tick of 1 ms and 20 slots: levels of 20 ms, 400 ms, 8 s."""
    wheel: Growing[int] = Growing(20)
    slots = {due: wheel.start(due, due).slot for due in (350, 446, 450, 455, 473)}
    assert (slots[350].level, slots[350].index) == (2, 17)  # type: ignore[union-attr]
    assert (slots[450].level, slots[450].index) == (3, 1)  # type: ignore[union-attr]
    assert slots[446] is slots[455] is slots[473] is slots[450]
    assert slots[450].expiry == 400  # type: ignore[union-attr]
    assert wheel.next_advance() == 340  # the first tick of slot 17
    expired: list[tuple[int, int]] = []
    while (now := wheel.next_advance()) is not None:
        wheel.advance(now, lambda entry: expired.append((wheel.now, entry.due)))
    assert expired == [(due, due) for due in (350, 446, 450, 455, 473)]


def test_a_growing_wheel_with_one_timer_in_a_year_has_work_a_few_times_and_not_each_tick() -> None:
    wheel: Growing[int] = Growing(20, tick=1_000_000)
    wheel.start(YEAR, 1)
    assert len(wheel.levels) == 9
    advances = 0
    expired: list[int] = []
    while (now := wheel.next_advance()) is not None:
        wheel.advance(now, lambda entry: expired.append(wheel.now))
        advances += 1
    assert expired == [YEAR]
    assert advances <= len(wheel.levels)
