"""What goes out for a message of the wheel that is due: exactly one record, to its target, its dead-letter topic or
back to the delay topic.

Invariant: the record depends on the message, the time of firing and the policy only; its id is that of the first
record, however often it was put back.
"""

from __future__ import annotations

from filewheel.kafka.records import headers as h
from filewheel.kafka.records.envelope import Envelope, Fate
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Headers, Outgoing
from filewheel.message import LOW_BITS, Message

_OFFSET_MASK = (1 << LOW_BITS) - 1
_REPLACED = h.STAMPS | h.BACK | {h.DUE_MS}
"""Headers of the waiting record that a delivered one does not keep."""
_REPLACED_AND_ROUTING = _REPLACED | h.ROUTING


def id_of(due_us: int, offset: int) -> bytes:
    """Return the id in the wheel of the record at an offset: the same one each time that the record is read."""
    return (due_us << LOW_BITS | offset).to_bytes(16, "big")


def offset_of(id_: bytes) -> int:
    """Return the offset of the record that has this id."""
    return int.from_bytes(id_, "big") & _OFFSET_MASK


def outgoing(message: Message, partition: int, fired_ms: int, policy: Policy) -> Outgoing:
    """Return the record that a due message becomes. Cost: 8 µs.

    Raises Damaged, or NewerFormat.
    """
    envelope = Envelope.unpack(message.payload)
    if envelope.fate is Fate.DEAD_LETTER:
        return _dead_letter(message, envelope, envelope.note, partition, policy)
    if envelope.fate is Fate.ROLL:
        return _rolled(message, envelope, partition, policy)
    return _delivered(message, envelope, partition, fired_ms, policy)


def refused(message: Message, reason: str, partition: int, now_ms: int, policy: Policy) -> Outgoing | None:
    """Return the record that takes the place of one that its target refused; None to send the same one again.

    A dead letter that its topic refuses is sent again: it is never dropped. So is one that rolls.
    """
    envelope = Envelope.unpack(message.payload)
    if envelope.fate is not Fate.DELIVER or policy.on_target_error == "retry":
        return None
    attempt = h.attempt_of(h.read(envelope.headers))
    if policy.on_target_error == "put-back" and attempt < policy.attempts_max:
        return _put_back(message, envelope, attempt + 1, partition, now_ms, policy)
    return _dead_letter(message, envelope, f"{message.topic}: {reason}", partition, policy)


def _delivered(message: Message, envelope: Envelope, partition: int, fired_ms: int, policy: Policy) -> Outgoing:
    found = h.read(envelope.headers)
    gone = _REPLACED if policy.keep_routing else _REPLACED_AND_ROUTING
    first_due_ms = message.due_us // 1000
    attempt = b"0"
    if h.ROOT in found:  # it was put back before
        first_due_ms = h.first_due_ms_of(found, first_due_ms)
        attempt = b"%d" % h.attempt_of(found)
    headers = [pair for pair in envelope.headers if pair[0] not in gone]
    headers += (
        (h.TIMESTAMP_S, b"%d" % (envelope.timestamp_ms // 1000)),
        (h.SOURCE_KEY, envelope.key),
        (h.SOURCE_TOPIC, policy.topic.encode()),
        (h.ID, _root(message, found, partition, policy)),
        (h.DUE_MS, b"%d" % first_due_ms),
        (h.FIRED_MS, b"%d" % fired_ms),
        (h.ATTEMPT, attempt),
    )
    return Outgoing(message.topic, envelope.target_key, envelope.value, headers, envelope.target_partition)


def _dead_letter(message: Message, envelope: Envelope, reason: str, partition: int, policy: Policy) -> Outgoing:
    """Keep all headers, so that the record can go to the delay topic again as it is."""
    headers = [pair for pair in envelope.headers if pair[0] not in (h.ERROR, h.ORIGIN)]
    headers += (
        (h.ERROR, reason.encode("utf-8", "replace")),
        (h.ORIGIN, _origin(message, partition, policy)),
    )
    return Outgoing(policy.dead_letter_topic, envelope.key, envelope.value, headers)


def _rolled(message: Message, envelope: Envelope, partition: int, policy: Policy) -> Outgoing:
    """Go back with the due as an absolute time: a delay would begin again."""
    found = h.read(envelope.headers)
    due_ms = h.due_ms_of(found, envelope.timestamp_ms)
    headers = _to_wait_until(due_ms, envelope.headers)
    if h.ROOT not in found:
        headers.append((h.ROOT, _root(message, found, partition, policy)))
    return Outgoing(policy.topic, envelope.key, envelope.value, headers)


def _put_back(
    message: Message, envelope: Envelope, attempt: int, partition: int, now_ms: int, policy: Policy
) -> Outgoing:
    found = h.read(envelope.headers)
    headers = _to_wait_until(now_ms + int(policy.put_back_s * 1000), envelope.headers, without=h.BACK)
    headers += (
        (h.ROOT, _root(message, found, partition, policy)),
        (h.FIRST_DUE_MS, b"%d" % h.first_due_ms_of(found, message.due_us // 1000)),
        (h.ATTEMPT, b"%d" % attempt),
    )
    return Outgoing(policy.topic, envelope.key, envelope.value, headers)


def _to_wait_until(
    due_ms: int, headers: Headers, without: frozenset[str] = frozenset()
) -> list[tuple[str, bytes | None]]:
    kept = [pair for pair in headers if pair[0] not in h.DUE and pair[0] not in without]
    return [*kept, (h.DUE_MS, b"%d" % due_ms)]


def _origin(message: Message, partition: int, policy: Policy) -> bytes:
    return b"%b-%d-%d" % (policy.topic.encode(), partition, offset_of(message.id))


def _root(message: Message, found: dict[str, bytes | None], partition: int, policy: Policy) -> bytes:
    return found.get(h.ROOT) or _origin(message, partition, policy)
