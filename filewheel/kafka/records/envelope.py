"""What waits in the wheel for a record: the payload of an ordinary message, whose topic is the target.

The headers of the engine are text, and Kafka's are pairs of a name and bytes, so the record travels whole in the
payload, as one msgpack array (`filewheel inspect` shows its texts and its value):

    [1, fate, note, timestamp_ms, target_key, target_partition, headers, key, value]

Invariant: `unpack(pack())` is equal, with None apart from b"", and with the order and the repetitions of headers.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from enum import IntEnum
from types import NoneType

import msgpack

from filewheel.errors import Damaged, NewerFormat
from filewheel.kafka.records.headers import Delayed, Poison
from filewheel.kafka.records.record import Headers, Record

VERSION = 1
_CONTENT = frozenset({bytes, NoneType})
_NUMBER = frozenset({int})
_TYPES = (
    ("version", _NUMBER),
    ("fate", _NUMBER),
    ("note", frozenset({str})),
    ("timestamp", _NUMBER),
    ("target key", _CONTENT),
    ("target partition", frozenset({int, NoneType})),
    ("headers", frozenset({tuple})),
    ("key", _CONTENT),
    ("value", _CONTENT),
)
"""The fields, with the types that each may have."""
_SHAPES = frozenset(itertools.product(*(types for _, types in _TYPES)))
"""The types of all fields of an envelope: one look-up for a sound one."""


class _Packers(threading.local):
    """A packer for each thread: it is not thread-safe, and to make one costs more than to pack a record."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True, unicode_errors="surrogateescape").pack


_packers = _Packers()


class Fate(IntEnum):
    """What becomes of a record when it is due."""

    DELIVER = 0
    DEAD_LETTER = 1
    ROLL = 2
    """It goes back to the delay topic: its own due is beyond the horizon."""


_FATES = tuple(Fate)


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
        """Return the payload. Cost: 1 µs."""
        fields = (
            VERSION,
            int(self.fate),
            self.note,
            self.timestamp_ms,
            self.target_key,
            self.target_partition,
            self.headers,
            self.key,
            self.value,
        )
        packed: bytes = _packers.pack(fields)
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> Envelope:
        """Read a payload. Raises Damaged, or NewerFormat."""
        try:
            fields = msgpack.unpackb(payload, raw=False, use_list=False, unicode_errors="surrogateescape")
        except (ValueError, msgpack.UnpackException) as exc:
            raise _damaged(str(exc) or type(exc).__name__) from exc
        if type(fields) is not tuple or not fields or type(fields[0]) is not int:
            raise _damaged("it is no array that begins with a version")
        if fields[0] > VERSION:
            raise NewerFormat(
                f"the payload is version {fields[0]} of a waiting record; this filewheel reads up to {VERSION}",
                hint="upgrade filewheel on this node",
            )
        if fields[0] != VERSION or len(fields) != len(_TYPES):
            raise _damaged(f"version {fields[0]} with {len(fields)} fields")
        if tuple(map(type, fields)) not in _SHAPES:
            raise _wrong(
                next(name for each, (name, types) in zip(fields, _TYPES, strict=True) if type(each) not in types)
            )
        _, fate, note, timestamp_ms, target_key, target_partition, headers, key, value = fields
        if not 0 <= fate < len(_FATES):
            raise _wrong("fate")
        for pair in headers:
            if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) not in _CONTENT:
                raise _wrong("headers")
        return cls(key, value, list(headers), timestamp_ms, _FATES[fate], note, target_key, target_partition)


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


def _wrong(name: str) -> Damaged:
    return _damaged(f"its {name} has the wrong type")


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"the payload is no waiting record of Kafka: {why}",
        hint="`filewheel verify` on the wheel of the partition; removed, it is rebuilt from the delay topic",
    )
