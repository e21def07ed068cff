"""The dead letters of a delay service, as a person or a program looks at them.

Invariant: a record of the topic that is no dead letter of the service is returned too, with an empty reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from filewheel.checks import check_whole
from filewheel.kafka.client.tail import last_records
from filewheel.kafka.records import headers as h
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be delivered."""

    origin: str
    """Its id in the delay topic, as `delays-3-17`."""
    reason: str
    at_ms: int
    """When it became one."""
    target: str | None
    """Where it was to go, as its header says."""
    key: bytes | None
    value: bytes | None
    headers: Headers


def dead_letters(config: Mapping[str, Any], topic: str, *, limit: int = 100) -> list[DeadLetter]:
    """Return the last dead letters of a delay topic, the oldest first. Needs the right to read their topic.

    Raises BadArgument, NoBroker, MissingTopic, NotAllowed, ClusterError.
    """
    check_whole("limit", limit)
    found = []
    for record in last_records(config, Policy(topic).dead_letter_topic, limit, group=f"filewheel-{topic}"):
        named = h.read(record.headers)
        target = named.get(h.TARGET_TOPIC)
        reason, origin = _text(named.get(h.ERROR)), _text(named.get(h.ORIGIN))
        at = None if target is None else _text(target)
        found.append(DeadLetter(origin, reason, record.timestamp_ms, at, record.key, record.value, record.headers))
    return found


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")
