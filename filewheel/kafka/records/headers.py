"""What a record of the delay topic asks for: its due and its target, out of its headers.

The names of etf1's kafka-message-scheduler mean the same here, so its clients need no change. Of the headers of one
name the last counts. Everything is a function of the record and the topic's policy, never of the time now: a record
that is read again gets the same due.
Invariant: no record raises. One that cannot be understood is Poison with a reason, and waits as any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from filewheel.kafka.records.options import Policy, is_topic
from filewheel.kafka.records.record import NO_TIMESTAMP, Headers, Record
from filewheel.message import DUE_END_US

DUE_MS = "filewheel-due-ms"
"""In: when it is due, in milliseconds since the epoch. Out: when it was due."""
EPOCH_S = "scheduler-epoch"
"""In: when it is due, in seconds since the epoch."""
DELAY_MS = "filewheel-delay-ms"
"""In: how long it waits, from the record's timestamp."""
TARGET_TOPIC = "scheduler-target-topic"
TARGET_KEY = "scheduler-target-key"
"""In: the key of the produced record; without it, it has none."""
TARGET_PARTITION = "filewheel-target-partition"

UNLESS_DUE_MS = "filewheel-unless-due-ms"
"""In, of a keyed topic: it does not take the place of the waiting record with its key that is due by then."""

TIMESTAMP_S = "scheduler-timestamp"
"""Out: the timestamp of the record in the delay topic, in seconds."""
SOURCE_KEY = "scheduler-key"
SOURCE_TOPIC = "scheduler-topic"
ID = "filewheel-id"
"""Out: topic-partition-offset of the record; the same however often it is produced."""
FIRED_MS = "filewheel-fired-ms"
ATTEMPT = "filewheel-attempt"
"""Out: how often it was put back before."""
ERROR = "filewheel-error"
"""Out, of a dead letter: why it is one."""
ORIGIN = "filewheel-origin"
"""Out, of a dead letter: topic-partition-offset of the record in the delay topic."""

ROOT = "filewheel-root"
"""Of a record that the service put back: the id of the first record."""
FIRST_DUE_MS = "filewheel-first-due-ms"
"""Of a record that the service put back: when it was due at first."""

DUE = (DUE_MS, EPOCH_S, DELAY_MS)
"""The headers of a due; the first of them that a record has counts."""
ROUTING = frozenset({*DUE, TARGET_TOPIC, TARGET_KEY, TARGET_PARTITION, UNLESS_DUE_MS})
BACK = frozenset({ROOT, FIRST_DUE_MS, ATTEMPT})
STAMPS = frozenset({TIMESTAMP_S, SOURCE_KEY, SOURCE_TOPIC, ID, FIRED_MS, ATTEMPT, ERROR, ORIGIN})
"""What the service writes on produced records."""

_DIGITS_MAX = 17
_TOPICS_MAX = 4096
_PARTITION_END = 1 << 31
DUE_END_MS = DUE_END_US // 1000


@dataclass(slots=True)
class Delayed:
    """A record that waits, and then goes to its target."""

    due_us: int
    topic: str
    key: bytes | None = None
    partition: int | None = None
    is_rolled: bool = False
    """It is due beyond the horizon: at `due_us` it goes back to the delay topic, which is `topic`."""
    unless_due_us: int = -1
    """It takes the place of no record with its key that is due by then."""


@dataclass(slots=True)
class Poison:
    """A record that goes to the dead-letter topic, at once."""

    due_us: int
    """The record's own timestamp."""
    topic: str
    reason: str


@dataclass(slots=True)
class Cancel:
    """A record of a keyed topic that cancels the waiting one with its key. Nothing comes of it."""

    key: bytes


class Malformed(ValueError):
    """A header cannot be understood."""


_NO_DUE, _NO_TARGET, _TOO_LATE = "it has no due", "it has no target", "it is due "
_TOO_LARGE = re.compile(r"it has \d+ bytes")


def kind_of_reason(reason: str) -> str:
    """Return a short name for the reason of a dead letter, for counting."""
    if _TOO_LARGE.match(reason):
        return "too_large"
    kinds = {_NO_DUE: "no_due", _NO_TARGET: "no_target", _TOO_LATE: "horizon"}
    return next((kind for start, kind in kinds.items() if reason.startswith(start)), "malformed")


def delayed_of(record: Record, policy: Policy) -> Delayed | Poison | Cancel:
    """Return what a record asks for. Never raises. Cost: 3 µs."""
    if policy.keyed and record.value is None and record.key is not None:
        return Cancel(record.key)
    try:
        return _delayed(record, policy)
    except Malformed as exc:
        return poison(record, policy, str(exc))


def poison(record: Record, policy: Policy, reason: str) -> Poison:
    """Return the verdict of a record that cannot be delivered. It is due at its timestamp, which is not later."""
    due_ms = min(max(record.timestamp_ms, 0), DUE_END_MS - 1)
    return Poison(due_ms * 1000, policy.dead_letter_topic, reason)


