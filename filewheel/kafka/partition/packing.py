"""Packs records of the delay topic into the bodies of frames: messages whose ids are their offsets.

The inner loop that packs a producer's batch counts a sequence number up; here it counts the offsets up. So a run of
consecutive offsets is packed in one call.
Invariant: the same record is packed into the same bytes, whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from filewheel.format.record import pack_middle
from filewheel.kafka.records.options import TOPIC_CHARS_MAX
from filewheel.message import ID_BYTES, ID_END, ID_MIN, KEY
from filewheel.native.compiled import learn_put, pack_puts

FRAME_BYTES = 8 << 20
_EACH_BYTES = 64
"""What a packed put has at most beside its topic and its envelope."""
_EACH_BYTES_MAX = _EACH_BYTES + TOPIC_CHARS_MAX
_MIDDLES_MAX = 4096


class LogPut(NamedTuple):
    """A record of the delay topic, as the wheel takes it in."""

    offset: int
    due_us: int
    target: str
    """The topic that it goes to."""
    envelope: bytes
    """The payload."""
    timestamp_ms: int = 0
    key: bytes | None = None
    cancels: bool = False
    """It cancels the waiting record with its key; nothing else comes of it."""
    unless_due_us: int = -1
    """It takes the place of no record with its key that is due by then: it is left out."""


learn_put(LogPut)


class Body(NamedTuple):
    """The body of a frame of puts."""

    data: bytes
    puts: int
    first: bytes
    last: bytes
    runs: list[tuple[int, int]]
    """(offset, count) of each run of consecutive offsets."""
    end: int
    """The offset after the last one."""


class Packer:
    """Packs the records of one partition. Not thread-safe: the partition's lock guards it."""

    def __init__(self, *, keyed: bool = False) -> None:
        """With `keyed`, a message has its record's key as its unique key."""
        self._keyed = keyed
        self._middles: dict[tuple[str, int], bytes] = {}

    def portions(self, puts: Sequence[LogPut]) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of parts of these puts that fit one frame: FRAME_BYTES at most, or one put."""
        if puts and sum([len(put.envelope) for put in puts]) + len(puts) * _EACH_BYTES_MAX <= FRAME_BYTES:
            yield 0, len(puts)
            return
        start = size = 0
        for at, put in enumerate(puts):
            more = len(put.envelope) + len(put.target) + _EACH_BYTES
            if size and size + more > FRAME_BYTES:
                yield start, at
                start, size = at, 0
            size += more
        if start < len(puts):
            yield start, len(puts)

    def bodies(self, puts: Sequence[LogPut]) -> Iterator[Body]:
        """Yield the bodies of these puts, one for each portion. Offsets ascend."""
        for start, end in self.portions(puts):
            yield self.body(puts[start:end])

    def body(self, puts: Sequence[LogPut]) -> Body:
        """Return the body of these puts, perhaps an empty one."""
        parts = list(runs(puts))
        packed = [self._pack(puts[a:b]) for a, b in parts]
        offsets = [(puts[a].offset, b - a) for a, b in parts]
        end = puts[-1].offset + 1 if puts else 0
        if len(packed) == 1:
            data, _, first, last = packed[0]
        else:
            data = b"".join(p[0] for p in packed)
            first, last = min((p[2] for p in packed), default=ID_END), max((p[3] for p in packed), default=ID_MIN)
        return Body(data, len(puts), first, last, offsets, end)

    def _pack(self, run: Sequence[LogPut]) -> tuple[bytes, bytes, bytes, bytes]:
        """Pack puts at consecutive offsets."""
        low = run[0].offset.to_bytes(ID_BYTES, "big")
        known = self._middles.get
        middles = [known((put.target, put.timestamp_ms)) or self._middle(put) for put in run]
        return pack_puts(low, 0, [put.due_us for put in run], middles, [put.envelope for put in run])

    def _middle(self, put: LogPut) -> bytes:
        """Return the fields between id and payload. The time of the record, not of its reading: it never changes."""
        enqueued_us = max(0, put.timestamp_ms) * 1000
        if self._keyed:  # each has a key of its own
            headers = None if put.key is None else {KEY: name_of(put.key)}
            return pack_middle(enqueued_us, put.target, headers)
        if len(self._middles) >= _MIDDLES_MAX:
            self._middles.clear()
        middle = self._middles[put.target, put.timestamp_ms] = pack_middle(enqueued_us, put.target, None)
        return middle


def name_of(key: bytes) -> str:
    """Return the unique key in the wheel for a record's key: any bytes of any length become 32 letters and digits."""
    return blake2b(key, digest_size=16).hexdigest()


def runs(puts: Sequence[LogPut]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the runs of consecutive offsets. They ascend."""
    if puts and puts[-1].offset - puts[0].offset == len(puts) - 1:
        yield 0, len(puts)
        return
    start = 0
    for at in range(1, len(puts)):
        if puts[at].offset != puts[at - 1].offset + 1:
            yield start, at
            start = at
    if puts:
        yield start, len(puts)
