"""Messages and their ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel.errors import BadArgument
from filewheel.message import (
    ARGS,
    DEAD_US,
    DUE_END_US,
    ID_END,
    ID_MIN,
    REASON,
    Message,
    MessageId,
    base32,
    due_of,
    id_after,
    id_floor,
    to_datetime,
)
from filewheel.values import JSON, pack

DUES = st.integers(0, (1 << 58) - 1)
WRITERS = st.integers(0, (1 << 40) - 1)
SEQS = st.integers(0, (1 << 30) - 1)
IDS = st.binary(min_size=16, max_size=16).map(MessageId)


@given(DUES, WRITERS, SEQS)
def test_an_id_gives_back_the_parts_it_was_made_of(due: int, writer: int, seq: int) -> None:
    id_ = MessageId.make(due, writer, seq)
    assert (id_.due_us, id_.writer, id_.seq) == (due, base32(writer, 8), seq)
    assert due_of(id_) == due
    assert len(id_) == 16


@given(st.tuples(DUES, WRITERS, SEQS), st.tuples(DUES, WRITERS, SEQS))
def test_ids_sort_as_bytes_and_as_text_by_due_then_writer_then_sequence(
    a: tuple[int, int, int], b: tuple[int, int, int]
) -> None:
    one, two = MessageId.make(*a), MessageId.make(*b)
    assert (one < two) == (a < b)
    assert (str(one) < str(two)) == (a < b)


@given(IDS)
def test_an_id_survives_being_written_as_text_and_read_in_either_case(id_: MessageId) -> None:
    text = str(id_)
    assert len(text) == 26
    assert set(text) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    assert MessageId.parse(text) == MessageId.parse(text.lower()) == MessageId.parse(bytes(id_)) == id_


def test_letters_that_people_misread_are_read_as_the_digits_they_resemble() -> None:
    right = MessageId.parse("01010101010101010101010101")
    assert MessageId.parse("0IOLoiolO10101010101010101") == right


def test_an_o_for_the_zero_that_every_id_starts_with_is_read_too() -> None:
    assert MessageId.parse("O" + "0" * 25) == MessageId.parse("0" * 26)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "U" + "0" * 25,
        "0" * 25 + "U",
        "0" * 25 + " ",
        " " + "0" * 25,
        "0" * 25 + "\n",
        "0" * 25 + "٣",  # a digit, but not one of ours
        "0" * 25 + "-",
        "../../../../etc/passwd....",
        b"",
        b"0" * 26,
        bytes(15),
        bytes(17),
    ],
)
def test_what_is_not_an_id_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadArgument):
        MessageId.parse(text)


def test_the_refusal_of_a_long_text_does_not_repeat_all_of_it() -> None:
    with pytest.raises(BadArgument) as caught:
        MessageId.parse("x" * 100_000)
    assert len(str(caught.value)) < 200


def test_an_id_is_bytes_with_text_of_its_own() -> None:
    id_ = MessageId.make(1, 2, 3)
    assert isinstance(id_, bytes)
    assert repr(id_) == f"MessageId('{id_}')"
    assert {id_: 1}[bytes(id_)] == 1  # type: ignore[index]


@given(DUES)
def test_the_floor_of_a_due_is_at_or_below_every_id_of_it_and_above_every_earlier_one(due: int) -> None:
    floor = id_floor(due)
    assert floor == MessageId.make(due, 0, 0)
    if due:
        assert MessageId.make(due - 1, (1 << 40) - 1, (1 << 30) - 1) < floor
        assert id_after(MessageId.make(due - 1, (1 << 40) - 1, (1 << 30) - 1)) == floor


@given(st.binary(min_size=16, max_size=16).filter(lambda b: b != ID_END))
def test_nothing_lies_between_an_id_and_the_one_after(id_: bytes) -> None:
    assert int.from_bytes(id_after(id_), "big") == int.from_bytes(id_, "big") + 1
    assert ID_MIN <= id_ < id_after(id_) <= ID_END


def test_the_last_due_there_is_still_fits_and_is_not_dead() -> None:
    last = MessageId.make(DUE_END_US - 1, (1 << 40) - 1, (1 << 30) - 1)
    assert not last.is_dead
    assert Message(last, b"").due == datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert last < id_floor(DEAD_US)


def test_a_dead_letter_tells_when_it_was_first_due() -> None:
    root = MessageId.make(1_800_000_000_000_001, 1, 1)
    dead = Message(MessageId.make(DEAD_US + 1_900_000_000_000_000, 1, 2), b"", root=root)
    assert dead.is_dead
    assert dead.due_us == root.due_us
    assert dead.due == to_datetime(root.due_us)


@given(st.integers(0, DUE_END_US - 1))
def test_a_time_is_turned_into_a_datetime_exactly(us: int) -> None:
    made = to_datetime(us)
    assert made.utcoffset() == timedelta(0)
    assert (made - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == us


def test_messages_with_equal_fields_are_equal() -> None:
    id_ = MessageId.make(1, 2, 3)
    assert Message(id_, b"x") == Message(id_, b"x", "", {}, 0, 0, None)
    assert Message(id_, b"x") != Message(id_, b"y")


CALL = [[UUID(int=5), "ann"], {"times": 2}]


def test_the_repr_of_a_call_is_the_call() -> None:
    id_ = MessageId.make(1_800_000_000_500_000, 1, 1)
    payload, how = pack(CALL)
    message = Message(id_, payload, "mail", {ARGS: how}, 1)
    assert repr(message) == (
        f"<Message {id_} mail(UUID('00000000-0000-0000-0000-000000000005'), 'ann', times=2) "
        "due 2027-01-15 08:00:00.500Z try 2>"
    )
    dead = Message(MessageId.make(DEAD_US + 1, 1, 1), payload, "mail", {ARGS: how, REASON: "no\nhost"}, 1, 0, id_)
    assert repr(dead).endswith("times=2) dead: no\\nhost>")
    assert repr(Message(id_, b"x" * 9, "t")) == f"<Message {id_} 't' 9 bytes due 2027-01-15 08:00:00.500Z>"
    assert len(repr(Message(id_, b"[[" + b'"x",' * 999 + b'"x"],{}]', "t", {ARGS: JSON}))) < 200


@pytest.mark.parametrize("how", ["json", "msgpack", "msgpack+tags", "pickle"])
@pytest.mark.parametrize("payload", [b"", b"\xc1", b"[" * 9999 + b"]" * 9999, b"\x91" * 9999, b"5", bytes(1 << 20)])
def test_the_repr_of_a_message_that_cannot_be_read_is_its_size(payload: bytes, how: str) -> None:
    for id_ in (MessageId(ID_MIN), MessageId(ID_END)):
        shown = repr(Message(id_, payload, "\ud800", {ARGS: how}))
        assert f"'\\ud800' {len(payload)} bytes" in shown
        assert "\n" not in shown


@pytest.mark.parametrize(("number", "text"), [(0, "00"), (31, "0Z"), (32, "10"), (1023, "ZZ"), (1024, "00")])
def test_base32_writes_the_low_bits_with_a_fixed_length(number: int, text: str) -> None:
    assert base32(number, 2) == text
