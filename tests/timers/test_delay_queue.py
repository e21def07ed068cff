"""DelayQueue: items leave when they are due, in order; one leader waits for the head, and the next one is woken."""

from __future__ import annotations

from typing import Any

import pytest

from filewheel import BadArgument, Closed, Reentered
from filewheel.testing import FakeClock
from filewheel.timers import DelayQueue
from tests.timers.support import InThread, soon


def waiting(queue: DelayQueue[Any]) -> int:
    """How many threads wait in a queue."""
    return len(queue._available._gates)


def test_items_leave_in_the_order_of_due_times_and_none_before_its_own() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    for name, delay in {"c": 30, "a": 10, "b": 20, "a again": 10, "over": -5, "long over": -1e12}.items():
        queue.put(name, delay)
    assert [queue.poll(), queue.poll(), queue.poll()] == ["long over", "over", None]
    assert queue.peek() == "a"
    clock.advance(9.999999)
    assert queue.poll() is None
    clock.advance(0.000001)
    assert [queue.take(), queue.take()] == ["a", "a again"]
    clock.advance(50)
    drained: list[str] = ["before"]
    assert queue.drain_to(drained, 1) == 1
    assert queue.drain_to(drained) == 1
    assert drained == ["before", "b", "c"]
    assert (len(queue), queue.peek(), queue.next_due_ns()) == (0, None, None)


def test_the_end_of_a_with_closes_a_queue() -> None:
    with DelayQueue[str]() as queue:
        queue.put("a", 3_600)
        assert repr(queue) == "<DelayQueue of 1>"
    with pytest.raises(Closed):
        queue.put("b")


def test_an_item_that_was_removed_does_not_leave() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    first, _ = queue.put("a", 1), queue.put("b", 2)
    assert first in queue
    assert queue.remove(first)
    assert first not in queue
    assert not queue.remove(first)
    clock.advance(5)
    assert queue.take() == "b"
    with pytest.raises(BadArgument, match="another scheme"):
        queue.remove(DelayQueue[int]().put(1))
    with pytest.raises(BadArgument, match="what a start returned"):
        queue.remove("b")  # type: ignore[arg-type]


def test_who_waits_gets_an_item_that_is_put_later_and_is_due_earlier_than_the_head() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("late", 3_600)
    taker = InThread(queue.take)
    soon(lambda: waiting(queue) == 1)
    queue.put("now")
    assert taker.result() == "now"
    taker = InThread(queue.take)
    soon(lambda: waiting(queue) == 1)
    clock.advance(3_600)
    assert taker.result() == "late"


def test_a_leader_that_leaves_hands_over_to_a_follower() -> None:
    queue: DelayQueue[int] = DelayQueue()
    takers = [InThread(queue.take) for _ in range(3)]
    soon(lambda: waiting(queue) == 3)
    with queue._lock:  # one wakes, for the first; no put wakes another
        now_ns = queue.now_ns()
        for number in range(3):
            queue._heap.start(now_ns + number, number + 1)
        queue._available.notify()
    assert sorted(taker.result() for taker in takers) == [1, 2, 3]


def test_a_new_head_wakes_one_thread_and_an_item_behind_it_wakes_none() -> None:
    queue: DelayQueue[int] = DelayQueue()
    waits: list[int | None] = []
    wait_s = queue._steady.wait_s

    def counted(until_ns: int | None) -> float:
        waits.append(until_ns)
        return wait_s(until_ns)

    queue._steady.wait_s = counted  # type: ignore[method-assign]
    takers = [InThread(queue.take) for _ in range(4)]
    soon(lambda: waiting(queue) == 4)
    assert waits == [None] * 4
    queue.put(1, 7_200)
    soon(lambda: len(waits) == 5 and waiting(queue) == 4)
    assert waits[4] is not None
    queue.put(2, 7_300)
    head = queue.put(3, 3_600)
    soon(lambda: len(waits) == 6 and waiting(queue) == 4)
    assert waits[5] == head.due
    for number in range(4):
        queue.put(10 + number)
    assert sorted(taker.result() for taker in takers) == [10, 11, 12, 13]
    assert len(queue) == 3


def test_a_poll_returns_none_when_its_time_is_up_and_leaves_no_leader_behind() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("late", 100)
    poller = InThread(lambda: queue.poll(10))
    soon(lambda: waiting(queue) == 1)
    taker = InThread(queue.take)
    soon(lambda: waiting(queue) == 2)
    clock.advance(10)
    assert poller.result() is None
    clock.advance(90)
    assert taker.result() == "late"
    assert DelayQueue[int]().poll(0.001) is None


