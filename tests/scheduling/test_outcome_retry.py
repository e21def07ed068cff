"""Retry: how long until the next attempt, which errors get none, and what is no Retry."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument, Retry
from filewheel.scheduling.outcome import Outcome

retries = st.builds(
    Retry,
    delay_s=st.floats(0, 1e6),
    factor=st.floats(1, 1e6),
    delay_max_s=st.floats(0, 1e9),
    jitter=st.floats(0, 10),
)


def test_delays_grow_by_the_factor_up_to_the_bound() -> None:
    retry = Retry(delay_s=1, factor=2, delay_max_s=10, jitter=0)
    assert [retry.delay_us(n, lambda: 0.0) / 1e6 for n in range(6)] == [1, 2, 4, 8, 10, 10]


@given(retries, st.integers(0, 100_000), st.floats(0, 1))
def test_jitter_only_adds_and_at_most_its_share(retry: Retry, attempt: int, chance: float) -> None:
    least = retry.delay_us(attempt, lambda: 0.0)
    delay = retry.delay_us(attempt, lambda: chance)
    most = retry.delay_us(attempt, lambda: 1.0)
    assert 0 <= least <= delay <= most <= math.ceil(retry.delay_max_s * (1 + retry.jitter) * 1e6)


@given(retries, st.integers(0, 1000))
def test_a_later_attempt_never_waits_less(retry: Retry, attempt: int) -> None:
    assert retry.delay_us(attempt, lambda: 0.0) <= retry.delay_us(attempt + 1, lambda: 0.0)


def test_never_forbids_the_class_and_what_inherits_from_it_and_nothing_else() -> None:
    retry = Retry(never=(LookupError,))
    assert retry.forbids(Outcome.of(LookupError()).ancestry)
    assert retry.forbids(Outcome.of(KeyError("k")).ancestry)
    assert not retry.forbids(Outcome.of(ValueError()).ancestry)
    assert not Retry().forbids(Outcome.of(ValueError()).ancestry)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": -1}, {"limit": 1.5}, {"limit": "3"},
        {"delay_s": -1}, {"delay_s": math.inf}, {"delay_s": math.nan}, {"delay_s": "1"},
        {"delay_max_s": -0.1}, {"jitter": -1}, {"factor": 0.5}, {"factor": math.inf},
        {"never": (3,)}, {"never": (int,)},
    ],
)  # fmt: skip
def test_what_is_no_retry_is_refused_by_the_name_of_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        Retry(**wrong)
