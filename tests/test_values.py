"""Values as bytes: what comes back is what went in, no data looks like a tag, and no class is looked up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel import BadArgument, Damaged, Message, MessageId
from filewheel.message import ARGS
from filewheel.values import DEPTH_MAX, JSON, MSGPACK, TAGGED, pack, unpack

ID = UUID("12345678-1234-5678-1234-567812345678")

tags = st.sampled_from(["$", "$uuid", "$$uuid", "$decimal", "$date", "$x", "$$", "uuid"])
leaves = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
    | st.text(max_size=9) | st.binary(max_size=9) | st.uuids() | st.decimals(allow_nan=False) | st.dates() | st.times()
    | st.timedeltas(timedelta(days=-100_000_000), timedelta(days=100_000_000)) | tags
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tags | st.text(max_size=3) | st.integers(0, 9), inner,
                                                                max_size=2),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(values)
def test_whatever_is_packed_comes_back(value: Any) -> None:
    assert unpack(*pack(value)) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (ID, {"$uuid": "12345678-1234-5678-1234-567812345678"}),
        (Decimal("1.50"), {"$decimal": "1.50"}),
        (date(2027, 1, 2), {"$date": "2027-01-02"}),
        (time(3, 4, 5, 6), {"$time": "03:04:05.000006"}),
        (time(3, 4, tzinfo=timezone(timedelta(hours=1))), {"$time": "03:04:00+01:00"}),
        (timedelta(days=-1, microseconds=1), {"$duration_us": -86_399_999_999}),
        ([ID, {"$uuid": "x"}], [{"$uuid": str(ID)}, {"$$uuid": "x"}]),
        ({"$$x": 1}, {"$$$x": 1}),
        ({"$a": 1, "$b": ID}, {"$a": 1, "$b": {"$uuid": str(ID)}}),
    ],
)
def test_the_bytes_are_those_of_the_page(value: Any, stored: Any) -> None:
    packed, how = pack([value, ID])
    assert how == TAGGED
    assert msgpack.unpackb(packed)[0] == stored
    assert unpack(packed, how)[0] == value


def test_plain_data_has_no_tags_and_is_packed_as_before() -> None:
    value = [{"$uuid": "x"}, {"a": [1, b"x", None]}, datetime(2027, 1, 1, tzinfo=UTC)]
    packed, how = pack(value)
    assert how == MSGPACK
    assert unpack(packed, how) == value


class Colour(Enum):
    RED = "red"
    ODD = ID


class Word(StrEnum):
    ONE = "one"


@dataclasses.dataclass
class Point:
    x: int
    y: Decimal
    colour: Colour = Colour.RED
    norm: float = dataclasses.field(default=0.0, init=False)


def test_an_enum_is_stored_as_its_value_and_a_dataclass_as_its_fields() -> None:
    value = [Colour.RED, Colour.ODD, Word.ONE, Point(1, Decimal(2)), {Word.ONE: 1}]
    found = unpack(*pack(value))
    assert found == ["red", ID, "one", {"x": 1, "y": Decimal(2), "colour": "red"}, {"one": 1}]
    assert pack([Point(1, 2)])[1] == MSGPACK  # type: ignore[arg-type]


def test_a_set_is_stored_as_a_list_in_an_order_that_no_hash_decides() -> None:
    found = unpack(*pack([{"b", "a", "c"}, frozenset({ID}), {Colour.RED}]))
    assert found == [["a", "b", "c"], [ID], ["red"]]


@pytest.mark.parametrize(
    "odd",
    [
        {1, 1j}, object(), 1j, Point, datetime(2027, 1, 1), 1 << 64, timedelta.max, "\ud800", {(1, 2): 3},
        {ID: 1}, [{"a": [{(1,): 1}]}], {frozenset(): 1}, [ID, {(1, 2): 3}], [ID, "\ud800"], [ID, 1 << 64],
    ],
)  # fmt: skip
def test_what_cannot_come_back_is_refused_when_it_is_stored(odd: Any) -> None:
    with pytest.raises(BadArgument, match="cannot be stored"):
        pack([odd])


def test_a_time_whose_zone_needs_a_date_is_refused() -> None:
    from zoneinfo import ZoneInfo

    with pytest.raises(BadArgument, match="needs a date"):
        pack([time(9, 0, tzinfo=ZoneInfo("Europe/Berlin"))])


def test_a_value_that_is_nested_too_deeply_or_holds_itself_is_refused() -> None:
    deep: Any = ID
    for _ in range(DEPTH_MAX):
        deep = [deep]
    assert unpack(*pack(deep)) == deep
    with pytest.raises(BadArgument, match="nested deeper than 100"):
        pack([deep])
    loop: list[Any] = [ID]
    loop.append(loop)
    with pytest.raises(BadArgument, match="cannot be stored"):
        pack(loop)


def test_encode_is_asked_for_what_cannot_be_stored_and_may_return_any_of_it() -> None:
    asked = []

    def encode(value: Any) -> Any:
        asked.append(value)
        return {"real": Decimal(str(value.real)), "id": ID}

    assert unpack(*pack([1j, [2 + 0j], ID], encode)) == [
        {"real": Decimal("0.0"), "id": ID}, [{"real": Decimal("2.0"), "id": ID}], ID,
    ]  # fmt: skip
    assert asked == [1j, 2 + 0j]


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        (lambda value: value, "returned the complex itself"),
        (lambda value: 1 / 0, "ZeroDivisionError"),
        (lambda value: {1j}, "nested deeper than 100"),
        (lambda value: [value], "nested deeper than 100"),
    ],
)
def test_an_encode_that_helps_nothing_is_a_wrong_argument(encode: Any, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        pack([1j], encode)


@pytest.mark.parametrize(
    "stored",
    [
        {"$uuid": 5}, {"$uuid": "x"}, {"$decimal": "x"}, {"$decimal": 1.5}, {"$date": "2027-13-01"}, {"$time": ""},
        {"$duration_us": "5"}, {"$duration_us": True}, {"$class": "os.system"}, {"$": 1},
    ],
)  # fmt: skip
def test_a_tag_that_is_none_is_damage_and_nothing_is_looked_up(stored: Any) -> None:
    with pytest.raises(Damaged, match="cannot be read"):
        unpack(msgpack.packb([stored]), TAGGED)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_make_a_reader_raise_anything_else(data: bytes) -> None:
    for how in (MSGPACK, TAGGED, JSON):
        with contextlib.suppress(Damaged):
            unpack(data, how)


def test_a_message_has_its_arguments_or_none() -> None:
    payload, how = pack([["ann", ID], {"n": Decimal(1)}])
    id_ = MessageId.make(1, 1, 1)
    call = Message(id_, payload, "email", {ARGS: how})
    assert call.args == ["ann", ID]
    assert call.kwargs == {"n": Decimal(1)}
    plain = Message(id_, b"hello")
    assert plain.args is None
    assert plain.kwargs is None
    assert Message(id_, json.dumps([[1], {}]).encode(), "t", {ARGS: JSON}).args == [1]
    for broken in (Message(id_, b"\xc1", "t", {ARGS: how}), Message(id_, payload, "t", {ARGS: "pickle"})):
        with pytest.raises(Damaged):
            broken.args  # noqa: B018
        with pytest.raises(Damaged):
            broken.kwargs  # noqa: B018
