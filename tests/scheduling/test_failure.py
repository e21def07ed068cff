"""Failures as data, and the history that a message carries: always small, always readable, whatever the errors say."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument, GiveUp, RetryLater
from filewheel.format.limits import HEADERS_BYTES_MAX, check_headers
from filewheel.message import HISTORY
from filewheel.scheduling.failure import Attempt, Failure, history_of, with_history


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class WrongText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


def test_a_failure_names_the_class_and_its_ancestors() -> None:
    failure = Failure.of(KeyError("k"))
    assert failure.text == "KeyError: 'k'"
    assert failure.ancestry >= {"builtins.KeyError", "builtins.LookupError", "builtins.BaseException"}
    assert "builtins.object" not in failure.ancestry
    assert Failure.of(ValueError()).text == "ValueError"


@pytest.mark.parametrize("odd", [Mute(), Leaving(), WrongText()], ids=lambda e: type(e).__name__)
def test_an_exception_whose_text_cannot_be_had_is_still_a_failure(odd: Exception) -> None:
    assert Failure.of(odd).text == f"{type(odd).__name__}: (its text cannot be had)"


def test_text_that_is_no_unicode_is_made_storable() -> None:
    assert Failure.of(OSError("no \udcff")).text == r"OSError: no \udcff"


def test_retry_later_and_give_up_are_the_handlers_own_words() -> None:
    later = Failure.of(RetryLater(timedelta(minutes=2), "the bank is closed"))
    assert (later.text, later.retry_in_us, later.gives_up) == ("the bank is closed", 120_000_000, False)
    assert RetryLater(-5).delay_us == 0
    gave_up = Failure.of(GiveUp("no such account"))
    assert (gave_up.text, gave_up.retry_in_us, gave_up.gives_up) == ("no such account", None, True)
    with pytest.raises(BadArgument):
        RetryLater(float("nan"))


@pytest.mark.parametrize(
    "failure", [Failure.of(KeyError("k"), "trace"), Failure.of(RetryLater(3)), Failure.of(GiveUp("x")),
                Failure("late", gives_up=True, is_too_late=True)],
)  # fmt: skip
def test_a_failure_crosses_a_process_unchanged(failure: Failure) -> None:
    assert Failure.of_plain(json.loads(json.dumps(failure.to_plain()))) == failure


attempts = st.builds(Attempt, st.integers(0, 10**18), st.integers(0, 99), st.text(max_size=400))


@given(st.lists(attempts, min_size=1, max_size=30), st.integers(0, 15_000))
def test_a_history_keeps_the_newest_attempts_and_fits_with_the_other_headers(some: list[Attempt], taken: int) -> None:
    headers = {"mine": "x" * taken}
    for attempt in some:
        headers = with_history(headers, attempt)
    assert headers["mine"] == "x" * taken
    encoded = {k: v for k, v in headers.items() if k != "mine"}
    check_headers({**encoded, "mine": headers["mine"]})
    kept = history_of(headers)
    assert len(kept) <= 10
    expected = [Attempt(a.at_us, a.attempt, a.error[:200]) for a in some][-len(kept) :] if kept else []
    assert kept == expected
    if taken < 1000:
        assert kept


def test_ten_attempts_are_kept_in_order() -> None:
    headers: dict[str, str] = {}
    for n in range(25):
        headers = with_history(headers, Attempt(n, n, f"e{n}"))
    assert [a.attempt for a in history_of(headers)] == list(range(15, 25))


def test_where_the_users_headers_leave_no_room_there_is_no_history_rather_than_an_error() -> None:
    headers = {"mine": "x" * (HEADERS_BYTES_MAX - 10)}
    assert with_history(headers, Attempt(1, 0, "e")) == headers
    assert HISTORY not in with_history({**headers, HISTORY: "[]"}, Attempt(1, 0, "e"))


@pytest.mark.parametrize(
    "text", ["", "{", "7", "[1]", "[[1]]", '[["a",1,"e"]]', "[" * 100_000, "null", "[[1,1,null,1]]"]
)
def test_a_history_that_cannot_be_read_is_none(text: str) -> None:
    assert history_of({HISTORY: text}) == []
