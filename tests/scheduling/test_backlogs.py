"""What is overdue: let through at a rate and in order, with bounded memory; and calls that do for others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from filewheel import Message
from filewheel.message import US_PER_S, MessageId
from filewheel.scheduling.lanes import OVERDUE_US, Throttle

NOW = 1_000_000 * US_PER_S


def message(due_us: int, n: int = 0, *, topic: str = "t", attempt: int = 0) -> Message:
    return Message(MessageId.make(due_us, 1, n), b"", topic, {}, attempt)


def test_without_a_rate_nothing_is_held_back() -> None:
    overdue = Throttle(None, NOW)
    assert not overdue.holds_back(message(0), NOW)
    assert overdue.take(NOW) == []
    assert overdue.next_us() is None


def test_what_is_on_time_passes_while_a_backlog_waits() -> None:
    overdue = Throttle(1, NOW)
    old = [message(n, n) for n in range(3)]
    assert [overdue.holds_back(m, NOW) or overdue.keep(m, NOW) for m in old[:1]] == [None]
    assert overdue.holds_back(old[1], NOW)
    overdue.keep(old[1], NOW)
    assert not overdue.holds_back(message(NOW - OVERDUE_US + 1), NOW)
    assert overdue.holds_back(message(NOW - OVERDUE_US), NOW)


def test_what_is_held_goes_in_order_at_the_rate_and_the_rest_goes_back_to_its_turn() -> None:
    overdue = Throttle(10, NOW, held_max=20)
    backlog = [message(n, n) for n in range(100)]
    passed, deferred = [], []
    for m in backlog:
        if not overdue.holds_back(m, NOW):
            passed.append(m)
        else:
            due_us = overdue.keep(m, NOW)
            if due_us is not None:
                deferred.append(due_us)
    assert passed == backlog[:10]
    assert len(deferred) == 70
    assert deferred == sorted(set(deferred))
    now, gone = NOW, []
    while (at := overdue.next_us()) is not None:
        now = max(at, now + 1)
        gone += overdue.take(now)
    assert gone == backlog[10:30]
    assert now - NOW >= 2 * US_PER_S - 20
    assert deferred[0] > now


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-30, 30), st.integers(0, 1)), max_size=40))
def test_a_message_is_covered_only_by_a_call_that_began_after_it_was_due(steps: list[tuple[int, int, int]]) -> None:
    overdue, now = Throttle(None, NOW), NOW
    begun: list[int] = []
    for pause, due, attempt in steps:
        now += pause
        if overdue.is_covered(message(now + due, attempt=attempt), "name", now):
            assert not attempt
            assert any(now + due <= at for at in begun)
        else:
            begun.append(now)


def test_one_name_of_one_handler_is_not_that_of_another_and_memory_is_bounded() -> None:
    overdue = Throttle(None, NOW)
    assert not overdue.is_covered(message(5), "a", NOW)
    assert overdue.is_covered(message(5, 1), "a", NOW)
    assert not overdue.is_covered(message(5), "b", NOW)
    assert not overdue.is_covered(message(5, topic="u"), "a", NOW)
    for n in range(10_000):
        overdue.is_covered(message(5), f"n{n}", NOW)
    # forgotten: that costs a call too many
    assert not overdue.is_covered(message(5, 2), "a", NOW)
    assert len(overdue._begun) == 10_000
