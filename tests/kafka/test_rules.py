"""What comes in as puts, and what goes out as records."""

from __future__ import annotations

from filewheel.kafka.node.rules import Rules
from filewheel.kafka.node.transport import Refusal
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.fate import id_of
from filewheel.kafka.records.headers import ERROR
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Record
from filewheel.message import Message, MessageId

DUE_MS = 1_800_000_000_000
HEADERS = [("filewheel-due-ms", b"%d" % DUE_MS), ("scheduler-target-topic", b"mail")]


def record(**fields: object) -> Record:
    values: dict[str, object] = {
        "partition": 3, "offset": 9, "key": b"k", "value": b"hello", "headers": HEADERS, "timestamp_ms": DUE_MS - 1000,
    }  # fmt: skip
    return Record(**{**values, **fields})  # type: ignore[arg-type]


def message_of(rules: Rules, one: Record) -> Message:
    (put,) = rules.understand([one])
    return Message(MessageId(id_of(put.due_us, put.offset)), put.envelope, put.target)


def test_a_record_goes_to_its_target_and_a_bad_one_to_the_dead_letter_topic() -> None:
    rules = Rules(Policy("delay"), "node", "id")
    (out,) = rules.outgoing(3, [message_of(rules, record())], DUE_MS + 1)
    assert (out.topic, out.key, out.value) == ("mail", None, b"hello")
    assert dict(out.headers)["filewheel-id"] == b"delay-3-9"
    (bad,) = rules.outgoing(3, [message_of(rules, record(headers=[]))], DUE_MS)
    assert bad.topic == "delay.dlt"
    assert b"no due" in (dict(bad.headers)[ERROR] or b"")


def test_only_a_keyed_topic_has_keys_and_cancels() -> None:
    plain, keyed = Rules(Policy("delay"), "node", "id"), Rules(Policy("delay", keyed=True), "node", "id")
    assert [put.key for put in plain.understand([record()])] == [None]
    put, cancel, bad = keyed.understand([record(), record(offset=10, value=None), record(offset=11, headers=[])])
    assert (put.key, put.cancels) == (b"k", False)
    assert (cancel.key, cancel.cancels) == (b"k", True)
    assert (bad.key, bad.cancels, bad.target) == (None, False, "delay.dlt")


def test_a_refusal_that_no_repetition_mends_is_a_dead_letter_also_where_others_are_sent_again() -> None:
    rules = Rules(Policy("delay", on_target_error="retry"), "node", "id")
    message = message_of(rules, record())
    assert rules.instead(3, message, Refusal("no such topic"), DUE_MS) is None
    other = rules.instead(3, message, Refusal("too large", is_lasting=True), DUE_MS)
    assert other is not None
    assert (other.topic, dict(other.headers)[ERROR]) == ("delay.dlt", b"mail: too large")


def test_a_marker_lies_in_the_partition_of_its_number_and_names_topic_and_node() -> None:
    out = Rules(Policy("delay"), "node", "id").marker(3, Marker(((5, id_of(1, 2)),), 1))
    assert (out.topic, out.partition, out.key) == ("delay.cursor", 3, b"3")
    assert out.value is not None
    read = Marker.unpack(out.value)
    assert (read.owner, read.topic_id, read.low, read.steps) == ("node", "id", 1, ((5, id_of(1, 2)),))
