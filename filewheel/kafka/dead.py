"""The dead letters of a delay service or of a scheduler, as a person or a program looks at them, and their second life.

A dead letter that is revived stays in its topic, followed by a note that names it: then it is listed no more.
Invariant: a record of the topic that is no dead letter of the service is returned too, with an empty reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from filewheel.checks import check_whole
from filewheel.errors import FilewheelError, NoBroker, NotFound
from filewheel.kafka.client.sender import TopicSender
from filewheel.kafka.client.tail import last_records
from filewheel.kafka.records import headers as h
from filewheel.kafka.records.options import Policy
from filewheel.kafka.records.record import Headers, Outgoing
from filewheel.kafka.status import is_keyed
from filewheel.message import DETAILS, HISTORY, REASON

REVIVED = "filewheel-revived"
"""Of a note: topic-partition-offset of the dead letter that was sent again."""
CALL_ID, CALL_ATTEMPT = "filewheel.message_id", "filewheel.attempt"
"""Headers of a call (scheduling/call.py)."""
_LEFT_OUT = frozenset({h.ERROR, h.ORIGIN, h.ATTEMPT, REASON, HISTORY, DETAILS, CALL_ATTEMPT})
"""Headers of a dead letter that the record does not have which is sent again."""
_ALL = 1 << 40
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be delivered, or a call that was given up."""

    origin: str
    """Its id: the place in the delay topic, as `delays-3-17`; of a call its id."""
    reason: str
    at_ms: int
    """When it became one."""
    target: str | None
    """Where it was to go, as its header says."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    place: str
    """Where it lies, as `delays.dlt-0-5`."""


def dead_letters(config: Mapping[str, Any], topic: str, *, calls: bool = False, limit: int = 100) -> list[DeadLetter]:
    """Return the last dead letters of a delay topic, the oldest first, without those that were revived.

    With `calls`, `topic` is the topic of calls of a scheduler. Needs the right to read their topic, and to describe the
    group of the nodes or workers.

    Raises BadArgument, NoBroker, MissingTopic, NotAllowed, ClusterError.
    """
    check_whole("limit", limit)
    name, group = _dead_topic(topic, calls=calls), _group(topic, calls=calls)
    found: dict[str, DeadLetter] = {}
    for record in last_records(config, name, limit, group=group):
        named = {key: None if value is None else value.decode("utf-8", "replace") for key, value in record.headers}
        if REVIVED in named:
            found.pop(named[REVIVED] or "", None)
            continue
        place = f"{name}-{record.partition}-{record.offset}"
        found[place] = DeadLetter(
            named.get(CALL_ID if calls else h.ORIGIN) or "",
            named.get(REASON if calls else h.ERROR) or "",
            record.timestamp_ms,
            topic if calls else named.get(h.TARGET_TOPIC),
            record.key,
            record.value,
            record.headers,
            place,
        )
    return list(found.values())


def revive(
    config: Mapping[str, Any], topic: str, ids: Collection[str] | None = None, *, calls: bool = False
) -> list[DeadLetter]:
    """Send dead letters with these ids again, or all, and return them: to the delay topic, or to the topic of calls.

    Each has the headers that it had, so it waits again if it asks for a delay; tries and the reason begin anew. It has
    no key where a key replaces what waits. On return the brokers have each, and a note of it; after an error or a crash
    in between, one may be sent and still be listed. Needs the right to write both topics.

    Raises NotFound when an id is not a dead letter, and nothing was sent; else as `dead_letters`.
    """
    listed = dead_letters(config, topic, calls=calls, limit=_ALL)
    chosen = [one for one in listed if ids is None or one.origin in ids]
    missing = sorted({*(ids or ())} - {one.origin for one in chosen})
    if missing:
        raise NotFound(f"no dead letter has the id {missing[0]}", hint="`filewheel kafka dead` lists them")
    keeps_key = not calls and is_keyed(config, topic, group=_group(topic, calls=False)) is False
    again = [Outgoing(topic, one.key if keeps_key else None, one.value, _headers(one)) for one in chosen]
    notes = [Outgoing(_dead_topic(topic, calls=calls), None, None, [(REVIVED, o.place.encode())]) for o in chosen]
    if chosen:
        sender = TopicSender(config, topic, timeout_s=TIMEOUT_S)
        try:
            sender.check()
            for records in (again, notes):
                _send(sender, records)
        finally:
            sender.close()
    return chosen


def _send(sender: TopicSender, records: Sequence[Outgoing]) -> None:
    answers: list[tuple[int, int] | FilewheelError] = []
    for record in records:
        sender.send_within(record, answers.append)
    sender.flush(TIMEOUT_S)
    failed = next((answer for answer in answers if isinstance(answer, FilewheelError)), None)
    if failed is not None:
        raise failed
    if len(answers) < len(records):
        raise NoBroker(f"{records[0].topic}: no answer after {TIMEOUT_S:g} s", hint="check whether the brokers run")


def _headers(one: DeadLetter) -> Headers:
    return [pair for pair in one.headers if pair[0] not in _LEFT_OUT]


def _dead_topic(topic: str, *, calls: bool) -> str:
    policy = Policy(topic)  # checks the name
    return f"{topic}.dead" if calls else policy.dead_letter_topic


def _group(topic: str, *, calls: bool) -> str:
    return f"{topic}.workers" if calls else f"filewheel-{topic}"
