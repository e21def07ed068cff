"""Failures as data, and the history that a message carries: always small, always readable, whatever the errors say."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from filewheel import BadArgument, GiveUp, RetryLater
from filewheel.scheduling.outcome import Outcome


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
    failure = Outcome.of(KeyError("k"))
    assert failure.error == "KeyError: 'k'"
    assert failure.ancestry >= {"builtins.KeyError", "builtins.LookupError", "builtins.BaseException"}
    assert "builtins.object" not in failure.ancestry
    assert Outcome.of(ValueError()).error == "ValueError"


@pytest.mark.parametrize("odd", [Mute(), Leaving(), WrongText()], ids=lambda e: type(e).__name__)
def test_an_exception_whose_text_cannot_be_had_is_still_a_failure(odd: Exception) -> None:
    assert Outcome.of(odd).error == f"{type(odd).__name__}: (its text cannot be had)"


def test_text_that_is_no_unicode_is_made_storable() -> None:
    assert Outcome.of(OSError("no \udcff")).error == r"OSError: no \udcff"


def test_retry_later_and_give_up_are_the_handlers_own_words() -> None:
    later = Outcome.of(RetryLater(timedelta(minutes=2), "the bank is closed"))
    assert (later.error, later.retry_in_us, later.gives_up) == ("the bank is closed", 120_000_000, False)
    assert RetryLater(-5).delay_us == 0
    gave_up = Outcome.of(GiveUp("no such account"))
    assert (gave_up.error, gave_up.retry_in_us, gave_up.gives_up) == ("no such account", None, True)
    with pytest.raises(BadArgument):
        RetryLater(float("nan"))


@pytest.mark.parametrize(
    "failure", [Outcome.of(KeyError("k"), "trace"), Outcome.of(RetryLater(3)), Outcome.of(GiveUp("x")),
                Outcome("late", gives_up=True, is_too_late=True)],
)  # fmt: skip
def test_a_failure_crosses_a_process_unchanged(failure: Outcome) -> None:
    assert Outcome.of_plain(json.loads(json.dumps(failure.to_plain()))) == failure
