"""Due messages made into records in C: they are those of the rules, and anything unusual is left to the rules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from filewheel.errors import FilewheelError
from filewheel.kafka.node import rules as rules_module
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.records import fate
from filewheel.kafka.records import headers as h
from filewheel.kafka.records.envelope import Envelope, Fate
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Outgoing
from filewheel.message import DEAD_US, Message, MessageId
from filewheel.native import log

compiled = pytest.importorskip(
    "filewheel.native._loops", reason="the loops in C were not built: `apt install gcc python3-dev`"
)

NOW_MS = 1_800_000_000_000
PARTITION = 3
POLICIES = [Policy("delay"), Policy("delay", keep_routing=True), Policy("a.delay_2", on_target_error="put-back")]
NAMES = sorted(h.STAMPS | h.BACK | h.ROUTING)
HUGE = [b"", b"a" * 255, b"b" * 256, b"c" * 65_535, b"d" * 65_536]

contents = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from(HUGE))
pairs = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.one_of(contents, st.integers(0, 10**13).map(lambda n: b"%d" % n))),
    st.tuples(st.one_of(st.text(max_size=40), st.sampled_from(["a" * 31, "b" * 32, "c" * 255, "d" * 256])), contents),
)
envelopes = st.builds(
    Envelope,
    key=contents,
    value=contents,
    headers=st.lists(pairs, max_size=18),
    timestamp_ms=st.one_of(
        st.integers(-1, 2**63), st.sampled_from([0, 127, 128, 255, 256, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**64 - 1])
    ),
    fate=st.sampled_from([*[Fate.DELIVER] * 8, *Fate]),
    note=st.sampled_from([""] * 8 + ["it has no due"]),
    target_key=contents,
    target_partition=st.sampled_from([None] * 8 + [0, 7]),
)


def message_of(envelope: Envelope, due_us: int = NOW_MS * 1000, offset: int = 9) -> Message:
    return Message(MessageId(fate.id_of(due_us, offset)), envelope.pack(), "mails")


messages = st.builds(
    message_of,
    envelopes,
    st.one_of(st.integers(0, 2**50), st.integers(DEAD_US - 2, DEAD_US + 2)),
    st.one_of(st.integers(0, 2**40), st.integers(2**63, 2**66)),
)


def outcome_of(made: Callable[[], Any]) -> Any:
    try:
        return made()
    except (FilewheelError, h.Malformed) as exc:
        return type(exc), str(exc)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, max_size=3), st.sampled_from(POLICIES), st.integers(-1, 2**42), st.booleans())
@example([message_of(Envelope(None, None, [], NOW_MS))], POLICIES[0], NOW_MS, False)
@example([message_of(Envelope(b"", b"", [("", None)] * 16, NOW_MS), offset=n) for n in (1, 2)], POLICIES[0], 0, False)
def test_the_records_of_due_messages_are_those_of_the_rules(
    some: list[Message], policy: Policy, fired_ms: int, in_python: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules_module, "deliveries", log.deliveries if in_python else compiled.deliveries)
        out = outcome_of(lambda: Rules(policy, "node", "").outgoing(PARTITION, some, fired_ms))
    assert out == outcome_of(lambda: [fate.outgoing(message, PARTITION, fired_ms, policy) for message in some])
    assert type(out) is tuple or all(type(one) is Outgoing for one in out)


def made(message: Any, policy: Policy = POLICIES[0]) -> Any:
    """Return what C makes of a message alone."""
    (found,), is_left = compiled.deliveries([message], policy.topic.encode(), PARTITION, NOW_MS, policy.keep_routing)
    assert is_left is (found is None)
    return found


PLAIN = Envelope(b"k", b"hello", [("lang", b"en"), ("filewheel-due-ms", b"1"), ("scheduler-epoch", b"1")], NOW_MS)


def varied(**fields: Any) -> Envelope:
    return Envelope(**{name: getattr(PLAIN, name) for name in Envelope.__slots__} | fields)


@pytest.mark.parametrize(
    "envelope",
    [
        PLAIN, varied(headers=[]), varied(key=None, value=None), varied(key=b"", value=b"", target_key=b""),
        varied(value=HUGE[-1], headers=[("huge", HUGE[-1])]), varied(headers=[("x", b"%d" % n) for n in range(9_000)]),
        varied(headers=[("n" * 255, None)]), varied(headers=[(name, b"1") for name in NAMES if name != h.ROOT]),
        varied(timestamp_ms=0), varied(timestamp_ms=2**64 - 1),
    ],
)  # fmt: skip
def test_a_plain_message_is_made_in_c(envelope: Envelope) -> None:
    for policy in POLICIES:
        assert made(message_of(envelope), policy) == fate.outgoing(message_of(envelope), PARTITION, NOW_MS, policy)


@pytest.mark.parametrize(
    "unusual",
    [
        varied(headers=[(h.ROOT, b"delay-3-1")]), varied(headers=[("naïve", b"")]), varied(headers=[("n" * 256, b"")]),
        varied(target_partition=0), varied(fate=Fate.DEAD_LETTER, note="why"), varied(fate=Fate.ROLL),
        varied(timestamp_ms=-1), varied(headers=[("x", b"")] * 65_536),
    ],
)  # fmt: skip
def test_an_unusual_message_is_left_to_the_rules(unusual: Envelope) -> None:
    message = message_of(unusual)
    assert made(message) is None
    between = [message_of(PLAIN, offset=1), message, message_of(PLAIN, offset=2)]
    rules = Rules(POLICIES[0], "node", "")
    assert rules.outgoing(PARTITION, between, NOW_MS) == [
        fate.outgoing(one, PARTITION, NOW_MS, POLICIES[0]) for one in between
    ]


def test_what_is_no_message_of_this_kind_is_left_to_the_rules() -> None:
    assert made(5) is None
    assert made(Message(b"short", PLAIN.pack(), "mails")) is None  # type: ignore[arg-type]
    assert made(Message(MessageId(16), bytearray(PLAIN.pack()), "mails")) is None  # type: ignore[arg-type]
    assert made(message_of(PLAIN, offset=2**64)) is None
    assert made(message_of(PLAIN, due_us=DEAD_US)) is None
    empty = Message.__new__(Message)  # no field is set
    assert made(empty) is None
    assert compiled.deliveries([], b"delay", PARTITION, NOW_MS, False) == ([], False)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_payload_is_never_made_into_a_record_that_the_rules_refuse(data: st.DataObject) -> None:
    payload = bytearray(data.draw(envelopes).pack()[:4096])
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(0, len(payload))) :]
    for _ in range(data.draw(st.integers(0, 2))):
        if payload:
            payload[data.draw(st.integers(0, min(len(payload), 200) - 1))] = data.draw(st.integers(0, 255))
    message = Message(MessageId(fate.id_of(NOW_MS * 1000, 9)), bytes(payload), "mails")
    expected = outcome_of(lambda: fate.outgoing(message, PARTITION, NOW_MS, POLICIES[0]))
    assert made(message) in (None, expected)


def test_each_beginning_of_a_payload_is_left_to_the_rules() -> None:
    whole = varied(headers=[("lang", b"en"), ("n" * 40, b"x" * 300)], target_key=b"t" * 300).pack()
    for size in range(len(whole)):
        assert made(Message(MessageId(bytes(16)), whole[:size], "mails")) is None, size
    assert made(Message(MessageId(bytes(16)), whole + b"\xc0", "mails")) is None
    assert made(Message(MessageId(bytes(16)), whole, "mails")) is not None


@pytest.mark.parametrize("name", ["headers", "key", "value", "target_key", "timestamp_ms"])
@pytest.mark.parametrize("value", [5.5, "text", True, {}, [[]], [["x", b"", b""]], [["x", 5]], [[b"x", b""]]])
def test_a_field_of_a_wrong_type_is_left_to_the_rules(name: str, value: object) -> None:
    names = ["timestamp_ms", "target_key", "target_partition", "headers", "key", "value"]
    fields = dict.fromkeys(names) | {"timestamp_ms": NOW_MS, "headers": []} | {name: value}
    payload = msgpack.packb([1, 0, "", *fields.values()])
    assert made(Message(MessageId(bytes(16)), payload, "mails")) is None


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("deliveries", ((), b"delay", 3, 5, False)), ("deliveries", ([], "delay", 3, 5, False)),
        ("deliveries", ([], b"delay", "3", 5, False)), ("deliveries", ([], b"delay", 3, None, False)),
        ("deliveries", ([], b"delay", 3, 5)), ("learn_outgoing", (Outgoing,)), ("learn_outgoing", (5, Message)),
        ("learn_outgoing", (Outgoing, 5)), ("learn_outgoing", (Message, Message)),
        ("learn_outgoing", (Outgoing, Outgoing)),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_and_what_was_learned_stays(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        getattr(compiled, name)(*args)
    assert made(message_of(PLAIN)) == fate.outgoing(message_of(PLAIN), PARTITION, NOW_MS, POLICIES[0])


def test_no_reference_is_lost_or_kept() -> None:
    some = [message_of(PLAIN, offset=n) for n in range(50)]
    some += [message_of(varied(headers=[("lang", b"en"), (h.ROOT, b"r")])), message_of(varied(target_partition=1))]
    some += [Message(some[0].id, some[0].payload[:size], "mails") for size in range(len(some[0].payload))]
    topic, target = b"delay", some[0].topic

    def counts() -> list[int]:
        gc.collect()
        referred = [*map(sys.getrefcount, (topic, target, Outgoing, Message, None, some, *some))]
        return [*referred, len(gc.get_objects()), sys.getallocatedblocks() // 10]

    def play() -> None:
        for _ in range(50):
            compiled.deliveries(some, topic, PARTITION, NOW_MS, False)

    play()
    before = counts()
    play()
    grown = [after - count for count, after in zip(before, counts(), strict=True)]
    assert max(map(abs, grown)) < 20, grown  # one for each call would be 50, one for each record 2,500


def test_without_memory_it_raises_and_keeps_nothing() -> None:
    testcapi = pytest.importorskip("_testcapi", reason="this Python was built without its tests")
    some = [message_of(varied(headers=[("a" * 9, b"b" * 9)]), offset=n) for n in range(3)]
    expected = compiled.deliveries(some, b"delay", PARTITION, NOW_MS, False)
    failed = 0
    for allowed in range(1, 1000):
        testcapi.set_nomemory(allowed, allowed + 1)
        try:
            out = compiled.deliveries(some, b"delay", PARTITION, NOW_MS, False)
        except MemoryError:
            failed += 1
            continue
        finally:
            testcapi.remove_mem_hooks()
        assert out == expected, allowed
        if allowed > failed + 20:
            break
    assert failed > 20
    assert compiled.deliveries(some, b"delay", PARTITION, NOW_MS, False) == expected
