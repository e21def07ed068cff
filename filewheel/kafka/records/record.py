"""Records of Kafka as plain values: one that was read, and one to produce.

The rules of the service need no client library; only confluent.py knows one.
Invariant: keys, values and header values are bytes or None. None and b"" differ everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from filewheel.message import Message
from filewheel.native.compiled import learn_outgoing, learn_record

NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""

Headers = Sequence[tuple[str, bytes | None]]
"""Names may repeat; the order counts."""


@dataclass(slots=True)
class Record:
    """One record of the delay topic. Treat it as a value."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


learn_record(Record)


@dataclass(slots=True)
class Outgoing:
    """A record to produce. Treat it as a value."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    """None: the client's partitioner decides, by the key."""


learn_outgoing(Outgoing, Message)