def test_many_threads_put_and_take_each_item_once() -> None:
    queue: DelayQueue[int] = DelayQueue()

    def take() -> list[int]:
        found = []
        while (item := queue.take()) >= 0:
            found.append(item)
        return found

    takers = [InThread(take) for _ in range(4)]
    putters = [
        InThread(lambda n=n: [queue.put(n * 1_000 + i, (i % 7) / 1_000) for i in range(500)])  # type: ignore[misc]
        for n in range(4)
    ]
    for putter in putters:
        putter.result()
    for _ in takers:
        queue.put(-1, 0.01)
    found = [item for taker in takers for item in taker.result()]
    assert sorted(found) == sorted(n * 1_000 + i for n in range(4) for i in range(500))


def test_a_close_ends_who_waits_and_returns_what_is_left() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("left", 100)
    takers = [InThread(queue.take) for _ in range(2)]
    soon(lambda: waiting(queue) == 2)
    assert queue.close() == ["left"]
    for taker in takers:
        with pytest.raises(Closed):
            taker.result()
    for call in (queue.take, queue.poll, lambda: queue.put("more")):
        with pytest.raises(Closed, match="this DelayQueue was closed. Try: make another"):
            call()
    assert queue.close() == []


def test_a_queue_that_was_finished_gives_what_it_has_and_then_ends_who_waits() -> None:
    clock = FakeClock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("last", 10)
    takers = [InThread(queue.take) for _ in range(2)]
    soon(lambda: waiting(queue) == 2)
    queue.finish()
    with pytest.raises(Closed):
        queue.put("more")
    clock.advance(10)
    results = []
    for taker in takers:
        try:
            results.append(taker.result())
        except Closed:
            results.append("closed")
    assert sorted(results) == ["closed", "last"]


def test_what_a_finished_queue_had_last_was_removed_and_who_waits_ends() -> None:
    queue: DelayQueue[str] = DelayQueue()
    entry = queue.put("last", 1_000)
    taker = InThread(queue.take)
    soon(lambda: waiting(queue) == 1)
    queue.finish()
    queue.remove(entry)
    with pytest.raises(Closed):
        taker.result()


def test_a_clock_that_stands_still_or_runs_back_gives_nothing() -> None:
    class Clock:
        now = 5_000_000

        def now_us(self) -> int:
            return 0

        def steady_us(self) -> int:
            return self.now

    clock = Clock()
    queue: DelayQueue[str] = DelayQueue(clock=clock)
    queue.put("a", 0.000001)
    assert queue.poll() is None
    clock.now = 4
    assert queue.poll() is None
    clock.now = 5_000_001
    assert queue.poll() == "a"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf"), "1", None, True, 1j, 10**400, 1e300])
def test_a_delay_that_is_no_finite_number_is_refused(wrong: Any) -> None:
    queue: DelayQueue[str] = DelayQueue()
    with pytest.raises(BadArgument, match="delay is a number"):
        queue.put("a", wrong)
    with pytest.raises(BadArgument, match="timeout is a number"):
        queue.poll(wrong)
    assert len(queue) == 0


def test_a_delay_that_is_over_by_more_than_any_clock_counts_is_due_at_once() -> None:
    queue: DelayQueue[str] = DelayQueue()
    queue.put("a", -1e300)
    assert queue.poll(-1e300) == "a"


def test_what_is_no_item_no_list_and_no_clock_is_refused() -> None:
    queue: DelayQueue[Any] = DelayQueue()
    with pytest.raises(BadArgument, match="not None"):
        queue.put(None)
    with pytest.raises(BadArgument, match="due_ns is an integer"):
        queue.put_at("a", 1.5)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="a list"):
        queue.drain_to(())  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="most is a count"):
        queue.drain_to([], -1)
    with pytest.raises(BadArgument, match="steady_us"):
        DelayQueue(clock=object())  # type: ignore[arg-type]


def test_a_call_in_the_middle_of_another_of_its_thread_is_refused_and_changes_nothing() -> None:
    """As a signal handler or a destructor makes it, in the middle of a compaction of the heap for one."""
    queue: DelayQueue[int] = DelayQueue()
    entry = queue.put(1)
    with queue._lock:
        for call in (
            lambda: queue.put(2),
            queue.take,
            queue.poll,
            queue.close,
            lambda: queue.remove(entry),
            queue.peek,
        ):
            with pytest.raises(Reentered, match="in the middle of another call of this DelayQueue. Try: give signal"):
                call()
        queue.finish()  # a destructor may
    assert queue.take() == 1
