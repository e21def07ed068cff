"""Arguments as they are stored: what comes back is what went in, and nothing on a disk raises anything but Damaged."""

from __future__ import annotations

import json
import traceback
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument
from filewheel.errors import Damaged
from filewheel.scheduling.call import pack_call
from filewheel.values import JSON, MSGPACK, unpack_call

times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])) | st.binary() | times
)  # fmt: skip
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


@given(st.lists(values, max_size=3), st.dictionaries(keys, values, max_size=3))
def test_plain_arguments_come_back_as_they_went_in(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert unpack_call(*pack_call(args, kwargs)) == (args, kwargs)


def test_an_aware_datetime_of_any_zone_comes_back_as_the_same_instant() -> None:
    berlin = datetime(2027, 1, 2, 3, 4, 5, 678_901, timezone(timedelta(hours=1)))
    (back,), _ = unpack_call(*pack_call([berlin], {}))
    assert back == berlin
    assert back.tzinfo is UTC


def test_tuples_come_back_as_lists_and_numbers_may_be_keys() -> None:
    assert unpack_call(*pack_call([(1, (2,))], {"m": {1: "a"}})) == ([[1, [2]]], {"m": {1: "a"}})


@pytest.mark.parametrize(
    "odd", [object(), {1j}, 1 << 64, lambda: 0, datetime(2027, 1, 1), "\ud800", 1j],
    ids=["object", "set", "too-big", "function", "naive-datetime", "half-a-character", "complex"],
)  # fmt: skip
def test_what_is_not_plain_is_refused_with_what_to_pass_instead(odd: Any) -> None:
    with pytest.raises(BadArgument, match="cannot be stored.*Try: pass None, bool"):
        pack_call([odd], {})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ([1, object()], {}, "argument 2 cannot be stored"),
        ([], {"to": 1, "wait": {"a": object()}}, "the argument 'wait' cannot be stored"),
    ],
)
def test_an_argument_that_cannot_be_stored_is_named_without_errors_of_msgpack(
    args: list[Any], kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadArgument, match=f"^{said}: can not serialize 'object' object") as raised:
        pack_call(args, kwargs)
    trace = "".join(traceback.format_exception(raised.value))
    assert trace.count("Traceback") == 1


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadArgument, match="cannot be stored"):
        pack_call(loop, {})


def test_json_from_a_shell_is_read_and_without_a_header_the_bytes_are_the_argument() -> None:
    assert unpack_call(b'[["ann"], {"n": 1.5}]', JSON) == (["ann"], {"n": 1.5})
    assert unpack_call(b"\xff\x00", None) == ([b"\xff\x00"], {})


@pytest.mark.parametrize(
    ("payload", "how"),
    [
        (b"", MSGPACK), (b"\xc1", MSGPACK), (msgpack.packb([[1]]), MSGPACK), (msgpack.packb(7), MSGPACK),
        (msgpack.packb([[1], [2]]), MSGPACK), (msgpack.packb([[1], {2: 3}]), MSGPACK),
        (msgpack.packb([{}, {}]), MSGPACK),
        (msgpack.packb([[], {}]) + b"x", MSGPACK),
        (b"\x92\x91\xc7\x0c\xff\x00\x00\x00\x00" + b"\x7f" * 8 + b"\x80", MSGPACK),  # a year that is none
        (b"\x91" * 5000, MSGPACK),
        (b"", JSON), (b"{", JSON), (b"\xff\xfe", JSON), (b"[[], {}, {}]", JSON), (b'"ab"', JSON),
        (b"[" * 100_000, JSON),
        (b"[[" + b"9" * 10_000 + b"], {}]", JSON),
        (b"[[], {}]", "pickle"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_as_a_call_is_damaged_and_nothing_else(payload: bytes, how: str) -> None:
    with pytest.raises(Damaged):
        unpack_call(payload, how)


@given(st.binary(max_size=80), st.sampled_from([MSGPACK, JSON]))
def test_any_bytes_are_a_call_or_damaged(payload: bytes, how: str) -> None:
    try:
        args, kwargs = unpack_call(payload, how)
    except Damaged:
        return
    assert isinstance(args, list)
    assert all(isinstance(k, str) for k in kwargs)


@given(st.binary(min_size=1, max_size=40), st.sampled_from([0xC7, 0xC8, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8]))
def test_any_extension_of_msgpack_is_a_value_or_damaged(rest: bytes, kind: int) -> None:
    try:
        unpack_call(b"\x92\x91" + bytes([kind]) + rest[:1] + b"\xff" + rest[1:] + b"\x80", MSGPACK)
    except Damaged:
        return


def test_no_argument_can_be_smuggled_in_as_a_class() -> None:
    text = json.dumps([["__reduce__", {"__class__": "os.system"}], {}]).encode()
    assert unpack_call(text, JSON) == (["__reduce__", {"__class__": "os.system"}], {})
