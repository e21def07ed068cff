"""What waits in the wheel for a record."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import Damaged, NewerFormat
from filewheel.kafka.records.envelope import Envelope, Fate, envelope_of, shortened
from filewheel.kafka.records.headers import Delayed, Poison
from filewheel.kafka.records.record import Record

content = st.none() | st.binary(max_size=40)
envelopes = st.builds(
    Envelope,
    key=content,
    value=content,
    headers=st.lists(st.tuples(st.sampled_from(["", "a", "é", "\udcff"]) | st.text(max_size=5), content), max_size=5),
    timestamp_ms=st.integers(-1, 2**63 - 1),
    fate=st.sampled_from(list(Fate)),
    note=st.text(max_size=20),
    target_key=content,
    target_partition=st.none() | st.integers(0, 2**31 - 1),
)


@given(envelopes)
def test_a_record_comes_out_of_its_payload_as_it_went_in(envelope: Envelope) -> None:
    assert Envelope.unpack(envelope.pack()) == envelope


def test_null_and_empty_and_repeated_headers_stay_apart() -> None:
    for key, value in ((None, b""), (b"", None)):
        headers = [("a", None), ("a", b""), ("b", b"1"), ("a", b"\xff")]
        envelope = Envelope(key, value, headers, 5)
        assert Envelope.unpack(envelope.pack()) == envelope


def test_a_verdict_decides_what_waits() -> None:
    record = Record(0, 1, b"k", b"v", [("a", b"1")], 5)
    assert envelope_of(record, Delayed(5000, "out", b"t", 3)) == Envelope(
        b"k", b"v", [("a", b"1")], 5, target_key=b"t", target_partition=3
    )
    assert envelope_of(record, Delayed(5000, "later", is_rolled=True)).fate is Fate.ROLL
    dead = envelope_of(record, Poison(5000, "later.dlt", "no due"))
    assert (dead.fate, dead.note, dead.value) == (Fate.DEAD_LETTER, "no due", b"v")
    assert shortened(record, "too large") == Envelope(None, None, (), 5, Fate.DEAD_LETTER, "too large")


GOOD = [1, 0, "", 5, None, None, [["a", b"1"]], b"k", b"v"]


def changed(at: int, value: object) -> bytes:
    packed: bytes = msgpack.packb([*GOOD[:at], value, *GOOD[at + 1 :]])
    return packed


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "no waiting record"),
        (b'{"a": 1}', "no waiting record"),
        (msgpack.packb({"a": 1}), "no array that begins with a version"),
        (msgpack.packb([]), "no array that begins with a version"),
        (msgpack.packb([1, 2]), "version 1 with 2 fields"),
        (changed(0, 0), "version 0 with 9 fields"),
        (changed(0, True), "no array that begins with a version"),
        (changed(1, 9), "fate has the wrong type"),
        (changed(2, b"x"), "note has the wrong type"),
        (changed(3, "x"), "timestamp has the wrong type"),
        (changed(4, "x"), "target key has the wrong type"),
        (changed(5, "x"), "target partition has the wrong type"),
        (changed(6, [["a"]]), "headers has the wrong type"),
        (changed(6, [[b"a", b"1"]]), "headers has the wrong type"),
        (changed(7, "x"), "key has the wrong type"),
        (changed(8, 1), "value has the wrong type"),
    ],
)
def test_a_payload_that_is_none_is_an_error_with_the_reason(payload: bytes, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        Envelope.unpack(payload)


def test_a_newer_payload_says_so() -> None:
    with pytest.raises(NewerFormat, match="version 2 of a waiting record"):
        Envelope.unpack(changed(0, 2))


@given(st.binary(max_size=30))
def test_any_bytes_are_a_record_or_an_error_of_the_tree(payload: bytes) -> None:
    with contextlib.suppress(Damaged, NewerFormat):
        assert Envelope.unpack(payload).pack()
