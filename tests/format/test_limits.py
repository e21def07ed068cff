"""What a message may hold."""

from __future__ import annotations

from array import array
from types import MappingProxyType
from typing import Any

import pytest

from filewheel.errors import BadArgument, TooLarge
from filewheel.format.limits import (
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    TOPIC_BYTES_MAX,
    bytes_of,
    check_count,
    check_headers,
    check_topic,
    matches,
)


@pytest.mark.parametrize("payload", [b"", b"x" * 10, bytearray(b"abc"), memoryview(b"abc")])
def test_a_payload_is_anything_that_holds_bytes(payload: bytes) -> None:
    found = bytes_of(payload, 10)
    assert type(found) is bytes
    assert found == bytes(payload)


def test_a_payload_at_the_limit_passes_and_one_byte_more_is_too_large() -> None:
    assert len(bytes_of(b"x" * 10, 10)) == 10
    with pytest.raises(TooLarge, match="11 bytes; the limit of this wheel is 10"):
        bytes_of(b"x" * 11, 10)


def test_text_as_a_payload_is_refused_with_a_hint_how_to_make_bytes_of_it() -> None:
    with pytest.raises(BadArgument) as caught:
        bytes_of("text", 10)
    assert caught.value.hint is not None
    assert "encode" in caught.value.hint


@pytest.mark.parametrize("wrong", [None, 5, 0, [1, 2], {"a": 1}, object()])
def test_what_holds_no_bytes_is_refused_and_never_taken_for_a_size(wrong: Any) -> None:
    with pytest.raises(BadArgument, match="a payload is bytes, not"):
        bytes_of(wrong, 10)


def test_a_memoryview_of_wider_items_is_measured_in_bytes() -> None:
    with pytest.raises(TooLarge):
        bytes_of(memoryview(array("I", range(10))), 10)


@pytest.mark.parametrize("topic", ["", "mail", "a.b/c d", "ü☃", "x" * TOPIC_BYTES_MAX, "\x00\n"])
def test_a_topic_is_any_text_within_its_limit(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize("topic", ["x" * (TOPIC_BYTES_MAX + 1), "ü" * 128])
def test_a_topic_is_measured_in_bytes(topic: str) -> None:
    with pytest.raises(TooLarge, match="256 bytes; the limit is 255"):
        check_topic(topic)


@pytest.mark.parametrize("topic", [None, b"mail", 5, ["mail"]])
def test_a_topic_that_is_not_text_is_refused(topic: Any) -> None:
    with pytest.raises(BadArgument):
        check_topic(topic)


def test_a_lone_surrogate_is_refused_wherever_text_goes() -> None:
    for call in (
        lambda: check_topic("\ud800"),
        lambda: check_headers({"\ud800": ""}),
        lambda: check_headers({"": "\udfff"}),
    ):
        with pytest.raises(BadArgument, match="not valid Unicode") as caught:
            call()
        str(caught.value).encode()  # the message itself can be written


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"a": "b"},
        MappingProxyType({"a": "b"}),
        {str(n): "" for n in range(HEADERS_MAX)},
        {"k": "v" * (HEADERS_BYTES_MAX - 1)},
    ],
)
def test_headers_within_their_limits_pass(headers: dict[str, str]) -> None:
    assert check_headers(headers) is headers


@pytest.mark.parametrize(
    "headers",
    [
        {str(n): "" for n in range(HEADERS_MAX + 1)},
        {"k": "v" * HEADERS_BYTES_MAX},
        {"ü": "ü" * (HEADERS_BYTES_MAX // 2)},
    ],
)
def test_headers_over_a_limit_are_too_large(headers: dict[str, str]) -> None:
    with pytest.raises(TooLarge):
        check_headers(headers)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"b"}, [("a", "b")], "ab", None, 5])
def test_headers_that_do_not_map_text_to_text_are_refused(headers: Any) -> None:
    with pytest.raises(BadArgument, match="map str to str"):
        check_headers(headers)


def test_a_sequence_must_have_one_value_for_each_payload() -> None:
    check_count("delay", [1, 2], 2)
    with pytest.raises(BadArgument, match="delay has 2 values for 3 payloads"):
        check_count("delay", [1, 2], 3)


@pytest.mark.parametrize(
    ("topic", "pattern", "fits"),
    [
        ("mail", "mail", True),
        ("mail", "Mail", False),
        ("mail.out", "mail", False),
        ("mail.out", "mail.*", True),
        ("mail.out", "*", True),
        ("mail.out", "mail.???", True),
        ("mail.out", "mail.[a-o]ut", True),
        ("mail", "", False),
        ("", "", True),
        ("", "*", True),
        ("a*b", "a*b", True),
        ("a[b", "a[b", True),
        ("line\nbreak", "line*", True),
    ],
)
def test_a_topic_fits_itself_and_globs(topic: str, pattern: str, fits: bool) -> None:
    assert matches(topic, pattern) is fits
