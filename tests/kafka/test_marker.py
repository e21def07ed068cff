"""The marker of a partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import Damaged, NewerFormat
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.fate import id_of

offsets = st.integers(0, 8)
ids = st.builds(id_of, st.integers(0, 8), offsets)
chunks = st.lists(st.tuples(offsets, ids), max_size=6)
SPACE = [(id_of(due, offset), offset) for due in range(9) for offset in range(9)]


def marker_of(said: list[tuple[int, bytes]], low: int = 0) -> Marker:
    """The marker after these chunks, each of which saw at least as much of the log as those before."""
    marker = Marker(low=low, owner="é", topic_id="t")
    seen = 0
    for ingested, through in said:
        seen = max(seen, ingested)
        marker = marker.after_chunk(seen, through)
    return marker


markers = st.builds(marker_of, chunks, offsets)


@given(chunks)
def test_a_marker_says_what_all_chunks_together_say(said: list[tuple[int, bytes]]) -> None:
    marker, seen, facts = Marker(), 0, []
    for ingested, through in said:
        seen = max(seen, ingested)
        facts.append((seen, through))
        marker = marker.after_chunk(seen, through)
        for id_, offset in SPACE:
            assert marker.done(id_, offset) == any(offset < o and id_ <= p for o, p in facts)
        assert list(marker.steps) == sorted(marker.steps)
        assert marker.ingested == seen


@given(markers)
def test_a_marker_comes_back_from_its_record(marker: Marker) -> None:
    assert Marker.unpack(marker.pack()) == marker


def test_one_step_holds_as_long_as_records_go_out_by_id() -> None:
    marker = Marker().after_chunk(10, id_of(5, 3)).after_chunk(12, id_of(6, 11))
    assert marker.steps == ((12, id_of(6, 11)),)


def test_a_record_that_arrives_overdue_adds_a_step_that_the_next_unit_replaces() -> None:
    marker = Marker().after_chunk(10, id_of(5, 3)).after_chunk(20, id_of(2, 15))
    assert marker.steps == ((10, id_of(5, 3)), (20, id_of(2, 15)))
    assert not marker.done(id_of(3, 12), 12)
    assert marker.after_chunk(20, id_of(5, 3)).steps == ((20, id_of(5, 3)),)


def test_an_owner_that_found_a_step_and_more_overdue_records_keeps_what_the_step_says() -> None:
    marker = Marker().after_chunk(10, id_of(5, 3)).after_chunk(20, id_of(4, 15)).after_chunk(30, id_of(2, 25))
    assert [offset for offset, _ in marker.steps] == [10, 20, 30]
    assert marker.done(id_of(3, 12), 12)
    assert not marker.is_full(30)


def test_many_steps_are_too_many() -> None:
    marker = Marker()
    for n in range(8):
        assert not marker.is_full(n)
        marker = marker.after_chunk(n + 1, id_of(20 - n, 0))
    assert marker.is_full(8)


def test_steps_of_an_owner_that_had_read_further_do_not_stop_this_one_from_reading_as_far() -> None:
    marker = Marker(tuple((100 + n, id_of(20 - n, 0)) for n in range(8)))
    assert not marker.is_full(99)
    assert marker.steps_before(101) == marker.steps[:2]
    assert marker.is_full(107)


def test_records_before_low_are_done_also_when_no_step_says_so() -> None:
    marker = Marker(low=5)
    assert marker.done(id_of(10**9, 4), 4)
    assert not marker.done(id_of(0, 5), 5)
    assert marker.with_low(3).low == 5
    assert marker.with_low(7).low == 7
    assert Marker(low=9).ingested == 9


def test_a_chunk_of_an_owner_that_had_read_less_than_the_one_before_adds_what_it_says_and_no_more() -> None:
    before = Marker().after_chunk(40, id_of(5, 0))
    after = before.after_chunk(30, id_of(9, 0))
    assert after.steps == ((30, id_of(9, 0)), (40, id_of(5, 0)))
    assert after.done(id_of(9, 0), 29)
    assert not after.done(id_of(9, 0), 30)
    assert after.done(id_of(5, 0), 39)
    assert after.after_chunk(30, id_of(4, 0)) == after


ID = "00000000000000000000000000"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b"{}", "its version is None"),
        (b'{"version":true}', "its version is True"),
        (b'{"version":1,"done":[],"low":0,"owner":"","topic_id":null}', "owner, topic_id or options is no text"),
        (b'{"version":1,"low":0,"owner":"","topic_id":""}', "list of what is done is missing"),
        (b'{"version":1,"done":[1],"low":0,"owner":"","topic_id":""}', "no pair"),
        (b'{"version":1,"done":[[1,"x"]],"low":0,"owner":"","topic_id":""}', "'x' is not a message id"),
        (b'{"version":1,"done":[[-1,"%b"]],"low":0,"owner":"","topic_id":""}' % ID.encode(), "-1 is no offset"),
        (b'{"version":1,"done":[],"low":1.5,"owner":"","topic_id":""}', "1.5 is no offset"),
        (
            b'{"version":1,"done":[[2,"%b"],[1,"%b"]],"low":0,"owner":"","topic_id":""}' % (ID.encode(), ID.encode()),
            "steps are out of order",
        ),
    ],
)
def test_bytes_that_are_no_marker_are_an_error_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(Damaged, match=said):
        Marker.unpack(data)


def test_a_newer_marker_says_so() -> None:
    with pytest.raises(NewerFormat, match="the marker is version 2"):
        Marker.unpack(b'{"version":2}')
