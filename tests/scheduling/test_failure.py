"""Failures as data, and the history that a message carries: always small, always readable, whatever the errors say."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from filewheel import BadArgument, GiveUp, RetryLater
from filewheel.scheduling.failure import Failure


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
