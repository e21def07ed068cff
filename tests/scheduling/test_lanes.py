"""Lanes: never more at once or in a second than a handler allows, and no more claimed ahead than is of use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel import BadArgument, Message
from filewheel.message import US_PER_S
from filewheel.scheduling.arguments import PLAIN
from filewheel.scheduling.handler import Handler, Terms
from filewheel.scheduling.lanes import Bucket, Lane, Pool
from filewheel.scheduling.options import CallOptions
from tests.support_wheel import an_id

NOW = 1_000 * US_PER_S


def lane(slots: int | None = None, waiting_max: int = 100, **terms: Any) -> Lane:
    made = Terms(concurrency=slots, **terms)
    made.check()
    handler = Handler("h", lambda: None, made, SimpleNamespace(codec=PLAIN), CallOptions())  # type: ignore[arg-type]
    return Lane(handler, slots, waiting_max, NOW, Pool("thread", None))


def fill(some: Lane, count: int) -> list[Message]:
    messages = [Message(an_id(5, n), b"") for n in range(count)]
    some.waiting.extend(messages)
    return messages


@settings(max_examples=60)
@given(
    st.floats(0.01, 1000),
    st.lists(st.tuples(st.integers(0, 3 * US_PER_S), st.integers(0, 2000)), min_size=1, max_size=40),
)
def test_in_no_stretch_of_time_more_is_taken_than_the_rate_and_one_burst(
    rate: float, wants: list[tuple[int, int]]
) -> None:
    bucket = Bucket(rate, NOW)
    now, taken = NOW, []
    for pause_us, want in wants:
        now += pause_us
        taken.append((now, bucket.take(now, want)))
    for start in range(len(taken)):
        total = 0
        for at, count in taken[start:]:
            total += count
            allowed = max(1.0, rate) + (at - taken[start][0]) / US_PER_S * rate
            assert total <= allowed + 1e-6


@given(st.floats(0.01, 1000))
def test_when_a_bucket_says_that_there_will_be_a_token_there_is_one(rate: float) -> None:
    bucket = Bucket(rate, NOW)
    bucket.take(NOW, 10_000)
    for _ in range(5):
        at = bucket.next_us()
        assert bucket.take(at - 2, 1) == 0 or rate > 500_000
        # a rounding error may cost one more look, a microsecond later
        assert bucket.take(at, 1) or bucket.take(max(at + 1, bucket.next_us()), 1)


def test_a_clock_that_goes_back_gives_no_tokens_and_takes_none() -> None:
    bucket = Bucket(10, NOW)
    assert bucket.take(NOW, 10) == 10
    assert bucket.take(NOW - 5 * US_PER_S, 1) == 0
    assert bucket.take(NOW - 4 * US_PER_S, 100) == 10


def test_no_more_calls_run_than_there_are_slots_and_they_begin_in_order() -> None:
    two = lane(2)
    messages = fill(two, 5)
    assert [two.take(NOW), two.take(NOW), two.take(NOW)] == [[messages[0]], [messages[1]], []]
    assert two.next_us(NOW) is None
    two.ended()
    assert two.next_us(NOW) == NOW
    assert two.take(NOW) == [messages[2]]


def test_a_batch_is_as_many_as_wait_and_at_most_its_size_and_a_rate_counts_messages() -> None:
    batches = lane(None, batch=3)
    assert not batches.is_limited
    fill(batches, 4)
    assert [len(batches.take(NOW)) for _ in range(3)] == [3, 1, 0]
    rated = lane(None, batch=3, rate_per_s=4)
    fill(rated, 9)
    assert [len(rated.take(NOW)) for _ in range(3)] == [3, 1, 0]
    at = rated.next_us(NOW)
    assert at == NOW + US_PER_S // 4
    assert len(rated.take(at)) == 1


def take_in(some: Lane, now_us: int, left: int = 1000) -> int:
    """Do what a claim does that fills the lane to the brim; return how many that were."""
    some.has_more = True
    room = some.room(left)
    for n in range(room):
        some.add(Message(an_id(5, n), b""), now_us)
    return room


def test_a_lane_that_needs_more_soon_claims_further_ahead_and_one_that_is_slow_less_far() -> None:
    one = lane(2, 40)
    now_us, rooms = NOW, []
    for pause_us in [1000] * 6 + [2 * US_PER_S] * 6:
        now_us += pause_us
        one.waiting.clear()
        rooms.append(take_in(one, now_us))
    assert rooms == [2, 2, 4, 8, 16, 32, 40, 20, 10, 5, 2, 2]


def test_a_lane_takes_no_more_than_all_lanes_have_room_for_but_what_its_next_calls_need() -> None:
    one = lane(2, 40)
    assert one.room(0) == one.room(100) == 2
    for n in range(4):
        one.waiting.clear()
        take_in(one, NOW + n)
    one.waiting.clear()
    assert [one.room(left) for left in (-5, 0, 3, 9, 100)] == [2, 2, 3, 9, 16]
    assert lane(None, 40, batch=30, rate_per_s=5).room(0) == 30


def test_a_lane_is_hungry_before_it_is_dry_and_only_when_something_waits_for_it() -> None:
    one = lane(4, 40)
    assert not one.is_hungry
    take_in(one, NOW)
    assert not one.is_hungry
    one.waiting.popleft()
    one.waiting.popleft()
    assert one.is_hungry
    one.has_more = False
    assert not one.is_hungry


@pytest.mark.parametrize(
    "wrong",
    [{"rate_per_s": 0}, {"rate_per_s": float("nan")}, {"timeout_s": -1}, {"timeout_s": "1"}, {"concurrency": 0},
     {"concurrency": 1.5}, {"batch": 0}, {"where": "cloud"}, {"retry": 3}, {"batch": 2, "where": "process"}],
    ids=repr,
)  # fmt: skip
def test_terms_that_cannot_be_kept_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Terms(**wrong).check()
