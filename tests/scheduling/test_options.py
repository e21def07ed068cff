"""Policies that travel as headers: what is said comes back; what is odd is refused, and ignored where it is stored."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument
from filewheel.message import COALESCE, DEADLINE, DUE, SKIP_LATE
from filewheel.scheduling.options import LatenessPolicy, headers_of

NOTHING: dict[str, Any] = {"headers": None, "deadline": None, "skip_late_s": None, "coalesce": None}


def made(**said: Any) -> dict[str, str]:
    return headers_of(**{**NOTHING, **said})


@given(
    st.none() | st.integers(0, 200_000_000_000),
    st.none() | st.floats(0, 1e9),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
)
def test_a_policy_comes_back_from_its_headers(
    deadline: int | None, skip_late_s: float | None, coalesce: str | None
) -> None:
    policy = LatenessPolicy.of(made(deadline=deadline, skip_late_s=skip_late_s, coalesce=coalesce))
    assert policy.deadline_us == (None if deadline is None else deadline * 1_000_000)
    assert policy.skip_late_us == (None if skip_late_s is None else int(skip_late_s * 1_000_000))
    assert policy.coalesce == coalesce


def test_nothing_said_makes_no_headers_and_those_of_the_user_are_kept() -> None:
    assert made() == {}
    assert made(coalesce=False) == {}
    assert made(coalesce=True) == {COALESCE: ""}
    mine = {"tenant": "a"}
    assert made(headers=mine, coalesce="c") == {"tenant": "a", COALESCE: "c"}
    assert mine == {"tenant": "a"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"filewheel.key": "k"}}, {"skip_late_s": -1}, {"skip_late_s": math.nan}, {"skip_late_s": math.inf},
        {"skip_late_s": "5"}, {"coalesce": 5}, {"deadline": datetime(2027, 1, 1)}, {"deadline": "soon"},
    ],
    ids=repr,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        made(**wrong)


@pytest.mark.parametrize("text", ["", "soon", "1e400", "nan", "inf", "0x10", "½", "9" * 5000])
def test_a_header_that_cannot_be_read_is_no_policy_and_loses_no_message(text: str) -> None:
    assert LatenessPolicy.of({SKIP_LATE: text, DEADLINE: text, DUE: text}) == LatenessPolicy()


def test_a_deadline_holds_from_its_very_microsecond_on() -> None:
    at = datetime(2027, 1, 1, tzinfo=UTC)
    policy = LatenessPolicy.of(made(deadline=at))
    us = round(at.timestamp() * 1e6)
    assert policy.too_late(0, us - 1) is None
    assert policy.too_late(0, us) == "skipped: 0 s after its deadline"
    assert policy.too_late(0, us + 90_000_000) == "skipped: 90 s after its deadline"
    assert policy.too_late(0, us + 900_000_000) == "skipped: 900 s after its deadline"


def test_a_message_may_be_as_late_as_is_allowed_and_no_later() -> None:
    policy = LatenessPolicy.of(made(skip_late_s=2.5))
    assert policy.too_late(1_000_000, 3_500_000) is None
    assert policy.too_late(1_000_000, 3_500_001) == "skipped: 2.5 s late, where 2.5 s are allowed"


def test_lateness_counts_from_when_it_was_due_before_it_was_put_off() -> None:
    headers = {**made(skip_late_s=2), DUE: "1000000"}
    assert LatenessPolicy.of(headers).too_late(9_000_000, 9_000_000) == "skipped: 8 s late, where 2 s are allowed"
    assert LatenessPolicy.of(headers).too_late(2_000_000, 2_000_000) is None
