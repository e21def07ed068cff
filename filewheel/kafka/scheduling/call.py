"""A call as a record: what a worker reads from the topic of calls, and what it produces for the end of a call.

A call is a Message, as in a wheel: payload and headers travel as they are, and some headers hold the other fields. A
call that is due later goes through the delay topic; a retry does, too. Only a call that was never moved has a record
key: the retry of a replaced call must not replace the one that replaced it.
Invariants: `message_of` reads what `record_of` wrote, with the same id; a call is never due earlier in the delay topic
than in its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from filewheel.errors import BadArgument, Damaged
from filewheel.format.ids import MINT
from filewheel.journal.settlement import GONE, Settlement, moved_headers
from filewheel.kafka.records.headers import DUE_MS, FIRED_MS, TARGET_KEY, TARGET_TOPIC, UNLESS_DUE_MS
from filewheel.kafka.records.options import TOPIC_CHARS_MAX, is_topic
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.message import DUE_END_US, KEY, REASON, SCHEDULE, SEQ_BITS, Message, MessageId

HANDLER = "filewheel.handler"
"""The name of the handler."""
ID = "filewheel.message_id"
ROOT = "filewheel.root"
"""The first id of a call that was retried or deferred."""
ATTEMPT = "filewheel.attempt"
"""How often the call failed before."""
_OWN = frozenset({HANDLER, ID, ROOT, ATTEMPT})

SERVICE_PREFIXES = ("filewheel-", "scheduler-")
"""Headers of the delay service: a call has none of its own with these names."""
_REASON_CHARS_MAX = 1000
_MS_END = DUE_END_US // 1000


@dataclass(frozen=True, slots=True)
class CallTopics:
    """The topics of one scheduler. Raises BadArgument for a name that Kafka does not allow, and for one twice."""

    delay: str
    calls: str

    def __post_init__(self) -> None:
        for name, topic in (("topic", self.delay), ("calls", self.calls)):
            if not isinstance(topic, str) or not is_topic(topic) or not is_topic(f"{topic}.dead"):
                raise BadArgument(
                    f"{name} is the name of a topic, not {topic!r}",
                    hint=f"1 to {TOPIC_CHARS_MAX - 5} letters, digits, `.`, `_` and `-`",
                )
        if self.delay in (self.calls, self.dead):
            raise BadArgument(f"topic and calls are two topics, not both {self.delay!r}")

    @property
    def dead(self) -> str:
        """The topic of dead letters."""
        return f"{self.calls}.dead"

    @property
    def all(self) -> tuple[str, str, str]:
        """Each topic that a worker writes to."""
        return self.delay, self.calls, self.dead


def record_of(message: Message, topics: CallTopics, now_us: int) -> Outgoing:
    """Return the record of a call: to the delay topic, or straight to the topic of calls when it is due, unkeyed."""
    headers = _headers_of(message)
    key = message.headers.get(KEY)
    text = None if key is None else key.encode()
    is_moved = message.root is not None
    due_us = message.due_us
    if (text is None or is_moved) and due_us <= now_us:
        return Outgoing(topics.calls, text, message.payload, headers)
    headers += [(DUE_MS, b"%d" % -(-due_us // 1000)), (TARGET_TOPIC, topics.calls.encode())]
    if text is not None:
        headers.append((TARGET_KEY, text))
    if SCHEDULE in message.headers and not is_moved:
        headers.append((UNLESS_DUE_MS, b"%d" % (now_us // 1000)))
    return Outgoing(topics.delay, None if is_moved else text, message.payload, headers)  # mutant: kafka-retry-replaces


def cancel_of(key: str, topics: CallTopics) -> Outgoing:
    """Return the record that cancels the waiting call with a key."""
    return Outgoing(topics.delay, key.encode(), None)


def message_of(record: Record) -> Message:
    """Return the call of a record; without an id, one that is made of its place.

    Raises Damaged when the record is no call.
    """
    found = dict(record.headers)
    try:
        handler = (found[HANDLER] or b"").decode()
        attempt = int(found.get(ATTEMPT) or b"0")
        root = MessageId.parse((found[ROOT] or b"").decode()) if ROOT in found else None
        id_ = MessageId.parse((found[ID] or b"").decode()) if ID in found else _id_of_place(record, found)
    except KeyError:
        raise Damaged(f"the record names no handler: it has no header {HANDLER}") from None
    except (ValueError, BadArgument) as exc:
        raise Damaged(f"the headers of the call cannot be read: {exc}") from exc
    if not handler or attempt < 0:
        raise Damaged(f"the headers of the call cannot be read: {HANDLER} {handler!r}, {ATTEMPT} {attempt}")
    headers = {
        name: (value or b"").decode("utf-8", "replace")
        for name, value in record.headers
        if name not in _OWN and not name.startswith(SERVICE_PREFIXES)
    }
    return Message(id_, record.value or b"", handler, headers, attempt, 0, root)


def dead_of(message: Message, reason: str, topics: CallTopics) -> Outgoing:
    """Return the dead letter of a call."""
    headers = {**message.headers, REASON: _cut(reason)}
    dead = replace(message, headers=headers)
    return Outgoing(topics.dead, None, message.payload, _headers_of(dead))


def dead_of_record(record: Record, reason: str, topics: CallTopics) -> Outgoing:
    """Return the dead letter of a record that is no call, with all that it has."""
    headers = [*record.headers, (REASON, _cut(reason).encode())]
    return Outgoing(topics.dead, record.key, record.value, headers)


def records_of(
    settlement: Settlement, message: Message, topics: CallTopics, now_us: int
) -> tuple[list[Outgoing], MessageId | None]:
    """Return the records that the end of a call produces, and the id that the call has next, also as a dead letter."""
    records = [record_of(put, topics, now_us) for put in _puts(settlement)]
    if settlement.what in GONE:
        return records, None
    headers = moved_headers(settlement, message, now_us)
    tries = message.attempt + (settlement.what != "deferred")
    moved = replace(message, headers=headers, attempt=tries, root=message.root or message.id)
    if settlement.what == "buried":
        records.append(dead_of(moved, settlement.reason, topics))
    else:
        moved.id = MINT.id_at(max(settlement.due_us, 0) or now_us)
        records.append(record_of(moved, topics, now_us))
    return records, moved.id


def _puts(settlement: Settlement) -> Sequence[Message]:
    if settlement.successor is None:
        return settlement.puts
    return [*settlement.puts, settlement.successor]  # mutant: kafka-schedule-ends


def _headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = [(name, value.encode()) for name, value in message.headers.items()]
    headers += [(HANDLER, message.topic.encode()), (ID, str(message.id).encode())]
    if message.attempt:
        headers.append((ATTEMPT, b"%d" % message.attempt))
    if message.root is not None:
        headers.append((ROOT, str(message.root).encode()))
    return headers


def _id_of_place(record: Record, found: dict[str, bytes | None]) -> MessageId:
    """Return an id for a call of another client: the same each time that the record is read."""
    due_ms = int(found.get(DUE_MS) or b"0") if FIRED_MS in found else record.timestamp_ms
    seq = record.offset & ((1 << SEQ_BITS) - 1)
    return MessageId.make(min(max(due_ms, 0), _MS_END - 1) * 1000, record.partition, seq)


def _cut(reason: str) -> str:
    return reason.encode("utf-8", "backslashreplace").decode()[:_REASON_CHARS_MAX]
