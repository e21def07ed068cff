"""What a record of the delay topic asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel.kafka.records.headers import DUE, ROUTING, STAMPS, Cancel, Delayed, Poison, delayed_of
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Headers, Record
from filewheel.message import DUE_LIMIT_US

NOW_MS = 1_700_000_000_000
POLICY = Policy("later", default_target="out")


def record(*headers: tuple[str, bytes | None], value: bytes | None = b"v", timestamp_ms: int = NOW_MS) -> Record:
    return Record(0, 7, b"k", value, headers, timestamp_ms)


def due_ms(*headers: tuple[str, bytes | None], policy: Policy = POLICY) -> int:
    found = delayed_of(record(*headers), policy)
    assert isinstance(found, Delayed), found
    return found.due_us // 1000


def reason(*headers: tuple[str, bytes | None], policy: Policy = POLICY, timestamp_ms: int = NOW_MS) -> str:
    found = delayed_of(record(*headers, timestamp_ms=timestamp_ms), policy)
    assert isinstance(found, Poison), found
    assert found.topic == policy.dead_letter_topic
    assert found.due_us == max(timestamp_ms, 0) * 1000
    return found.reason


def test_of_several_dues_the_first_kind_counts_and_of_one_kind_the_last() -> None:
    later = [("filewheel-delay-ms", b"5"), ("scheduler-epoch", b"1800000000"), ("filewheel-due-ms", b"1900000000123")]
    assert due_ms(*later) == 1_900_000_000_123
    assert due_ms(*later[:2]) == 1_800_000_000_000
    assert due_ms(*later[:1]) == NOW_MS + 5
    assert due_ms(("scheduler-epoch", b"1"), ("scheduler-epoch", b"2")) == 2000


def test_a_delay_counts_from_the_records_timestamp() -> None:
    delayed = delayed_of(record(("filewheel-delay-ms", b"250"), timestamp_ms=1000), POLICY)
    assert delayed == Delayed(1_250_000, "out")


def test_stamps_of_an_earlier_delivery_that_a_consumer_passed_on_do_not_outrank_a_new_due() -> None:
    stamps = [("filewheel-due-ms", b"1000"), ("filewheel-fired-ms", b"1003")]
    assert due_ms(*stamps, ("filewheel-delay-ms", b"5")) == NOW_MS + 5
    assert due_ms(*stamps, ("filewheel-due-ms", b"2000"), ("filewheel-delay-ms", b"5")) == 2000
    assert due_ms(*stamps) == 1000


def test_the_target_is_a_topic_with_a_key_and_a_partition() -> None:
    headers = [
        ("filewheel-due-ms", b"5"),
        ("scheduler-target-topic", b"orders"),
        ("scheduler-target-key", b"\xff"),
        ("filewheel-target-partition", b"3"),
    ]
    assert delayed_of(record(*headers), Policy("later")) == Delayed(5000, "orders", b"\xff", 3)
    assert delayed_of(record(*headers[:2]), Policy("later")) == Delayed(5000, "orders", None, None)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "no due"),
        ([("filewheel-due-ms", None)], "filewheel-due-ms is null"),
        ([("filewheel-due-ms", b"")], "filewheel-due-ms is ''"),
        ([("filewheel-due-ms", b"1.5")], r"filewheel-due-ms is '1.5'"),
        ([("filewheel-delay-ms", b"-5")], "filewheel-delay-ms is '-5'"),
        ([("scheduler-epoch", b"1_0")], "scheduler-epoch is '1_0'"),
        ([("scheduler-epoch", " ١".encode())], "scheduler-epoch is"),
        ([("filewheel-due-ms", b"9" * 18)], "not a number of 1 to 17 digits"),
        ([("filewheel-due-ms", b"9" * 17)], "filewheel-due-ms is after the year 9999"),
        ([("scheduler-epoch", b"9" * 12)], "scheduler-epoch is after the year 9999"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", None)], "scheduler-target-topic is null"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", b"a/b")], "not the name of a topic"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", b"later")], "which the service itself reads"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", b"later.cursor")], "which the service itself reads"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", b"later.dlt")], "puts what it cannot deliver"),
        ([("filewheel-due-ms", b"5"), ("scheduler-target-topic", b"__consumer_offsets")], "which is the brokers' own"),
        ([("filewheel-due-ms", b"5"), ("filewheel-target-partition", b"x")], "filewheel-target-partition is 'x'"),
        ([("filewheel-due-ms", b"5"), ("filewheel-unless-due-ms", b"x")], "filewheel-unless-due-ms is 'x'"),
        ([("filewheel-due-ms", b"5"), ("filewheel-target-partition", b"2147483648")], "a partition is below"),
        ([("filewheel-due-ms", b"5"), ("filewheel-root", b"r"), ("filewheel-attempt", b"")], "filewheel-attempt is"),
        ([("filewheel-due-ms", b"5"), ("filewheel-root", b""), ("filewheel-first-due-ms", None)], "first-due-ms is"),
        ([("filewheel-due-ms", b"5"), ("filewheel-delay-ms", b"1"), ("filewheel-fired-ms", b"")], "fired-ms is"),
    ],
)
def test_a_record_that_cannot_be_understood_is_a_dead_letter_with_the_reason(headers: Headers, said: str) -> None:
    assert said in reason(*headers)


def test_a_record_without_a_target_is_a_dead_letter_unless_there_is_a_default() -> None:
    assert "no target" in reason(("filewheel-due-ms", b"5"), policy=Policy("later"))


def test_a_delay_needs_a_timestamp() -> None:
    assert "no timestamp" in reason(("filewheel-delay-ms", b"5"), timestamp_ms=-1)
    horizon = Policy("later", default_target="out", horizon_s=60)
    assert "no timestamp" in reason(("filewheel-due-ms", b"%d" % NOW_MS), policy=horizon, timestamp_ms=-1)


def test_a_wait_beyond_the_horizon_is_a_dead_letter_or_rolls() -> None:
    at, beyond = ("filewheel-delay-ms", b"60000"), ("filewheel-delay-ms", b"60001")
    refusing = Policy("later", default_target="out", horizon_s=60)
    assert due_ms(at, policy=refusing) == NOW_MS + 60_000
    assert "the horizon of this topic is 60 s" in reason(beyond, policy=refusing)
    rolling = Policy("later", default_target="out", horizon_s=60, on_horizon="roll")
    assert due_ms(at, policy=rolling) == NOW_MS + 60_000
    assert delayed_of(record(beyond), rolling) == Delayed((NOW_MS + 60_000) * 1000, "later", is_rolled=True)


def test_in_a_keyed_topic_a_record_without_a_value_cancels() -> None:
    keyed = Policy("later", default_target="out", keyed=True)
    assert delayed_of(record(value=None), keyed) == Cancel(b"k")
    assert delayed_of(record(("filewheel-due-ms", b"5"), value=None), POLICY) == Delayed(5000, "out")
    keyless = Record(0, 7, None, None, [("filewheel-due-ms", b"5")], NOW_MS)
    assert delayed_of(keyless, keyed) == Delayed(5000, "out")


def test_an_attempt_counts_only_on_records_that_the_service_put_back() -> None:
    assert due_ms(("filewheel-due-ms", b"5"), ("filewheel-attempt", b"of a user")) == 5


names = st.sampled_from(sorted(ROUTING | STAMPS | {"filewheel-root", "filewheel-first-due-ms"})) | st.text(max_size=5)
values = (
    st.none()
    | st.binary(max_size=20)
    | st.integers(-5, 10**18).map(lambda n: b"%d" % n)
    | st.sampled_from([b"out", b"later", b"x" * 300])
)
records = st.builds(
    Record,
    st.just(0),
    st.integers(0, 2**62),
    st.none() | st.binary(max_size=3),
    st.none() | st.binary(max_size=3),
    st.lists(st.tuples(names, values), max_size=6),
    st.integers(-1, 2**62),
)
policies = st.sampled_from(
    [
        POLICY,
        Policy("later"),
        Policy("later", keyed=True, horizon_s=10),
        Policy("later", default_target="out", horizon_s=1, on_horizon="roll"),
    ]
)


@given(records, policies)
def test_no_record_raises_and_each_due_fits_into_an_id(each: Record, policy: Policy) -> None:
    found = delayed_of(each, policy)
    if not isinstance(found, Cancel):
        assert 0 <= found.due_us < DUE_LIMIT_US
        assert delayed_of(each, policy) == found
    if isinstance(found, Delayed):
        assert any(name in DUE for name, _ in each.headers)
