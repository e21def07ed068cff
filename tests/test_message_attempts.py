"""The attempts of a message: what is kept of each, and that it fits for any text and any headers of the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel import Attempt, Keeper, Message, MessageId, Wheel
from filewheel.format.limits import HEADERS_BYTES_MAX, HEADERS_MAX, check_headers, check_message
from filewheel.message import (
    DETAILS,
    DETAILS_BYTES_MAX,
    HISTORY,
    OWN_BYTES_MAX,
    REASON,
    attempts_of,
    end_of,
    own_bytes,
    with_attempt,
)
from tests.support import FakeClock

attempts = st.builds(
    Attempt, st.integers(0, 10**18), st.integers(0, 99), st.text(max_size=400),
    st.text(max_size=6000) | st.builds(lambda c, n: c * n, st.characters(codec="utf-8"), st.integers(0, 9000)),
)  # fmt: skip


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(attempts, min_size=1, max_size=15, unique_by=lambda a: (a.at_us, a.attempt)), st.integers(0, 16_000))
def test_the_newest_attempts_are_kept_and_take_no_room_from_the_users_headers(some: list[Attempt], taken: int) -> None:
    headers = {"mine": "x" * taken}
    for attempt in some:
        headers = with_attempt(headers, attempt)
    assert headers["mine"] == "x" * taken
    check_headers({**headers, REASON: "x" * 1000})
    kept = attempts_of(headers)
    assert [(a.at_us, a.attempt, a.error) for a in kept] == [
        (a.at_us, a.attempt, a.error[:200]) for a in some[-len(kept) :]
    ]
    assert 1 <= len(kept) <= 10
    for found, given_ in zip(kept, some[-len(kept) :], strict=True):
        assert len(found.details.encode()) <= DETAILS_BYTES_MAX
        assert end_of(given_.details).endswith(found.details.removeprefix("[...]\n"))
    written = [bool(a.details) for a in kept if end_of(a.details)]
    assert written == sorted(written)  # those without details any more are the oldest


def test_the_details_of_the_newest_attempt_are_kept_whole_and_the_oldest_go_first() -> None:
    headers: dict[str, str] = {}
    for n in range(8):
        headers = with_attempt(headers, Attempt(n, n, f"e{n}", f"{n}" * 5000))
    kept = attempts_of(headers)
    assert [a.error for a in kept] == [f"e{n}" for n in range(8)]
    sizes = [len(a.details) for a in kept]
    assert sizes[7] == sizes[6] == DETAILS_BYTES_MAX
    assert DETAILS_BYTES_MAX > sizes[5] > 1000
    assert sizes[:5] == [0] * 5  # less than 256 bytes were left
    assert own_bytes(headers) <= OWN_BYTES_MAX


def test_ten_attempts_are_kept_in_order() -> None:
    headers: dict[str, str] = {}
    for n in range(25):
        headers = with_attempt(headers, Attempt(n, n, f"e{n}", f"d{n}"))
    kept = attempts_of(headers)
    assert [(a.attempt, a.details) for a in kept] == [(n, f"d{n}") for n in range(15, 25)]


def test_with_headers_of_the_user_at_both_limits_an_attempt_is_kept_and_the_message_can_still_be_stored() -> None:
    headers = {f"{n:02}": "" for n in range(HEADERS_MAX - 1)} | {"mine": ""}
    headers["mine"] = "x" * (HEADERS_BYTES_MAX - sum(map(len, headers)))
    check_headers(headers)
    more = with_attempt(headers, Attempt(1, 0, "e", "line\n" * 2000))
    (kept,) = attempts_of(more)
    assert kept.details.startswith("[...]\nline\n")
    check_message(Message(MessageId.make(1, 1, 1), b"", "", {**more, REASON: "y" * 1000}), 1)


def test_without_room_among_filewheels_own_headers_there_are_no_attempts_rather_than_an_error() -> None:
    headers = {"filewheel.coalesce": "x" * (OWN_BYTES_MAX - 100)}
    assert with_attempt(headers, Attempt(1, 0, "e", "d")) == headers
    assert HISTORY not in with_attempt({**headers, HISTORY: "[]", DETAILS: "[]"}, Attempt(1, 0, "e"))


@pytest.mark.parametrize(
    "text", ["", "{", "7", "[1]", "[[1]]", '[["a",1,"e"]]', "[" * 100_000, "null", "[[1,1,null,1]]"]
)
def test_attempts_that_cannot_be_read_are_none(text: str) -> None:
    assert attempts_of({HISTORY: text}) == ()
    assert attempts_of({HISTORY: '[[1,0,"e"]]', DETAILS: text}) == (Attempt(1, 0, "e"),)


def test_a_writer_that_knows_no_details_leaves_them_with_their_attempts() -> None:
    headers = with_attempt({}, Attempt(5, 0, "a", "of a"))
    headers[HISTORY] = json.dumps([[5, 0, "a"], [6, 1, "b"]])  # it adds an attempt to the history alone
    assert attempts_of(headers) == (Attempt(5, 0, "a", "of a"), Attempt(6, 1, "b"))
    assert [a.details for a in attempts_of(with_attempt(headers, Attempt(7, 2, "c", "of c")))] == ["of a", "", "of c"]


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        ("", ""),
        ("one\n", "one"),
        (b"caf\xe9 \xff\n", "caf\\xe9 \\xff"),
        ("\ud800", "\\ud800"),
        ("ü" * 3000, "[...]\n" + "ü" * 2045),
        ("x" * 5000, "[...]\n" + "x" * 4090),
        ("short line\n" * 500 + "end", "[...]\n" + "short line\n" * 371 + "end"),
    ],
)
def test_the_end_of_a_text_begins_with_a_whole_line_and_holds_no_half_character(given_: str | bytes, kept: str) -> None:
    assert end_of(given_) == kept
    assert len(kept.encode()) <= DETAILS_BYTES_MAX


def test_what_a_consumer_says_of_a_failure_moves_with_the_message_and_outlives_a_revival(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        wheel.enqueue(b"x", key="k", headers={"mine": "x" * (HEADERS_BYTES_MAX - 4)})
        keeper.nack(keeper.claim()[0], failed="no route", details=b"\xfftrace")
        clock.advance(1)
        dead = keeper.bury(keeper.claim()[0], reason="given up", failed="no host", details="more")
        assert dead is not None
        letter = wheel.get(dead)
        assert letter is not None
        assert [(a.attempt, a.error, a.details) for a in letter.attempts] == [
            (0, "no route", "\\xfftrace"),
            (1, "no host", "more"),
        ]
        assert letter.attempts[1].at_us - letter.attempts[0].at_us == 1_000_000
        revived = wheel.get(wheel.reschedule(dead))
        assert revived is not None
        assert revived.attempts == letter.attempts
        assert revived.reason is None
