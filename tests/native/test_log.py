"""Records of a log in C: what is returned is what the rules in Python return, and anything unusual is left to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.kafka.client.group import records_of
from filewheel.kafka.node import rules as rules_module
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.records import headers as h
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Record
from filewheel.native import log

compiled = pytest.importorskip(
    "filewheel.native._loops", reason="the loops in C were not built: `apt install gcc python3-dev`"
)

NOW_MS = 1_800_000_000_000
ASKING = [
    h.DUE_MS, h.EPOCH_S, h.DELAY_MS, h.TARGET_TOPIC, h.TARGET_KEY, h.TARGET_PARTITION, h.FIRED_MS, h.ROOT, h.ATTEMPT,
    h.FIRST_DUE_MS, "filewheel-due-mz", "x",
]  # fmt: skip
numbers = st.one_of(
    st.integers(0, 10**17 - 1).map(lambda n: b"%d" % n),
    st.integers(NOW_MS - 10**6, NOW_MS + 10**9).map(lambda n: b"%d" % n),
    st.integers(0, 10**7).map(lambda n: b"%017d" % n),
    st.sampled_from([b"", b"-1", b"1.5", b" 1", b"1" * 18, b"\xff", None, b"253402300800000", b"253402300799999"]),
)
contents = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"a" * 255, b"b" * 256, b"c" * 65_536]))
targets = st.sampled_from([b"mails", b"orders", b"", b"delay", b"\xff", b"no topic", None])
pairs = st.one_of(
    st.tuples(st.sampled_from(ASKING), numbers),
    st.tuples(st.just(h.DUE_MS), numbers),
    st.tuples(st.just(h.TARGET_TOPIC), targets),
    st.tuples(st.text(max_size=40), contents),
)
records = st.builds(
    Record, st.just(0), st.integers(0, 2**40), contents, contents, st.lists(pairs, max_size=17),
    st.one_of(st.just(NOW_MS), st.integers(-1, 2**42)),
)  # fmt: skip
POLICIES = [
    Policy("delay"), Policy("delay", keyed=True), Policy("delay", horizon_s=86_400),
    Policy("delay", horizon_s=3600, on_horizon="roll", default_target="mails"),
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, max_size=3), st.sampled_from(POLICIES))
def test_the_puts_of_records_are_those_of_the_rules(some: list[Record], policy: Policy) -> None:
    rules = Rules(policy, "node", "")
    rules.understand([Record(0, 0, None, None, plain(b"mails"), NOW_MS)])  # it knows this target
    assert rules.understand(some) == [rules._put(record) for record in some]


def plain(target: bytes = b"mails", due: bytes = b"1800000060000") -> list[tuple[str, bytes | None]]:
    return [("filewheel-due-ms", due), ("scheduler-target-topic", target), ("lang", b"en")]


def taken(record: Record, policy: Policy = POLICIES[0], topics: dict[bytes, str] | None = None) -> Any:
    """Return what C makes of a record alone."""
    horizon_ms = -1 if policy.horizon_ms is None else policy.horizon_ms
    known = {b"mails": "mails"} if topics is None else topics
    ((put,), is_left) = compiled.delayed_puts(
        [record], known, policy.default_target or None, horizon_ms, h.DUE_END_MS, PAYLOAD_BYTES_LIMIT, policy.keyed
    )
    assert is_left is (put is None)
    return put


def test_a_plain_record_is_packed_in_c_and_an_unusual_one_is_left_to_the_rules() -> None:
    record = Record(0, 7, b"k", b"hello", plain(), NOW_MS)
    put = taken(record)
    assert type(put) is LogPut
    assert put == Rules(POLICIES[0], "node", "")._put(record)
    unusual = [
        plain(b"orders"), plain(due=b"x"), [*plain(), (h.ROOT, b"r")], [*plain(), (h.FIRED_MS, b"5")],
        [*plain(), (h.TARGET_PARTITION, b"3")], [*plain(), ("naïve", b"")], [("lang", b"en")],
    ]  # fmt: skip
    for headers in unusual:
        assert taken(Record(0, 7, b"k", b"hello", headers, NOW_MS)) is None, headers
    assert taken(Record(0, 7, b"k", None, plain(), NOW_MS), POLICIES[1]) is None  # cancels
    far = plain(due=b"1900000000000")  # beyond the horizon
    assert taken(Record(0, 7, b"k", b"", far, NOW_MS), POLICIES[2]) is None
    assert taken(Record(0, 7, b"k", bytes(PAYLOAD_BYTES_LIMIT), plain(), NOW_MS)) is None  # too large
    assert taken(record, topics={}) is None


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, max_size=3))
def test_the_size_of_records_is_the_same(some: list[Record]) -> None:
    assert compiled.records_size(some) == log.records_size(some)


class Sent:
    """A message of the client."""

    def __init__(self, record: Record | None) -> None:
        self.record = record

    def __getattr__(self, name: str) -> Any:
        if name == "error":
            return lambda: None if self.record is not None else SimpleNamespace(name=lambda: "_PARTITION_EOF")
        if name == "timestamp":
            return lambda: (1, self.record.timestamp_ms)  # type: ignore[union-attr]
        if name == "headers":
            return lambda: self.record.headers or None  # type: ignore[union-attr]
        return lambda: getattr(self.record, name)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(st.none(), records), max_size=4), st.booleans())
def test_messages_become_records_and_errors_stay_apart(some: list[Record | None], in_python: bool) -> None:
    from filewheel.kafka.client import group

    messages: list[Any] = [Sent(record) for record in some]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "read_records", log.read_records if in_python else compiled.read_records)
        read, errors = records_of(messages)
    expected = [record for record in some if record is not None]
    assert [(r.offset, r.key, r.value, list(r.headers), r.timestamp_ms) for r in read] == [
        (r.offset, r.key, r.value, list(r.headers), r.timestamp_ms) for r in expected
    ]
    assert errors == [message for message in messages if message.record is None]


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("read_records", ((),)), ("read_records", ([5],)), ("records_size", ([5],)), ("records_size", (5,)),
        ("delayed_puts", ([], [], None, -1, 1, 1, False)), ("delayed_puts", ([], {}, None, "x", 1, 1, False)),
        ("learn_record", (Sent,)), ("learn_put", (Sent,)), ("learn_put", (5,)),
    ],
)  # fmt: skip
def test_wrong_input_is_refused(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        getattr(compiled, name)(*args)


def test_what_is_no_record_is_left_to_the_rules() -> None:
    assert compiled.delayed_puts([5], {}, None, -1, h.DUE_END_MS, 100, False) == ([None], True)
    assert compiled.delayed_puts([], {}, None, -1, h.DUE_END_MS, 100, False) == ([], False)


def test_a_topic_with_many_targets_keeps_a_bounded_number_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "TARGETS_MAX", 3)
    rules = Rules(POLICIES[0], "node", "")
    for n in range(10):
        rules.understand([Record(0, n, None, b"", plain(b"t%d" % n), NOW_MS)])
    assert len(rules._targets) == 3
