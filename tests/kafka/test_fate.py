"""What goes out for a message that is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from filewheel.kafka.records.envelope import envelope_of, shortened
from filewheel.kafka.records.fate import id_of, offset_of, outgoing, refused
from filewheel.kafka.records.headers import Cancel, Delayed, delayed_of
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import Message, MessageId

POLICY = Policy("later", default_target="out")
BACK = Policy("later", default_target="out", on_target_error="put-back", attempts_max=2, put_back_s=10)


def message_of(record: Record, policy: Policy) -> Message:
    verdict = delayed_of(record, policy)
    assert not isinstance(verdict, Cancel)
    payload = envelope_of(record, verdict).pack()
    return Message(MessageId(id_of(verdict.due_us, record.offset)), payload, verdict.topic)


def delayed(*headers: tuple[str, bytes | None]) -> Record:
    return Record(3, 42, b"k", b"v", [("filewheel-due-ms", b"9000"), *headers], 1500)


def read_back(out: Outgoing, offset: int, timestamp_ms: int) -> Record:
    return Record(3, offset, out.key, out.value, out.headers, timestamp_ms)


@given(st.integers(0, 2**58 - 1), st.integers(0, 2**63 - 1))
def test_an_id_holds_the_due_and_the_offset_and_sorts_by_them(due_us: int, offset: int) -> None:
    id_ = id_of(due_us, offset)
    assert MessageId(id_).due_us == due_us
    assert offset_of(id_) == offset
    assert id_ < id_of(due_us, offset + 1)


def test_a_delivered_record_has_the_headers_of_its_user_and_the_stamps_of_the_service() -> None:
    record = delayed(("a", None), ("scheduler-target-topic", b"orders"), ("scheduler-target-key", b"t"), ("a", b"2"))
    assert outgoing(message_of(record, POLICY), 3, 9005, POLICY) == Outgoing(
        "orders",
        b"t",
        b"v",
        [
            ("a", None),
            ("a", b"2"),
            ("scheduler-timestamp", b"1"),
            ("scheduler-key", b"k"),
            ("scheduler-topic", b"later"),
            ("filewheel-id", b"later-3-42"),
            ("filewheel-due-ms", b"9000"),
            ("filewheel-fired-ms", b"9005"),
            ("filewheel-attempt", b"0"),
        ],
    )


def test_routing_headers_stay_if_the_policy_keeps_them_and_stamps_are_never_doubled() -> None:
    keeping = Policy("later", keep_routing=True)
    record = delayed(("scheduler-target-topic", b"orders"), ("filewheel-id", b"old"), ("filewheel-attempt", b"7"))
    out = outgoing(message_of(record, keeping), 3, 9005, keeping)
    names = [name for name, _ in out.headers]
    assert "scheduler-target-topic" in names
    assert [names.count(n) for n in ("filewheel-id", "filewheel-due-ms", "filewheel-attempt")] == [1, 1, 1]
    assert dict(out.headers)["filewheel-attempt"] == b"0"


def test_a_dead_letter_is_the_record_as_it_was_with_the_reason_and_its_origin() -> None:
    record = Record(3, 42, None, b"v", [("a", b"1"), ("filewheel-error", b"of before")], 1500)
    assert outgoing(message_of(record, POLICY), 3, 9005, POLICY) == Outgoing(
        "later.dlt",
        None,
        b"v",
        [
            ("a", b"1"),
            (
                "filewheel-error",
                b"it has no due: none of the headers filewheel-due-ms, scheduler-epoch, filewheel-delay-ms",
            ),
            ("filewheel-origin", b"later-3-42"),
        ],
    )


def test_a_record_that_is_too_large_leaves_a_dead_letter_with_its_origin() -> None:
    payload = shortened(delayed(), "it has 9 MB").pack()
    out = outgoing(Message(MessageId(id_of(5, 42)), payload, "later.dlt"), 3, 9005, POLICY)
    assert out.value is None
    assert dict(out.headers) == {"filewheel-error": b"it has 9 MB", "filewheel-origin": b"later-3-42"}


def test_a_record_that_rolls_keeps_its_due_its_target_and_its_id() -> None:
    rolling = Policy("later", default_target="out", horizon_s=10, on_horizon="roll")
    record = Record(3, 42, b"k", b"v", [("filewheel-delay-ms", b"25000"), ("scheduler-target-key", b"t")], 1000)
    first = outgoing(message_of(record, rolling), 3, 11_000, rolling)
    assert (first.topic, first.key) == ("later", b"k")
    second = outgoing(message_of(read_back(first, 50, 11_001), rolling), 3, 21_001, rolling)
    assert second.topic == "later"
    last = message_of(read_back(second, 60, 21_002), rolling)
    assert last.due_us == 26_000_000
    out = outgoing(last, 3, 26_001, rolling)
    assert (out.topic, out.key) == ("out", b"t")
    assert dict(out.headers)["filewheel-id"] == b"later-3-42"
    assert dict(out.headers)["filewheel-due-ms"] == b"26000"


def test_a_refused_record_is_sent_again_or_becomes_a_dead_letter_or_goes_back() -> None:
    message = message_of(delayed(), POLICY)
    assert refused(message, "too large", 3, 9005, POLICY) is None
    dead = refused(message, "too large", 3, 9005, Policy("later", on_target_error="dead-letter"))
    assert dead is not None
    assert dead.topic == "later.dlt"
    assert dict(dead.headers)["filewheel-error"] == b"out: too large"


def test_a_record_that_is_put_back_waits_anew_keeps_its_id_and_ends_as_a_dead_letter() -> None:
    record = delayed(("a", b"1"))
    for offset, attempt in ((50, 1), (60, 2)):
        back = refused(message_of(record, BACK), "down", 3, 20_000, BACK)
        assert back is not None
        assert back.topic == "later"
        record = read_back(back, offset, 20_001)
        verdict = delayed_of(record, BACK)
        assert verdict == Delayed(30_000_000, "out")
        stamps = dict(outgoing(message_of(record, BACK), 3, 30_001, BACK).headers)
        assert stamps["filewheel-id"] == b"later-3-42"
        assert stamps["filewheel-due-ms"] == b"9000"
        assert stamps["filewheel-attempt"] == b"%d" % attempt
        assert not {"filewheel-root", "filewheel-first-due-ms"} & set(stamps)
    dead = refused(message_of(record, BACK), "down", 3, 30_001, BACK)
    assert dead is not None
    assert dead.topic == "later.dlt"


def test_a_refused_dead_letter_is_never_dropped() -> None:
    poison = message_of(Record(3, 42, b"k", b"v", [], 1500), POLICY)
    for policy in (Policy("later", on_target_error="dead-letter"), BACK):
        assert refused(poison, "no such topic", 3, 9005, policy) is None
