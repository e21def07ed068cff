"""Messages as JSON lines."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel import Wheel
from filewheel.errors import BadArgument
from filewheel.message import DEAD_US, DUE_END_US, DUE_LIMIT_US, Message, MessageId
from filewheel.tools.dump import dump, from_json, iso, last_line, load, parse_line, payload_of, to_json
from tests.support_wheel import NOW_US, StillClock, an_id

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PARTS = (st.integers(0, (1 << 40) - 1), st.integers(0, (1 << 30) - 1))
IDS = st.builds(MessageId.make, st.integers(0, DUE_END_US - 1), *PARTS)
COUNTS = st.integers(0, (1 << 63) - 1)


def messages(ids: st.SearchStrategy[MessageId], roots: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        id=ids,
        payload=st.binary(max_size=60) | TEXT.map(str.encode),
        topic=TEXT,
        headers=st.dictionaries(TEXT, TEXT, max_size=5),
        attempt=COUNTS,
        enqueued_us=COUNTS,
        root=roots,
    )


LIVING = messages(IDS, st.none() | IDS)
DEAD = messages(st.builds(MessageId.make, st.integers(DEAD_US, DUE_LIMIT_US - 1), *PARTS), IDS)
LINE: dict[str, Any] = to_json(Message(an_id(5), b"x"))


@given(LIVING | DEAD)
def test_a_message_survives_becoming_an_object_and_a_line_and_back(message: Message) -> None:
    fields = to_json(message)
    assert from_json(fields) == message
    for ascii_only in (True, False):
        assert from_json(parse_line(json.dumps(fields, ensure_ascii=ascii_only), 1)) == message
    assert from_json(parse_line(json.dumps(fields).encode(), 1)) == message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(found=st.lists(LIVING | DEAD, max_size=12, unique_by=lambda m: m.id))
def test_dump_load_and_dump_again_give_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, found: list[Message]
) -> None:
    path = tmp_path_factory.mktemp("transfer")
    lines: list[list[str]] = [[json.dumps(to_json(m)) for m in sorted(found, key=lambda m: m.id)]]
    for name in ("a", "b"):
        with Wheel.create(path / name, clock=StillClock()) as wheel:
            dumped = [*lines[-1], last_line(len(found))]
            wheel.add(load(dumped))
            wheel.add(load(dumped))  # twice is once
            lines.append([json.dumps(to_json(m)) for m in dump(wheel)])
    assert lines[0] == lines[1] == lines[2]


def test_a_payload_that_is_utf_8_travels_as_text_and_any_other_as_base64() -> None:
    assert to_json(Message(an_id(1), "grüße".encode()))["payload"] == "grüße"
    fields = to_json(Message(an_id(1), b"\xff\x00"))
    assert "payload" not in fields
    assert base64.b64decode(fields["payload_b64"]) == b"\xff\x00"
    assert to_json(Message(an_id(1), b""))["payload"] == ""


def test_a_dead_letter_says_so_and_tells_when_it_was_due() -> None:
    root = MessageId.make(NOW_US, 1, 1)
    fields = to_json(Message(MessageId.make(DEAD_US + 5, 1, 2), b"", root=root))
    assert fields["dead"] is True
    assert (fields["due_us"], fields["root"]) == (NOW_US, str(root))
    assert "dead" not in LINE
    assert "root" not in LINE


def test_a_dead_letter_without_a_root_is_refused() -> None:
    with pytest.raises(BadArgument, match="a dead letter has a root"):
        from_json(LINE | {"id": str(MessageId.make(DEAD_US + 5, 1, 2))})


def test_an_id_with_a_due_that_no_message_can_have_is_refused() -> None:
    with pytest.raises(BadArgument, match="a due that no message can have"):
        from_json(LINE | {"id": "7" + "Z" * 25, "root": str(an_id(1))})


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (NOW_US, "2027-01-15T08:00:00.000000Z"),
        (DUE_END_US - 1, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_a_time_is_written_in_utc_with_six_digits(us: int, text: str) -> None:
    assert iso(us) == text


def test_what_is_left_out_has_its_plain_default() -> None:
    assert from_json({"id": str(an_id(5)), "payload": "x"}) == Message(an_id(5), b"x")


def test_keys_that_are_only_for_people_are_not_read() -> None:
    assert from_json(LINE | {"due": "nonsense", "due_us": -5, "dead": "?", "more": []}) == from_json(LINE)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"id": ...}, "'id'"),
        ({"id": 5}, "'id'"),
        ({"id": "x"}, "'x'"),
        ({"payload": ...}, "'payload'"),
        ({"payload": 5}, "'payload'"),
        ({"payload": "\ud800"}, "payload"),
        ({"payload": ..., "payload_b64": "*"}, "payload_b64"),
        ({"payload": ..., "payload_b64": "YQ"}, "payload_b64"),
        ({"payload": ..., "payload_b64": "ü"}, "payload_b64"),
        ({"payload": ..., "payload_b64": None}, "payload_b64"),
        ({"payload_b64": "YQ=="}, "not both"),
        ({"topic": 5}, "'topic'"),
        ({"topic": None}, "'topic'"),
        ({"headers": []}, "'headers'"),
        ({"headers": {"a": 1}}, "'a'"),
        ({"attempt": -1}, "'attempt'"),
        ({"attempt": 1.0}, "'attempt'"),
        ({"attempt": True}, "'attempt'"),
        ({"attempt": 1 << 63}, "'attempt'"),
        ({"enqueued_us": "0"}, "'enqueued_us'"),
        ({"root": 5}, "'root'"),
        ({"root": "x"}, "'x'"),
    ],
)
def test_an_object_with_something_wrong_is_refused_naming_it(change: dict[str, Any], key: str) -> None:
    fields = {k: v for k, v in (LINE | change).items() if v is not ...}
    with pytest.raises(BadArgument) as caught:
        from_json(fields)
    assert key in str(caught.value)


@pytest.mark.parametrize("what", [None, [], "x", 5, True])
def test_what_is_no_object_is_refused(what: object) -> None:
    with pytest.raises(BadArgument, match="not a JSON object"):
        from_json(what)


def test_a_lone_root_of_none_is_no_root() -> None:
    assert from_json(LINE | {"root": None}).root is None


@pytest.mark.parametrize("line", ["", "{", "nope", "[1]", "5", '"x"', "null", b"\xff", "{}{}"])
def test_a_line_that_is_no_object_is_named_by_its_number(line: str | bytes) -> None:
    with pytest.raises(BadArgument, match=r"^line 7: not (JSON|a JSON object)"):
        parse_line(line, 7)


def test_a_line_that_is_nested_too_deep_is_named_by_its_number() -> None:
    with pytest.raises(BadArgument, match=r"^line 7"):
        parse_line("[" * 100_000, 7)


def test_loading_counts_blank_lines_and_skips_them() -> None:
    good = json.dumps(LINE)
    assert len(list(load(["", good, "  \n", good.encode(), b"\n", last_line(2)]))) == 2
    with pytest.raises(BadArgument, match=r"^line 4: 'attempt' is a count"):
        list(load([good, "\n", good, json.dumps(LINE | {"attempt": -1})]))
    with pytest.raises(BadArgument, match=r"^line 2: not JSON"):
        list(load([good, "{"]))


def test_loading_yields_what_comes_before_a_bad_line() -> None:
    stream = load([json.dumps(LINE), "{"])
    assert next(stream) == from_json(LINE)
    with pytest.raises(BadArgument):
        next(stream)


def test_a_payload_is_read_from_text_or_base64() -> None:
    assert payload_of({"payload": "ü"}) == "ü".encode()
    assert payload_of({"payload_b64": "/w=="}) == b"\xff"
    assert payload_of({"payload_b64": ""}) == b""
