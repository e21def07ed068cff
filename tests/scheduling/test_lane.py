"""Lanes: never more at once or in a second than a handler allows, and what does not fit comes back in order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel import BadArgument, Message
from filewheel.message import US_PER_S
from filewheel.scheduling.handler import Handler, Options, Terms
from filewheel.scheduling.lane import Bucket, Lane
from tests.support_wheel import an_id

NOW = 1_000 * US_PER_S


def lane(slots: int | None = None, waiting_max: int = 100, **terms: Any) -> Lane:
    made = Terms(concurrency=slots, **terms)
    made.check()
    return Lane(Handler("h", lambda: None, made, None, Options()), slots, waiting_max, NOW)  # type: ignore[arg-type]


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
    two.ended(1000)
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


def test_a_full_lane_defers_and_each_deferred_message_comes_after_the_one_before() -> None:
    slow = lane(None, 3, rate_per_s=2)
    fill(slow, 3)
    assert slow.full(NOW)
    dues = [slow.defer_us(NOW) for _ in range(4)]
    assert dues == sorted(set(dues))
    assert dues[0] > NOW + US_PER_S
    assert [b - a for a, b in itertools.pairwise(dues)] == [US_PER_S // 2] * 3


def test_how_long_calls_take_says_when_a_deferred_one_has_its_turn() -> None:
    def horizon(took_s: float) -> int:
        one = lane(1, 10)
        fill(one, 100)
        for _ in range(60):
            one.take(NOW)
            one.ended(round(took_s * US_PER_S))
        fill(one, 10)
        return one.defer_us(NOW) - NOW

    assert horizon(10) > 50 * horizon(0.001)


def test_a_lane_that_does_not_know_how_long_calls_take_defers_no_longer_than_it_has_been_at_work() -> None:
    one = lane(2, 10)
    fill(one, 12)
    assert len(one.take(NOW) + one.take(NOW)) == 2
    assert {one.defer_us(NOW + 1000) for _ in range(5000)} == {NOW + 1000 + US_PER_S}
    for _ in range(4):  # the first were slow, for a reason of their own
        one.ended(4 * US_PER_S)
    later = NOW + 4 * US_PER_S
    assert max(one.defer_us(later) for _ in range(5000)) == later + 4 * US_PER_S


def test_a_lane_takes_in_what_it_will_not_defer() -> None:
    one = lane(2, 10)
    fill(one, 10)
    one.defer_us(NOW)
    one.waiting.clear()
    for _ in range(5):
        assert one.spare(NOW)
        fill(one, 1)
    assert one.full(NOW)
    assert one.spare(NOW) == 0


def test_a_lane_without_a_limit_is_never_full() -> None:
    free = lane()
    fill(free, 1000)
    assert not free.full(NOW)


@pytest.mark.parametrize(
    "wrong",
    [{"rate_per_s": 0}, {"rate_per_s": float("nan")}, {"timeout_s": -1}, {"timeout_s": "1"}, {"concurrency": 0},
     {"concurrency": 1.5}, {"batch": 0}, {"where": "cloud"}, {"retry": 3}, {"batch": 2, "where": "process"}],
    ids=repr,
)  # fmt: skip
def test_terms_that_cannot_be_kept_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Terms(**wrong).check()
