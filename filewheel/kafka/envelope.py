"""What waits in the wheel for a record: the payload of an ordinary message, whose topic is the target.

The headers of the engine are text, and Kafka's are pairs of a name and bytes, so the record travels whole in the
payload, as one msgpack array (`filewheel inspect` shows its texts and its value):

    [1, fate, note, timestamp_ms, target_key, target_partition, headers, key, value]

Invariant: `unpack(pack())` is equal, with None apart from b"", and with the order and the repetitions of headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgpack

from filewheel.errors import Damaged, NewerFormat
from filewheel.kafka.headers import Delayed, Poison
from filewheel.kafka.record import Headers, Record

VERSION = 1
_FIELDS = 9


class Fate(IntEnum):
    """What becomes of a record when it is due."""

    DELIVER = 0
    DEAD_LETTER = 1
    ROLL = 2
    """It goes back to the delay topic: its own due is beyond the horizon."""


@dataclass(slots=True)
class Envelope:
    """A record that waits. Treat it as a value."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    fate: Fate = Fate.DELIVER
    note: str = ""
    """Why it is a dead letter."""
    target_key: bytes | None = None
    target_partition: int | None = None

    def pack(self) -> bytes:
        """Return the payload. Cost: 2 µs."""
        fields = (
            VERSION, int(self.fate), self.note, self.timestamp_ms, self.target_key, self.target_partition,
            self.headers, self.key, self.value,
        )  # fmt: skip
        packed: bytes = msgpack.packb(fields, use_bin_type=True, unicode_errors="surrogateescape")
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> Envelope:
        """Read a payload. Raises Damaged, or NewerFormat."""
        try:
            fields = msgpack.unpackb(payload, raw=False, use_list=True, unicode_errors="surrogateescape")
        except (ValueError, msgpack.UnpackException) as exc:
            raise _damaged(str(exc) or type(exc).__name__) from exc
        if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
            raise _damaged("it is no array that begins with a version")
        if fields[0] > VERSION:
            raise NewerFormat(
                f"the payload is version {fields[0]} of a waiting record; this filewheel reads up to {VERSION}",
                hint="upgrade filewheel on this node",
            )
        if fields[0] != VERSION or len(fields) != _FIELDS:
            raise _damaged(f"version {fields[0]} with {len(fields)} fields")
        _, fate, note, timestamp_ms, target_key, target_partition, headers, key, value = fields
        _check("fate", type(fate) is int and fate in list(Fate))
        _check("note", isinstance(note, str))
        _check("timestamp", type(timestamp_ms) is int)
        _check("target partition", target_partition is None or type(target_partition) is int)
        for name, each in (("target key", target_key), ("key", key), ("value", value)):
            _check(name, each is None or isinstance(each, bytes))
        _check("headers", isinstance(headers, list) and all(_is_header(pair) for pair in headers))
        pairs = [(name, each) for name, each in headers]
        return cls(key, value, pairs, timestamp_ms, Fate(fate), note, target_key, target_partition)


def envelope_of(record: Record, verdict: Delayed | Poison) -> Envelope:
    """Return what waits for a record."""
    if isinstance(verdict, Poison):
        return Envelope(record.key, record.value, record.headers, record.timestamp_ms, Fate.DEAD_LETTER, verdict.reason)
    fate = Fate.ROLL if verdict.is_rolled else Fate.DELIVER
    return Envelope(
        record.key, record.value, record.headers, record.timestamp_ms, fate, "", verdict.key, verdict.partition
    )


def shortened(record: Record, reason: str) -> Envelope:
    """Return what waits for a record that is too large for the wheel: a dead letter without its content.

    The header of its origin says where the whole record is, as long as the delay topic keeps it.
    """
    return Envelope(None, None, (), record.timestamp_ms, Fate.DEAD_LETTER, reason)


def _is_header(pair: object) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and (pair[1] is None or isinstance(pair[1], bytes))
    )


def _check(name: str, holds: bool) -> None:
    if not holds:
        raise _damaged(f"its {name} has the wrong type")


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"the payload is no waiting record of Kafka: {why}",
        hint="`filewheel verify` on the wheel of the partition; removed, it is rebuilt from the delay topic",
    )