def read(headers: Headers) -> dict[str, bytes | None]:
    """Return the headers by name, the last one of each."""
    return dict(headers)


def due_ms_of(found: Mapping[str, bytes | None], timestamp_ms: int) -> int:
    """Return the due of a record with these headers. Raises Malformed."""
    name = _due_header(found)
    value = number(found, name)
    if name == EPOCH_S:
        value *= 1000
    elif name == DELAY_MS:
        if timestamp_ms <= NO_TIMESTAMP:
            raise Malformed(f"it has no timestamp, from which {DELAY_MS} counts")
        value += timestamp_ms
    if value >= DUE_END_MS:
        raise Malformed(f"{name} is after the year 9999")
    return value


def _due_header(found: Mapping[str, bytes | None]) -> str:
    """Return the name of the header that counts. Raises Malformed."""
    if DUE_MS in found:
        if FIRED_MS not in found or (EPOCH_S not in found and DELAY_MS not in found):
            return DUE_MS
        # Consumers often pass all headers on: the stamps of an earlier delivery do not outrank a new due.
        if number(found, DUE_MS) > number(found, FIRED_MS):
            return DUE_MS
    if EPOCH_S in found:
        return EPOCH_S
    if DELAY_MS in found:
        return DELAY_MS
    raise Malformed(f"{_NO_DUE}: none of the headers {', '.join(DUE)}")


def attempt_of(found: Mapping[str, bytes | None]) -> int:
    """Return how often the service put a record back. Raises Malformed."""
    return number(found, ATTEMPT) if ROOT in found and ATTEMPT in found else 0


def number(found: Mapping[str, bytes | None], name: str) -> int:
    """Return a header's number. Raises Malformed unless it is decimal digits in ASCII."""
    value = found[name]
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        raise Malformed(f"{name} is {_shown(value)}, not a number of 1 to {_DIGITS_MAX} digits")
    return int(value)


def _delayed(record: Record, policy: Policy) -> Delayed:
    found = read(record.headers)
    due_ms = due_ms_of(found, record.timestamp_ms)
    attempt_of(found)  # a malformed one is poison now, not an exception when it is due
    if ROOT in found:
        first_due_ms_of(found, due_ms)
    topic = _target(found, policy)
    partition = _partition(found)
    unless_due_us = number(found, UNLESS_DUE_MS) * 1000 if UNLESS_DUE_MS in found else -1
    horizon_ms = policy.horizon_ms
    if horizon_ms is not None and due_ms - record.timestamp_ms > horizon_ms:  # mutant: kafka-no-horizon
        if record.timestamp_ms <= NO_TIMESTAMP:
            raise Malformed("it has no timestamp, from which the horizon counts")
        if policy.on_horizon == "dead-letter":
            raise Malformed(
                f"{_TOO_LATE}{(due_ms - record.timestamp_ms) // 1000} s after its timestamp; the horizon "
                f"of this topic is {policy.horizon_s:g} s"
            )
        due_ms, topic = record.timestamp_ms + horizon_ms, policy.topic
        return Delayed(due_ms * 1000, topic, is_rolled=True, unless_due_us=unless_due_us)
    return Delayed(due_ms * 1000, topic, found.get(TARGET_KEY), partition, unless_due_us=unless_due_us)


def first_due_ms_of(found: Mapping[str, bytes | None], due_ms: int) -> int:
    """Return when a record was due before it was put back for the first time. Raises Malformed."""
    return number(found, FIRST_DUE_MS) if ROOT in found and FIRST_DUE_MS in found else due_ms


def _target(found: Mapping[str, bytes | None], policy: Policy) -> str:
    if TARGET_TOPIC not in found:
        if policy.default_target:
            return policy.default_target
        raise Malformed(f"{_NO_TARGET}: no header {TARGET_TOPIC}, and the service has no default")
    topic = _topic_of(found[TARGET_TOPIC])
    if reason := policy.not_a_target(topic):
        raise Malformed(f"{TARGET_TOPIC} is {topic}, {reason}")
    return topic


@lru_cache(_TOPICS_MAX)
def _topic_of(value: bytes | None) -> str:
    """Return the name of a topic. The records of one delay topic have few targets. Raises Malformed."""
    topic = "" if value is None else value.decode("latin-1")
    if not is_topic(topic):
        raise Malformed(f"{TARGET_TOPIC} is {_shown(value)}, not the name of a topic")
    return topic


def _partition(found: Mapping[str, bytes | None]) -> int | None:
    if TARGET_PARTITION not in found:
        return None
    partition = number(found, TARGET_PARTITION)
    if partition >= _PARTITION_END:
        raise Malformed(f"{TARGET_PARTITION} is {partition}; a partition is below {_PARTITION_END}")
    return partition


def _shown(value: bytes | None) -> str:
    return "null" if value is None else repr(value[:40])[1:]
