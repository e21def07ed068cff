"""Records: the packed bytes of puts and drops."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.format.record import (
    ACKED,
    BURIED,
    CANCELLED,
    DROP,
    ID,
    PUT,
    PUT_PREFIX,
    REASONS,
    RESCHEDULED,
    RETRIED,
    SET_ASIDE,
    moved,
    pack_drop,
    pack_message,
    pack_middle,
    pack_payload,
    records_of,
    root_of,
    split,
    unpack_drop,
    unpack_put,
)
from filewheel.message import DEAD_US, ID_END, ID_MIN, LOW_BITS, Message, MessageId
from filewheel.native.compiled import part
from tests.support_wheel import a_put, an_id

DUES = st.integers(0, DEAD_US - 1)
LOWS = st.integers(0, (1 << LOW_BITS) - 1)
IDS = st.builds(lambda due_us, low: MessageId((due_us << LOW_BITS | low).to_bytes(16, "big")), DUES, LOWS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
MESSAGES = st.builds(
    Message,
    id=IDS,
    payload=st.binary(max_size=600),
    topic=TEXT,
    headers=st.dictionaries(TEXT, TEXT, max_size=20),
    attempt=st.integers(0, (1 << 64) - 2),
    enqueued_us=st.integers(0, (1 << 64) - 1),
    root=st.none() | IDS,
)


@given(MESSAGES)
def test_a_message_that_was_packed_is_unpacked_as_it_was(message: Message) -> None:
    put = pack_message(message)
    assert unpack_put(put) == message
    assert put[ID] == message.id
    assert put[1] == PUT
    assert moved([put]) == ([] if message.root is None else [put])
    assert root_of(put) == (message.root or message.id)


@given(MESSAGES)
def test_a_packed_message_is_what_a_plain_msgpack_packer_writes(message: Message) -> None:
    fields = msgpack.unpackb(pack_message(message))
    assert fields[:4] == [PUT, message.id, message.root, message.enqueued_us]
    assert fields[4:] == [message.attempt, message.topic, message.headers, message.payload]
    tail = msgpack.packb([*fields[4:]])[1:]
    assert pack_message(message).endswith(tail), "attempt, topic, headers and payload are in their shortest form"


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 1 << 20])
def test_a_payload_is_packed_in_its_shortest_form(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    assert pack_payload(payload) == msgpack.packb(payload)


@given(IDS, st.sampled_from(sorted(REASONS)))
def test_a_drop_is_21_bytes_and_gives_back_its_id_and_reason(id_: MessageId, reason: int) -> None:
    drop = pack_drop(id_, reason)
    assert len(drop) == 21
    assert msgpack.unpackb(drop) == [DROP, id_, reason]
    assert (drop[ID], drop[1], drop[20]) == (id_, DROP, reason)
    assert unpack_drop(drop) == (id_, REASONS[reason])


def test_the_reasons_have_the_numbers_that_the_format_gives_them() -> None:
    assert REASONS == {1: "acked", 2: "cancelled", 3: "rescheduled", 4: "retried", 5: "buried", 6: "set aside"}
    assert (ACKED, CANCELLED, RESCHEDULED, RETRIED, BURIED, SET_ASIDE) == (1, 2, 3, 4, 5, 6)


def test_a_drop_with_a_reason_of_the_future_still_says_which() -> None:
    assert unpack_drop(pack_drop(bytes(16), 99))[1] == "reason 99"


@given(st.lists(MESSAGES, max_size=30))
def test_packed_puts_sort_as_bytes_as_their_ids_do(messages: list[Message]) -> None:
    puts = sorted(pack_message(m) for m in messages)
    assert [p[ID] for p in puts] == sorted(m.id for m in messages)


@given(st.lists(MESSAGES, max_size=8), st.lists(IDS, max_size=8), st.randoms())
def test_a_run_of_records_is_split_and_sorted_out(messages: list[Message], ids: list[MessageId], rng: Any) -> None:
    puts, drops = [pack_message(m) for m in messages], [pack_drop(i, CANCELLED) for i in ids]
    records = puts + drops
    rng.shuffle(records)
    found = split(b"".join(records))
    assert found == records
    in_order = [r for r in records if r in puts], [r for r in records if r in drops]
    assert part(b"".join(records), ID_MIN, ID_END) == in_order


def test_nothing_is_split_into_nothing() -> None:
    assert split(b"") == []
    assert part(b"", ID_MIN, ID_END) == ([], [])


@given(MESSAGES, st.data())
def test_a_run_of_records_that_is_cut_short_is_damaged(message: Message, data: st.DataObject) -> None:
    put = pack_message(message)
    size = data.draw(st.integers(1, len(put) - 1))
    with pytest.raises(Damaged, match="after byte 21 of a frame"):
        split(pack_drop(bytes(16), ACKED) + put[:size])


@pytest.mark.parametrize(
    "body", [b"\xc1", b"\x98", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
)
def test_bytes_that_are_not_msgpack_are_damaged_and_cost_no_memory(body: bytes) -> None:
    with pytest.raises(Damaged):
        split(body)


@pytest.mark.parametrize(
    "record",
    [
        msgpack.packb([3, bytes(16), 1]),
        msgpack.packb([1]),
        msgpack.packb(5),
        msgpack.packb([DROP, bytes(16), 200]),  # a reason of two bytes
        msgpack.packb([DROP, bytes(15), 1]),
        msgpack.packb([PUT, bytes(15), None, 0, 0, "", {}, b""]),
        msgpack.packb([PUT, bytes(17), None, 0, 0, "", {}, b""]),
        msgpack.packb([PUT, "x" * 16, None, 0, 0, "", {}, b""]),
        msgpack.packb([PUT, bytes(16), None, 0, 0, "", {}]),
    ],
)
def test_a_record_of_an_unknown_kind_makes_its_frame_damaged(record: bytes) -> None:
    with pytest.raises(Damaged, match="unknown kind"):
        records_of(a_frame(a_put(an_id(1)), record, first=ID_MIN, last=ID_END))


def put_of(*fields: object) -> bytes:
    """Pack a put with these fields after its id, right or wrong."""
    return PUT_PREFIX + bytes(16) + b"".join(msgpack.packb(f) for f in fields)


@pytest.mark.parametrize(
    "record",
    [
        put_of(None, 0, 0, 5, {}, b""),
        put_of(None, 0, 0, b"", {}, b""),
        put_of(None, 0, 0, "", [], b""),
        put_of(None, 0, 0, "", {}, ""),
        put_of(None, "0", 0, "", {}, b""),
        put_of(None, 0, 0.5, "", {}, b""),
        put_of(None, True, 0, "", {}, b""),
        put_of(None, 0, 0, "", {5: "x"}, b""),
        put_of("root", 0, 0, "", {}, b""),
        PUT_PREFIX + bytes(16) + b"\xc0\x00\x00\xa1\xff\x80\xc4\x00",  # a topic that is not UTF-8
        put_of(None, 0, 0, "", {}, b"") + b"\x00",
        put_of(None, 0, 0, "", {}, b"")[:-1],
        b"",
    ],
)
def test_a_put_with_fields_of_the_wrong_type_is_not_a_message(record: bytes) -> None:
    with pytest.raises(Damaged, match="not a message"):
        unpack_put(record)


@pytest.mark.parametrize(
    "record",
    [put_of(5, 0, 0, "", {}, b""), put_of(b"short", 0, 0, "", {}, b""), put_of(None, 0, 0, "", {"a": 1}, b"")],
)
def test_a_put_with_a_root_or_a_header_of_the_wrong_type_is_not_a_message(record: bytes) -> None:
    with pytest.raises(Damaged):
        unpack_put(record)


def test_the_middle_of_a_batch_is_packed_once_and_fits_every_payload() -> None:
    middle = pack_middle(7, "mail", {"a": "b"})
    for payload in (b"", b"one", b"x" * 70_000):
        id_ = an_id(5)
        found = unpack_put(PUT_PREFIX + id_ + middle + pack_payload(payload))
        assert found == Message(id_, payload, "mail", {"a": "b"}, 0, 7)


def test_headers_keep_the_order_in_which_they_were_given() -> None:
    headers = {"z": "1", "a": "2", "m": "3"}
    message = Message(an_id(1), b"", headers=headers)
    assert list(unpack_put(pack_message(message)).headers) == ["z", "a", "m"]


def a_frame(*records: bytes, first: bytes, last: bytes) -> Frame:
    """Return a frame whose header says anything."""
    return Frame(0, 0, 1, 0, len(records), 0, first, last, b"".join(records))


EARLY, LATE = an_id(5), MessageId(b"\xff" * 16)


def test_a_frame_whose_ids_lie_where_its_header_says_is_read() -> None:
    puts, drops = [a_put(an_id(6)), a_put(an_id(5))], [pack_drop(an_id(9), ACKED)]
    assert records_of(a_frame(*puts, *drops, first=an_id(5), last=an_id(9))) == (puts, drops)


@pytest.mark.parametrize(
    ("record", "first", "last"),
    [
        (a_put(LATE), EARLY, LATE),
        (pack_drop(LATE, ACKED), EARLY, LATE),
        (a_put(EARLY), EARLY, LATE),
        (a_put(EARLY), an_id(6), an_id(7)),
        (a_put(an_id(8)), an_id(6), an_id(7)),
        (pack_drop(EARLY, ACKED), an_id(6), an_id(7)),
    ],
)
def test_a_frame_with_ids_that_nothing_can_have_or_that_its_header_does_not_name_is_damaged(
    record: bytes, first: bytes, last: bytes
) -> None:
    with pytest.raises(Damaged):
        records_of(a_frame(record, first=first, last=last))


@pytest.mark.parametrize(
    "message",
    [
        Message(LATE, b""),
        Message(MessageId.make(DEAD_US, 1, 1), b""),
        Message(EARLY, b"", root=LATE),
        Message(EARLY, b"", attempt=(1 << 64) - 1),
    ],
    ids=["late", "dead without a root", "late root", "no attempt can follow"],
)
def test_a_message_that_says_no_time_or_has_no_next_attempt_is_damaged(message: Message) -> None:
    with pytest.raises(Damaged):
        unpack_put(pack_message(message))
